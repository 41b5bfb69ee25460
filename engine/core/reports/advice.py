"""Recommended commands for an anomaly, best first, and the texts of its likely causes.

A report carries commands as they are typed for `fttui ctl`, each with what it will do. It names no
keys of the app, because users can rebind them; the app adds its keys when it shows a report.
"""

from __future__ import annotations

import math

import msgspec

from ...protocol.commands import AnyCommand, recorded_command
from ..anomaly import ALARM, Alert
from ..recovery import MAX_ATTEMPTS, RecoveryAttempt, RecoveryForecast

STAY_LR_FACTOR, CALM_LR_FACTOR = 0.5, 0.7
"""Factors on the learning rate that are recommended for continuing without a rollback."""
PLATEAU_LOWER, PLATEAU_HIGHER = 1 / 3, 2.0
"""Factors on the learning rate that are recommended at a plateau."""
CALM_CLIP_SHARE = 1.5
"""The recommended clip over the upper end of the usual gradient norms."""


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """A recommended command and what it will do."""

    command: str
    """The command as typed for `fttui ctl`."""
    why: str
    """What it will do, and when to send it, in whole sentences."""

    @property
    def typed(self) -> AnyCommand | None:
        """The command; None in a report of another version that has commands of its own."""
        return recorded_command(self.command)


class LrRise(msgspec.Struct, frozen=True, kw_only=True):
    """A rise of the learning rate by a command shortly before an alert."""

    step: int
    command: str
    """The command, such as `lr scale 50`."""
    before: float
    """The LR scale before it."""


class AdviceContext(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the run that the recommendations depend on."""

    lr_scale: float = 1.0
    lr_rise: LrRise | None = None
    """The newest rise of the learning rate, if it was shortly before the alert."""
    norm_high: float | None = None
    """95th percentile of recent gradient norms."""
    clip: float | None = None
    """Max grad norm in force; None is off."""
    rollbacks: int = 0
    """Rollbacks already made because of this incident, by hand or by `recover`."""
    recovery: RecoveryForecast = RecoveryForecast()
    """What `recover` would do about this alert."""


CAUSES: dict[str, tuple[str, ...]] = {
    "spike": (
        "an outlier batch: garbled, duplicated or very long samples",
        "a learning rate too high for this state, if the loss does not return to its usual level",
    ),
    "divergence": (
        "learning rate too high",
        "warm-up too short",
        "a part of the data that is unlike the rest",
        "numerical precision too low",
    ),
    "grad_explosion": (
        "an unstable state: the loss often follows some steps later",
        "a single odd batch, if the norm is back at once",
        "a learning rate too high for this state",
    ),
    "nonfinite": (
        "an overflow of the number format, which is common in fp16",
        "learning rate too high",
        "a batch in which every label is masked",
    ),
    "plateau": (
        "the model has learned what it can from this data: the usual end of a run",
        "learning rate near zero",
        "frozen or missing adapters",
        "a wrong chat template or wrong labels",
    ),
    "dead": (
        "every label is masked",
        "no adapter is attached, or no parameter requires a gradient",
    ),
    "overfit": ("too many epochs over too little data", "learning rate too high"),
    "forgetting": (
        "learning rate too high",
        "too many steps on data that is unlike the general texts",
        "a higher adapter rank, or more trained modules, than the task needs",
    ),
    "throughput_drop": (
        "another process on this machine",
        "a hot, throttled device",
        "slow data loading",
    ),
    "collapse": (
        "a temperature too low or a learning rate too high",
        "too few or too easy negatives",
        "negatives that mean the same as their positive",
    ),
    "lr_misconfig": (
        "learning rate too high from the start, or a warm-up too short",
        "a schedule shorter than the run",
    ),
    "straggler": (
        "a hot or throttled device on that rank",
        "another process on that rank's machine",
        "slow data loading on that rank",
    ),
    "vram_leak": ("tensors kept alive from step to step", "memory fragmentation"),
    "unstable": (
        "a learning rate at the edge of stability: the run leaves its course and comes back",
        "odd batches that come again and again: garbled, duplicated or very long samples",
    ),
}
"""Likely causes by kind of alert, most likely first."""

ADVICE: dict[str, str] = {
    "spike": "Look at the samples of this and the previous batch before you change anything.",
    "divergence": "If you start a new run later, use a longer warm-up.",
    "grad_explosion": "Do not rely on checkpoints written while this lasts.",
    "nonfinite": "Train in bf16 rather than fp16; look for records whose labels are all masked.",
    "plateau": (
        "Check the number of trainable parameters, and the labels of one record "
        "(fttui check CONFIG --show 1)."
    ),
    "dead": "The model learns nothing: fix the configuration before you continue.",
    "overfit": "Keep the checkpoint with the best evaluation.",
    "forgetting": "Mix general data into the training data, or train less of the model.",
    "throughput_drop": "Compare the time spent on data with the time spent computing.",
    "collapse": "Raise the temperature or the number of candidates before you continue.",
    "lr_misconfig": "Compare the learning rate with its schedule and the method's usual range.",
    "straggler": "The whole run is as slow as that rank: look at its device first.",
    "vram_leak": "A restart from a checkpoint frees the memory.",
    "unstable": "This peak is no larger than those that the run has come back from so far.",
}
"""One sentence by kind of alert, for what no command can do."""


def recommend(alert: Alert, now: AdviceContext) -> list[Recommendation]:
    """Return the recommended commands for one alert, best first.

    The list is empty if an odd record explains the alert, and for kinds against which no command
    helps.
    """
    if alert.explained_by:
        return []
    match alert.kind:
        case "spike" | "divergence" | "nonfinite" | "collapse":
            return _recover(alert, now)
        case "grad_explosion" | "unstable" as kind:
            return [_slower(now)] if kind == "unstable" else _calm(alert, now)
        case "lr_misconfig":
            why = "Lowers the learning rate to a tenth from the next step on."
            lowered = _action(f"lr scale {now.lr_scale * 0.1:.3g}", why)
            why = "Saves and ends the run, if the schedule or the rate has to be corrected."
            return [lowered, _action("stop", why)]
        case "plateau":
            return _after_plateau(now)
        case _:
            return list(_FIXED.get(alert.kind, ()))


def _action(command: str, why: str) -> Recommendation:
    return Recommendation(command=command, why=why)


def _after_plateau(now: AdviceContext) -> list[Recommendation]:
    """Return commands, first an evaluation, which shows whether the run has converged.

    A loss that stays on one level may need a lower rate, which averages out the noise of batches,
    or a higher one, if nothing was learned; a doubled rate is still far from a typing error.
    """
    lower, higher = now.lr_scale * PLATEAU_LOWER, now.lr_scale * PLATEAU_HIGHER
    return [
        _action(
            "eval",
            "Evaluates on the held-out data and continues. If that loss is flat too, the run has "
            "learned what it can.",
        ),
        _action(
            f"lr scale {lower:.3g}",
            "Lowers the learning rate to a third. Send it if the loss has fallen before and now "
            "varies about one level.",
        ),
        _action(
            f"lr scale {higher:.3g}",
            "Doubles the learning rate. Send it only if the run has learned nothing so far.",
        ),
        _action("stop", "Saves and ends the run, to keep the result or to check the data."),
    ]


def _recover(alert: Alert, now: AdviceContext) -> list[Recommendation]:
    tried = max(now.rollbacks, now.recovery.tried)
    if tried >= MAX_ATTEMPTS:
        why = (
            f"Saves and ends the run. {tried} rollbacks did not help, so the configuration or the "
            "data has to change."
        )
        return [_action("stop", why), _PAUSE_TO_LOOK]
    scale = _stay_scale(now) * STAY_LR_FACTOR
    lower = f"lr scale {scale:.3g}"
    attempt = now.recovery.attempt
    if attempt is None:
        why = (
            f"Sets the learning rate to {scale:.3g} × its schedule and continues. There is no good "
            "checkpoint to return to."
        )
        return [_action(lower, why), _PAUSE_TO_LOOK]
    actions = [
        _action(f"recover {alert.id}", _why_recover(alert, attempt)),
        _action(
            attempt.describe(),
            "Does the same at once, without the probation.",
        ),
    ]
    if alert.kind == "spike":
        actions.append(
            _action(
                "pause",
                "Pauses training while you look. Most single spikes recover within some steps.",
            )
        )
    if alert.kind != "spike" or alert.severity != ALARM:
        why = f"Sets the learning rate to {scale:.3g} × its schedule and continues from here."
        actions.append(_action(lower, why))
    if alert.kind == "nonfinite":
        why = "Halts training the next time, instead of skipping the update and continuing."
        actions.append(_action("policy nonfinite halt", why))
    return actions


def _why_recover(alert: Alert, attempt: RecoveryAttempt) -> str:
    lost = max(alert.step - attempt.step, 0)
    clip = "" if attempt.clip is None else f" and the gradient clip to {attempt.clip:.4g}"
    skips = f", skips the data of {attempt.skip} steps" if attempt.skip else ""
    found = (
        f"Rolls back {lost} steps to {attempt.checkpoint}{skips}, and sets the learning rate to "
        f"{attempt.lr_scale:.4g} × its schedule{clip}. The next steps are a probation."
    )
    if alert.kind != "spike":
        return found
    return f"{found} Send it if the loss does not return to its usual level."


def _stay_scale(now: AdviceContext) -> float:
    """Return the LR scale to lower: at most 1, because a higher one may itself be the cause."""
    return min(now.lr_scale, 1.0)


def _lower(now: AdviceContext, factor: float, when: str = "") -> Recommendation:
    scale = _stay_scale(now) * factor
    why = f"Sets the learning rate to {scale:.3g} × its schedule and continues. {when}"
    return _action(f"lr scale {scale:.3g}", why.rstrip())


def _slower(now: AdviceContext) -> Recommendation:
    """Return a lower learning rate, for a run whose peaks recur."""
    return _lower(now, CALM_LR_FACTOR, "Send it if the peaks cost more than a slower run does.")


def _undo_rise(alert: Alert, now: AdviceContext, rise: LrRise) -> list[Recommendation]:
    """Return the commands against gradients that explode after a rise of the learning rate.

    The weights of the steps since then have suffered already, so that a lower rate alone does not
    bring the loss back; an alarm calls for a recovery first.
    """
    since = f"after `{rise.command}` at step {rise.step}"
    lower = _action(
        f"lr scale {rise.before:.3g}",
        f"Sets the learning rate back to {rise.before:.3g} × its schedule, which it had before "
        f"`{rise.command}` at step {rise.step}, and continues with the present weights.",
    )
    attempt = now.recovery.attempt
    if attempt is None:
        return [lower]
    recover = [
        _action(f"recover {alert.id}", f"{_why_recover(alert, attempt)} This began {since}."),
        _action(attempt.describe(), "Does the same at once, without the probation."),
    ]
    return [*recover, lower] if alert.severity == ALARM else [lower, *recover]


def _calm(alert: Alert, now: AdviceContext) -> list[Recommendation]:
    if now.lr_rise is not None and now.lr_rise.before < now.lr_scale:
        return _undo_rise(alert, now, now.lr_rise)
    lower = _lower(now, CALM_LR_FACTOR)
    clip = _calm_clip(alert, now)
    actions = [lower]
    if clip is not None:
        why = (
            "Limits the gradient norm from the next step on, above its usual range and to at most "
            "half of this one."
        )
        actions = [_action(f"clip {clip:.3g}", why), lower]
    attempt = now.recovery.attempt
    if attempt is not None and alert.severity == ALARM:
        lost = max(alert.step - attempt.step, 0)
        why = f"Rolls back {lost} steps. Send it if the loss rises too."
        actions.append(_action(attempt.describe(), why))
    return actions


def _calm_clip(alert: Alert, now: AdviceContext) -> float | None:
    """Return a max grad norm above the usual norms.

    None if the one in force is tighter, or the usual norms are not known.

    It is at most half of the norm that raised the alert, because explosions before it may have
    widened the range of usual norms.
    """
    if now.norm_high is None or not math.isfinite(now.norm_high) or now.norm_high <= 0:
        return None
    clip = now.norm_high * CALM_CLIP_SHARE
    if alert.value is not None and math.isfinite(alert.value):
        clip = min(clip, alert.value / 2)
    return clip if now.clip is None or clip < now.clip else None


_PAUSE_TO_LOOK = _action("pause", "Pauses training while you look at the samples.")

_FIXED: dict[str, tuple[Recommendation, ...]] = {
    "overfit": (
        _action(
            "stop", "Saves and ends the run. More steps make it worse; the best checkpoint is kept."
        ),
        _action("eval", "Checks this with a new evaluation, and continues."),
    ),
    "forgetting": (
        _action(
            "lr scale 0.5",
            "Sets the learning rate to half of its schedule. This usually stops the rise; the next "
            "evaluations show whether it did.",
        ),
        _action(
            "stop", "Saves and ends the run. An earlier checkpoint has forgotten less of the base."
        ),
    ),
    "straggler": (
        _action(
            "profile 2",
            "Profiles rank 0 and writes a trace of every rank. It changes nothing.",
        ),
        _action("pause", "Pauses training while you look at that rank's device."),
    ),
    "dead": (
        _action("stop no-save", "Ends the run at once. Nothing was learned that could be lost."),
    ),
    "throughput_drop": (
        _action("profile 2", "Shows where the time of two steps goes. It changes nothing."),
        _action("pause", "Pauses training while you look for other processes on the machine."),
    ),
    "vram_leak": (
        _action("checkpoint pin leak", "Saves the run before memory runs out."),
        _action("stop", "Saves and ends the run. `fttui run --resume` continues in a new process."),
    ),
}
