"""Apply commands to the settings of a run, as pure functions of `RunSettings`.

The learning rate scale, the clip, the pause and the policies are settings. One-shot commands, such
as a checkpoint or a rollback, are carried out by `engine.train.control.command_executor`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from ..protocol.commands import (
    KeepPrompt,
    Pause,
    Quarantine,
    ResetLr,
    Resume,
    Rollback,
    RunSteps,
    ScaleLr,
    SetClip,
    SetDropout,
    SetLr,
    SetMix,
    SetPolicy,
    SetSchedule,
    SettingCommand,
    SetWeightDecay,
)
from ..protocol.settings import (
    LONGEST_KEPT,
    MOST_KEPT,
    MOST_QUARANTINED,
    Leash,
    RestOfSchedule,
    RunSettings,
    configured_or,
    mix_text,
    schedule_text,
    why_not_mixed,
    why_without_effect,
)

_ROUNDING = 1e-9
"""Share by which a computed learning rate may pass a limit of agents because it is rounded."""


@dataclass(frozen=True)
class SettingsContext:
    """The state of training that the value of a setting can depend on."""

    step: int
    """Finished optimizer steps."""
    lr_schedule: float
    """The schedule's learning rate for the next update, before scaling."""
    norm_percentile: Callable[[float], float | None]
    """Returns a percentile of recent gradient norms; None when there are none yet."""
    why_not_kept_out: Callable[[Sequence[str]], str] = lambda ids: ""
    """Returns why the samples with these ids cannot all be kept out; empty if they can."""
    sources: Sequence[str] = ()
    """Names of the sources of the training data."""
    total_steps: int = 0
    """Planned optimizer steps; 0 if they are not known."""


@dataclass(frozen=True)
class SettingsChange:
    """The settings after a command, and the change as the journal shows it."""

    settings: RunSettings
    old: str
    new: str


class Inapplicable(ValueError):
    """A setting that cannot be applied now; nothing was changed."""


def apply_setting(
    settings: RunSettings, command: SettingCommand, context: SettingsContext
) -> SettingsChange:
    """Return the settings after a command.

    Raises:
        Inapplicable: the setting cannot be applied now; the message says why.
    """
    match command:
        case ScaleLr() | SetLr() | ResetLr():
            return _change_lr(settings, command, context)
        case SetClip():
            return _change_clip(settings, command, context)
        case SetPolicy():
            return _change_policy(settings, command)
        case Quarantine():
            return _change_quarantine(settings, command, context)
        case SetMix():
            return _change_mix(settings, command, context)
        case _:
            return _change_course(settings, command, context)


def _change_course(
    settings: RunSettings,
    command: (SetWeightDecay | SetDropout | SetSchedule | KeepPrompt | Pause | Resume | RunSteps),
    context: SettingsContext,
) -> SettingsChange:
    match command:
        case SetWeightDecay() | SetDropout() | SetSchedule():
            return _change_recipe(settings, command, context)
        case KeepPrompt():
            return _change_samples(settings, command)
        case Pause() | Resume() | RunSteps():
            return _change_pause(settings, command, context)


def after_rollback(settings: RunSettings, command: Rollback) -> RunSettings:
    """Return the settings after a rollback: with its LR scale and its clip, if it sets them."""
    if command.lr_scale is not None:
        settings = msgspec.structs.replace(settings, lr_scale=command.lr_scale)
    if command.clip is not None:
        settings = msgspec.structs.replace(settings, clip=command.clip, clip_percentile=None)
    return settings


def leashed(before: RunSettings, after: RunSettings, leash: Leash | None) -> RunSettings:
    """Check a change of the learning rate against the limits of agents; return the new settings.

    They note the factor on the learning rate from which the limits count: the one before agents
    changed it.

    A person or the autopilot who sets the learning rate, even to the value that it has, moves it.

    Args:
        before: the settings before the command.
        after: the settings that it makes.
        leash: the limits of the agent that sent it; None if no agent did.

    Raises:
        Inapplicable: the learning rate would leave the limits of agents.
    """
    same, start = after.lr_scale == before.lr_scale, before.lr_scale_before_agents
    if leash is None:
        return after if same else msgspec.structs.replace(after, lr_scale_before_agents=None)
    if same:
        return msgspec.structs.replace(after, lr_scale_before_agents=start)
    start = before.lr_scale if start is None else start
    low, high = start * leash.lr_low, start * leash.lr_high
    if not low * (1 - _ROUNDING) <= after.lr_scale <= high * (1 + _ROUNDING):
        raise Inapplicable(
            f"agents may set the learning rate from ×{low:.4g} to ×{high:.4g} of the schedule, "
            f"got ×{after.lr_scale:.4g}; a person can set it, or confirm it as a proposal"
        )
    return msgspec.structs.replace(after, lr_scale_before_agents=start)


def _change_lr(
    settings: RunSettings, command: ScaleLr | SetLr | ResetLr, context: SettingsContext
) -> SettingsChange:
    match command:
        case ScaleLr(factor=factor):
            scale = factor
        case SetLr(value=value):
            if context.lr_schedule <= 0:
                raise Inapplicable(
                    f"the schedule's learning rate is 0 at step {context.step}, so no scale makes "
                    f"it {value:g}; set it at a step where the schedule is above 0"
                )
            scale = value / context.lr_schedule
        case ResetLr():
            scale = 1.0
    new = msgspec.structs.replace(settings, lr_scale=scale, lr_scale_before_agents=None)
    if isinstance(command, SetLr):
        old = context.lr_schedule * settings.lr_scale
        return SettingsChange(new, f"{old:.3g}", f"{command.value:.3g}")
    return SettingsChange(new, f"×{settings.lr_scale:.4g}", f"×{scale:.4g}")


def _change_clip(
    settings: RunSettings, command: SetClip, context: SettingsContext
) -> SettingsChange:
    clip = command.value
    if command.percentile is not None:
        clip = context.norm_percentile(command.percentile)
        if clip is None:
            raise Inapplicable(
                "no gradient norm is known yet, so there is no percentile; set it after a step"
            )
    new = msgspec.structs.replace(settings, clip=clip, clip_percentile=command.percentile)
    return SettingsChange(new, _describe_clip(settings), _describe_clip(new))


def _describe_clip(settings: RunSettings) -> str:
    if settings.clip is None:
        return "off"
    tail = f" (p{settings.clip_percentile:g})" if settings.clip_percentile is not None else ""
    return f"{settings.clip:.4g}{tail}"


def _change_policy(settings: RunSettings, command: SetPolicy) -> SettingsChange:
    wanted = {"nonfinite": command.nonfinite, "autopilot": command.autopilot}
    changed = {name: value for name, value in wanted.items() if value is not None}
    new = msgspec.structs.replace(settings, **changed)
    return SettingsChange(new, _describe_policy(settings, changed), _describe_policy(new, changed))


def _describe_policy(settings: RunSettings, names: Iterable[str]) -> str:
    return ", ".join(f"{name} {getattr(settings, name)}" for name in names)


def _change_quarantine(
    settings: RunSettings, command: Quarantine, context: SettingsContext
) -> SettingsChange:
    before = settings.quarantine
    if command.lift:
        if absent := [i for i in command.ids if i not in before]:
            raise Inapplicable(f"not in quarantine: {_some(absent)}")
        named = command.ids or before
        after = tuple(i for i in before if i not in named)
    else:
        after = (*before, *(i for i in command.ids if i not in before))
    if after == before:
        kept_out = f"all are in quarantine already: {_some(command.ids)}"
        raise Inapplicable("nothing is in quarantine" if command.lift else kept_out)
    if len(after) > MOST_QUARANTINED:
        raise Inapplicable(
            f"{len(after):,} samples would be in quarantine, expected at most "
            f"{MOST_QUARANTINED:,}; take them out of the data files instead"
        )
    if not command.lift and (reason := context.why_not_kept_out(after)):
        raise Inapplicable(reason)
    new = msgspec.structs.replace(settings, quarantine=after)
    return SettingsChange(new, f"{len(before)} in quarantine", f"{len(after)} in quarantine")


def _change_mix(settings: RunSettings, command: SetMix, context: SettingsContext) -> SettingsChange:
    weights, sources = command.weights, context.sources
    if len(sources) < 2:
        raise Inapplicable(
            "the training data have a single source; name several in data.train and start a new run"
        )
    if weights and (reason := why_not_mixed(weights, sources)):
        raise Inapplicable(reason)
    new = msgspec.structs.replace(settings, mix={name: weights[name] for name in weights})
    return SettingsChange(new, mix_text(settings.mix), mix_text(new.mix))


def _change_recipe(
    settings: RunSettings,
    command: SetWeightDecay | SetDropout | SetSchedule,
    context: SettingsContext,
) -> SettingsChange:
    match command:
        case SetWeightDecay(value=value):
            new = msgspec.structs.replace(settings, weight_decay=value)
            return SettingsChange(new, configured_or(settings.weight_decay), configured_or(value))
        case SetDropout(rate=rate):
            new = msgspec.structs.replace(settings, dropout=rate)
            return SettingsChange(new, configured_or(settings.dropout), configured_or(rate))
        case SetSchedule():
            return _change_schedule(settings, command, context)


def _change_samples(settings: RunSettings, command: KeepPrompt) -> SettingsChange:
    before, prompt = settings.samples, command.prompt
    if command.drop:
        if not before or (prompt and prompt not in before):
            kept = "; ".join(before) or "none"
            raise Inapplicable(f"no such prompt is kept; the kept ones are: {kept}")
        after = tuple(one for one in before if prompt and one != prompt)
    else:
        if prompt in before:
            raise Inapplicable("the prompt is kept already")
        if len(before) >= MOST_KEPT or len(prompt) > LONGEST_KEPT:
            raise Inapplicable(
                f"at most {MOST_KEPT} prompts of {LONGEST_KEPT:,} characters are kept; drop one, "
                "or name it in eval.samples"
            )
        after = (*before, prompt)
    new = msgspec.structs.replace(settings, samples=after)
    return SettingsChange(new, f"{len(before)} kept", f"{len(after)} kept")


def _change_schedule(
    settings: RunSettings, command: SetSchedule, context: SettingsContext
) -> SettingsChange:
    rest = None
    if reason := why_without_effect(command.start, context.total_steps):
        raise Inapplicable(reason)
    if command.shape:
        lr = context.lr_schedule if command.lr is None else command.lr
        if lr <= 0:
            raise Inapplicable(
                f"the schedule's learning rate is 0 at step {context.step}, so there is no rate to "
                "continue from; give a rate: at=1e-4"
            )
        start = context.step if command.start is None else command.start
        rest = RestOfSchedule(shape=command.shape, start=start, lr=lr)
    new = msgspec.structs.replace(settings, schedule=rest)
    return SettingsChange(new, schedule_text(settings.schedule), schedule_text(rest))


def _some(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
    return ", ".join(ids[:3]) + more


def _change_pause(
    settings: RunSettings, command: Pause | Resume | RunSteps, context: SettingsContext
) -> SettingsChange:
    until = context.step + command.steps if isinstance(command, RunSteps) else None
    new = msgspec.structs.replace(
        settings,
        paused=isinstance(command, Pause),
        release=isinstance(command, Pause) and command.release,
        pause_at_step=until,
    )
    return SettingsChange(new, _describe_pause(settings), _describe_pause(new))


def _describe_pause(settings: RunSettings) -> str:
    if settings.paused:
        return "paused, GPU memory released" if settings.release else "paused"
    until = settings.pause_at_step
    return "running" if until is None else f"running until step {until}"


def pause_if_due(settings: RunSettings, step: int) -> RunSettings:
    """Return the settings: paused if the last step of a command `run N` is done, else unchanged."""
    if settings.pause_at_step is None or step < settings.pause_at_step:
        return settings
    return msgspec.structs.replace(settings, paused=True, pause_at_step=None)


def clip_now(settings: RunSettings, percentile: Callable[[float], float | None]) -> float | None:
    """Return the max gradient norm of the next update; None when clipping is off.

    A clip by percentile uses the last known value while there is no percentile yet.

    Args:
        settings: the settings in force.
        percentile: returns a percentile of the recent gradient norms; None before the first norm.
    """
    if settings.clip_percentile is None:
        return settings.clip
    return percentile(settings.clip_percentile) or settings.clip
