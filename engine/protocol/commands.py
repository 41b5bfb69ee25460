"""The table `COMMANDS`: everything known about each command of a run.

The hub, the training process, `fttui ctl`, the app and the docs look a command up here; nothing
else lists kinds of commands.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from .chat.words import chat_words, parse_chat
from .command_args import (
    CommandError,
    WordedSetting,
    bare,
    count,
    flagged,
    number,
    one,
    parse_average,
    parse_checkpoint,
    parse_clip,
    parse_culprit,
    parse_dropout,
    parse_keep,
    parse_mix,
    parse_policy,
    parse_profile,
    parse_quarantine,
    parse_recover,
    parse_rollback,
    parse_schedule,
    parse_weight_decay,
    setting_words,
    text_of,
)
from .command_kinds import (
    AddNote,
    AnyCommand,
    AverageCheckpoints,
    Chat,
    Command,
    Confirm,
    Decline,
    Evaluate,
    FindCulprits,
    GenerateSample,
    KeepPrompt,
    MeasureGradients,
    OneShotCommand,
    Pause,
    ProfileSteps,
    Propose,
    Quarantine,
    Recover,
    ResetLr,
    Resume,
    Rollback,
    RunSteps,
    SaveCheckpoint,
    ScaleLr,
    SetClip,
    SetDropout,
    SetLr,
    SetMix,
    SetPolicy,
    SetSchedule,
    SettingCommand,
    SetWeightDecay,
    SkipBatches,
    Stop,
    TrainingAction,
    TrainingCommand,
    lr_slip,
    proposal_name,
    undo_clip,
    undo_dropout,
    undo_lr,
    undo_mix,
    undo_policy,
    undo_quarantine,
    undo_schedule,
    undo_weight_decay,
)
from .settings import LearningRate, RunSettings
from .states import RunState

__all__ = [
    "COMMANDS", "START_AGAIN", "AddNote", "AnyCommand", "AverageCheckpoints", "Chat", "Command",
    "CommandError", "CommandSpec", "Confirm", "Decline", "Evaluate", "FindCulprits",
    "GenerateSample", "KeepPrompt", "MeasureGradients", "OneShotCommand", "Pause", "ProfileSteps",
    "Propose", "Quarantine", "Recover", "ResetLr", "Resume", "Rollback", "RunSteps",
    "SaveCheckpoint", "ScaleLr", "SetClip", "SetDropout", "SetLr", "SetMix", "SetPolicy",
    "SetSchedule", "SetWeightDecay", "SettingCommand", "SkipBatches", "Stop", "TrainingAction",
    "TrainingCommand", "command_words", "describe_command", "parse_command", "proposal_name",
    "recorded_command", "slip", "spec_of", "why_illegal",
]  # fmt: skip

START_AGAIN = "resume it, or start it again"
"""What a reader can do about a run that has ended, where the run's folder is not known."""


@dataclass(frozen=True, kw_only=True)
class CommandSpec:
    """Everything known about one kind of command: its form, its effect and when it is allowed."""

    verb: str
    """The words that begin the command, such as `lr scale`."""
    usage: str
    """The whole form, such as `lr scale FACTOR`."""
    help: str
    """One line for help screens and docs."""
    title: str = ""
    """Words for a dialog's title and a button, such as `roll back`; empty when the verb serves."""
    command: type[Command]
    """The struct that carries it."""
    parse: Callable[[list[str]], AnyCommand]
    """Makes the struct from the words after the verb; raises CommandError if they are invalid."""
    legal: frozenset[RunState]
    """States of the run in which it is accepted."""
    kind: Literal["setting", "one_shot"]
    """A setting changes `RunSettings` and nothing else; a one-shot command is carried out once."""
    effect: Literal["next", "here", "before"]
    """Where it takes effect: from the next step on, at the last finished step, or, for a pause,
    before the next step."""
    urgent: bool = False
    """Whether the step in progress is dropped for it instead of being finished first."""
    at_boundary: bool = False
    """Whether a setting waits for the end of the step in progress, whose data it would change."""
    versioned: bool = False
    """Whether it changes the learning rate, the clip, a policy, the quarantine or the mix, also as
    part of a recovery.

    The settings generation advances with it, so that a relative change made before is refused.
    """
    resumes: bool = False
    """Whether it ends a pause and a halt."""
    in_lineage: bool = False
    """Whether a model card lists it, because it changes how the weights are trained."""
    destructive: bool = False
    """Whether it discards work or ends the run, so that a person is asked first."""
    gravity: int = 0
    """How grave an anomaly is whose report recommends the command first; 0 for a harmless one.

    Of the first recommendations of several alarms, the most severe is the one to follow.
    """
    by_agents: Literal["alone", "confirmed", "never"] = "alone"
    """Whether an agent may send it within its limits, may only propose it, or neither."""
    undo: Callable[[AnyCommand, RunSettings], AnyCommand] | None = None
    """Makes the command that restores the settings before it; None when it cannot be undone."""
    slip: Callable[[AnyCommand, LearningRate], str | None] = lambda _command, _now: None
    """Returns why a command looks like a typing error, so that whoever typed it is asked first."""

    @property
    def name(self) -> str:
        """Words for a dialog's title and a button."""
        return self.title or self.verb

    def why_illegal(self, state: RunState, next_step: str = START_AGAIN) -> str | None:
        """Return why a run in a state does not accept this command, or None if it does.

        If the run has ended, the reason closes with `next_step`, what the reader can do then.
        """
        if state in self.legal:
            return None
        if state.ended:
            return f"the run is {state.value} and takes no commands; {next_step}"
        wanted = {"running", "paused"} | ({"halted"} if RunState.HALTED in self.legal else set())
        return f"{self.verb} works while {' or '.join(sorted(wanted))}; the run is {state.value}"


_S = RunState
_LIVE = frozenset({_S.RUNNING, _S.PAUSED, _S.EVALUATING, _S.SAVING, _S.ROLLING_BACK})
_LIVE_OR_HALTED = _LIVE | {_S.HALTED}
_ANY = _LIVE_OR_HALTED | {_S.STARTING, _S.STOPPING}


COMMANDS: tuple[CommandSpec, ...] = (
    CommandSpec(
        verb="lr scale", usage="lr scale FACTOR", title="change the LR",
        help="multiply the LR schedule by FACTOR",
        command=ScaleLr, parse=lambda a: ScaleLr(factor=number(one(a, "FACTOR"), "the factor")),
        legal=_LIVE, kind="setting", effect="next",
        versioned=True, in_lineage=True, undo=undo_lr, slip=lr_slip, gravity=6,
    ),
    CommandSpec(
        verb="lr set", usage="lr set VALUE", title="change the LR",
        help="scale the schedule so that the LR is VALUE now",
        command=SetLr, parse=lambda a: SetLr(value=number(one(a, "VALUE"), "the learning rate")),
        legal=_LIVE, kind="setting", effect="next",
        versioned=True, in_lineage=True, undo=undo_lr, slip=lr_slip, gravity=6,
    ),
    CommandSpec(
        verb="lr reset", usage="lr reset", title="reset the LR",
        help="return to the unscaled schedule",
        command=ResetLr, parse=bare(ResetLr), legal=_LIVE, kind="setting", effect="next",
        versioned=True, in_lineage=True, undo=undo_lr, gravity=6,
    ),
    CommandSpec(
        verb="clip", usage="clip VALUE | pNN | off", title="change the clip",
        help="set the max grad norm: a value, a percentile of recent norms, or off",
        command=SetClip, parse=parse_clip, legal=_LIVE, kind="setting", effect="next",
        versioned=True, in_lineage=True, undo=undo_clip, gravity=5,
    ),
    CommandSpec(
        verb="pause", usage="pause [release]",
        help="pause before the next micro-batch; release also frees the GPU's memory",
        command=Pause, parse=flagged("release", Pause(), Pause(release=True)),
        legal=_LIVE, kind="setting", effect="before", urgent=True, gravity=2,
    ),
    CommandSpec(
        verb="resume", usage="resume",
        help="resume training after a pause or a halt",
        command=Resume, parse=bare(Resume), legal=_LIVE_OR_HALTED,
        kind="setting", effect="next", resumes=True, by_agents="confirmed",
    ),
    CommandSpec(
        verb="run", usage="run N",
        help="train N more steps, then pause",
        command=RunSteps, parse=lambda a: RunSteps(steps=count(one(a, "N"), "N")),
        legal=_LIVE, kind="setting", effect="next", resumes=True, by_agents="confirmed",
    ),
    CommandSpec(
        verb="checkpoint", usage="checkpoint [pin] [NOTE]", title="write a checkpoint",
        help="write a complete checkpoint; a pinned one is never removed",
        command=SaveCheckpoint, parse=parse_checkpoint,
        legal=_LIVE, kind="one_shot", effect="here", gravity=1,
    ),
    CommandSpec(
        verb="rollback", usage="rollback CHECKPOINT|STEP|last [lr=F] [clip=V] [skip=N]",
        title="roll back", help="return exactly to a checkpoint and continue from it",
        command=Rollback, parse=parse_rollback, legal=_LIVE_OR_HALTED,
        kind="one_shot", effect="here", urgent=True,
        versioned=True, in_lineage=True, destructive=True, slip=lr_slip, gravity=8,
    ),
    CommandSpec(
        verb="recover", usage="recover [ID]",
        help="roll back to before an anomaly, skip its data, halve the LR, tighten the clip",
        command=Recover, parse=parse_recover, legal=_LIVE_OR_HALTED,
        kind="one_shot", effect="here", urgent=True,
        versioned=True, in_lineage=True, destructive=True, gravity=9,
    ),
    CommandSpec(
        verb="culprit", usage="culprit [ID]", title="find culprits",
        help="find the samples that cause an anomaly, by repeating its step without some of them",
        command=FindCulprits, parse=parse_culprit, legal=_LIVE_OR_HALTED,
        kind="one_shot", effect="here",
    ),
    CommandSpec(
        verb="gradients", usage="gradients",
        help="measure gradient and update norms by module in the next update",
        command=MeasureGradients, parse=bare(MeasureGradients),
        legal=_LIVE, kind="one_shot", effect="next",
    ),
    CommandSpec(
        verb="profile", usage="profile [N]",
        help="profile the next N steps: data, forward, backward, update, waiting",
        command=ProfileSteps, parse=parse_profile, legal=_LIVE, kind="one_shot", effect="next",
    ),
    CommandSpec(
        verb="eval", usage="eval", title="evaluate", help="evaluate now",
        command=Evaluate, parse=bare(Evaluate), legal=_LIVE, kind="one_shot", effect="here",
    ),
    CommandSpec(
        verb="soup", usage="soup N | CHECKPOINT CHECKPOINT…", title="average checkpoints",
        help="evaluate the mean of the last N or the named checkpoints; keep it if it is better",
        command=AverageCheckpoints, parse=parse_average,
        legal=_LIVE, kind="one_shot", effect="here",
    ),
    CommandSpec(
        verb="sample", usage="sample PROMPT",
        help="generate text with the current weights",
        command=GenerateSample, parse=lambda a: GenerateSample(prompt=text_of(a, "a PROMPT")),
        legal=_LIVE, kind="one_shot", effect="here",
    ),
    CommandSpec(
        verb="chat", usage="chat [system=TEXT] [temperature=T] [tokens=N] [at=CHECKPOINT] PROMPT",
        help="answer a prompt with the base (adapter off) and the current weights, or a checkpoint",
        command=Chat, parse=parse_chat, legal=_LIVE, kind="one_shot", effect="here",
    ),
    CommandSpec(
        verb="keep", usage="keep PROMPT | drop [PROMPT]", title="keep a prompt",
        help="generate from a prompt at each evaluation; drop ends that for a prompt, or for all",
        command=KeepPrompt, parse=parse_keep, legal=_LIVE_OR_HALTED, kind="setting", effect="next",
    ),
    CommandSpec(
        verb="skip", usage="skip N", title="skip data",
        help="skip the data of the next N steps",
        command=SkipBatches, parse=lambda a: SkipBatches(steps=count(one(a, "N"), "N")),
        legal=_LIVE, kind="one_shot", effect="next", in_lineage=True, gravity=4,
    ),
    CommandSpec(
        verb="note", usage="note TEXT", help="mark this step on the curves and in the journal",
        command=AddNote, parse=lambda a: AddNote(text=text_of(a, "a TEXT")),
        legal=_ANY, kind="one_shot", effect="here",
    ),
    CommandSpec(
        verb="policy", usage="policy nonfinite skip|halt|rollback | autopilot off|propose|act",
        title="change the policy",
        help="set what happens on a non-finite number, or what the autopilot does about an anomaly",
        command=SetPolicy, parse=parse_policy, legal=_ANY, kind="setting", effect="next",
        versioned=True, in_lineage=True, undo=undo_policy, gravity=3, by_agents="confirmed",
    ),
    CommandSpec(
        verb="quarantine", usage="quarantine ID… | lift [ID…]", title="change the quarantine",
        help="exclude samples from training permanently; lift readmits these, or all",
        command=Quarantine, parse=parse_quarantine, legal=_LIVE_OR_HALTED,
        kind="setting", effect="next", at_boundary=True,
        versioned=True, in_lineage=True, undo=undo_quarantine, gravity=4,
    ),
    CommandSpec(
        verb="mix", usage="mix NAME=WEIGHT… | reset", title="change the mix",
        help="mix the sources by these weights; reset returns to the configured ones",
        command=SetMix, parse=parse_mix, legal=_LIVE_OR_HALTED,
        kind="setting", effect="next", at_boundary=True,
        versioned=True, in_lineage=True, undo=undo_mix, by_agents="confirmed",
    ),
    CommandSpec(
        verb="weight_decay", usage="weight_decay VALUE | reset", title="change the weight decay",
        help="set the weight decay of the optimizer; reset returns to the configured one",
        command=SetWeightDecay, parse=parse_weight_decay, legal=_LIVE, kind="setting",
        effect="next", at_boundary=True,
        versioned=True, in_lineage=True, undo=undo_weight_decay, by_agents="confirmed",
    ),
    CommandSpec(
        verb="dropout", usage="dropout RATE | reset", title="change the dropout",
        help="set the dropout before the adapter; reset returns to the configured one",
        command=SetDropout, parse=parse_dropout, legal=_LIVE, kind="setting",
        effect="next", at_boundary=True,
        versioned=True, in_lineage=True, undo=undo_dropout, by_agents="confirmed",
    ),
    CommandSpec(
        verb="schedule", usage="schedule constant|linear|cosine [from=STEP] [at=RATE] | reset",
        title="change the schedule",
        help="give the rest of the LR schedule another shape; reset returns to the configured one",
        command=SetSchedule, parse=parse_schedule, legal=_LIVE, kind="setting",
        effect="next", at_boundary=True,
        versioned=True, in_lineage=True, undo=undo_schedule, by_agents="confirmed",
    ),
    CommandSpec(
        verb="stop", usage="stop [no-save]", title="stop and write a checkpoint",
        help="finish the step, write a checkpoint unless no-save is given, end the run",
        command=Stop, parse=flagged("no-save", Stop(), Stop(save=False)),
        legal=_ANY, kind="one_shot", effect="here", destructive=True, gravity=7,
    ),
    CommandSpec(
        verb="propose", usage="propose COMMAND",
        help="propose a command, which has no effect until a person confirms it",
        command=Propose, parse=lambda a: _parse_propose(a), slip=lambda c, now: _inner_slip(c, now),
        legal=_ANY, kind="one_shot", effect="here",
    ),
    CommandSpec(
        verb="confirm", usage="confirm PROPOSAL", title="confirm the proposal",
        help="send the command of an open proposal",
        command=Confirm, parse=lambda a: Confirm(proposal=one(a, "the name of a PROPOSAL")),
        legal=_ANY, kind="one_shot", effect="here", by_agents="never",
    ),
    CommandSpec(
        verb="decline", usage="decline PROPOSAL", title="decline the proposal",
        help="close an open proposal without effect",
        command=Decline, parse=lambda a: Decline(proposal=one(a, "the name of a PROPOSAL")),
        legal=_ANY, kind="one_shot", effect="here", by_agents="never",
    ),
)  # fmt: skip

_SPECS: dict[type[Command], CommandSpec] = {spec.command: spec for spec in COMMANDS}


def spec_of(command: AnyCommand) -> CommandSpec:
    """Return the entry of `COMMANDS` for a command."""
    return _SPECS[type(command)]


def slip(command: AnyCommand, now: LearningRate) -> str | None:
    """Return why a typed command looks like a typing error, or None if it does not.

    `now` is the learning rate in force.
    """
    return spec_of(command).slip(command, now)


def parse_command(text: str | list[str]) -> AnyCommand:
    """Parse a command as a person types it, given as one text or as its words.

    Raises:
        CommandError: the text is not a valid command; the message names the expected form.
    """
    try:
        words = shlex.split(text) if isinstance(text, str) else list(text)
    except ValueError as error:
        raise CommandError(
            f"cannot read {text!r}: {error}; close the quote, or put a backslash before each quote "
            "and each backslash that belongs to the text"
        ) from None
    for spec in sorted(COMMANDS, key=lambda s: -len(s.verb.split())):
        head = spec.verb.split()
        if words[: len(head)] == head:
            try:
                return spec.parse(words[len(head) :])
            except CommandError as error:
                raise CommandError(f"{spec.verb}: {error} (usage: {spec.usage})") from None
    known = ", ".join(spec.verb for spec in COMMANDS)
    raise CommandError(f"unknown command {' '.join(words)!r}; expected one of: {known}")


def _parse_propose(args: list[str]) -> Propose:
    if not args:
        raise CommandError("needs a COMMAND")
    command = parse_command(args)
    if not isinstance(command, TrainingCommand):
        raise CommandError(f"{spec_of(command).verb} cannot be proposed")
    return Propose(command=command)


def _inner_slip(command: AnyCommand, now: LearningRate) -> str | None:
    return slip(command.command, now) if isinstance(command, Propose) else None


def recorded_command(text: str) -> AnyCommand | None:
    """Parse the text of a command from a journal record; None if this version cannot parse it."""
    try:
        return parse_command(text)
    except CommandError:
        return None


def describe_command(command: AnyCommand) -> str:
    """Return the command as a person would type it; `parse_command` reads it back.

    A note or prompt is not quoted, so one with quotes or backslashes is not read back, and the
    earlier turns of a chat are left out.
    """
    if isinstance(command, Chat):
        return shlex.join([spec_of(command).verb, *chat_words(command, whole=False)])
    if isinstance(command, Propose):
        return f"{spec_of(command).verb} {describe_command(command.command)}"
    words = command_words(command)
    return shlex.join(words) if isinstance(command, Quarantine | SetMix) else " ".join(words)


def command_words(command: AnyCommand) -> list[str]:
    """Return the words of a command without quotes; `parse_command` reads every command back."""
    return [*spec_of(command).verb.split(), *_arguments(command)]


_FLAGS: dict[AnyCommand, str] = {Pause(release=True): "release", Stop(save=False): "no-save"}


def _arguments(command: AnyCommand) -> list[str]:
    match command:
        case SetClip(value=None, percentile=percentile):
            return ["off" if percentile is None else f"p{_word(percentile)}"]
        case SaveCheckpoint(pin=pin, note=note):
            return [word for word in ("pin" if pin else "", note) if word]
        case Rollback(checkpoint=name, lr_scale=lr, clip=clip, skip=skip):
            options = {"lr": lr, "clip": clip, "skip": skip or None}
            return [
                *([name] if name else []),
                *(f"{key}={_word(value)}" for key, value in options.items() if value is not None),
            ]
        case Pause() | Stop():
            return [_FLAGS[command]] if command in _FLAGS else []
        case _:
            return _plain_arguments(command)


def _plain_arguments(command: AnyCommand) -> list[str]:
    if isinstance(command, Propose):
        return command_words(command.command)
    if isinstance(command, WordedSetting):
        return setting_words(command)
    if isinstance(command, AverageCheckpoints):
        return list(command.checkpoints) or [str(command.last)]
    if isinstance(command, Chat):
        return chat_words(command)
    # The result of a benchmark and the steps of a variant are never typed.
    reported = ("result", "steps") if isinstance(command, AddNote) else ()
    names = (name for name in command.__struct_fields__ if name not in reported)
    values = (getattr(command, name) for name in names)
    return [_word(value) for value in values if value not in (None, "")]


def _word(value: str | float) -> str:
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def why_illegal(command: AnyCommand, state: RunState, next_step: str = START_AGAIN) -> str | None:
    """Return why a run in a state does not accept a command, or None when it does.

    If the run has ended, the reason closes with `next_step`, what the reader can do then.
    """
    return spec_of(command).why_illegal(state, next_step)
