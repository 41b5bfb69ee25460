"""What to do about an anomaly: likely causes and commands, best first."""

from __future__ import annotations

import math

import msgspec

from ..anomaly import ALARM, Alert
from ..recovery import MAX_SKIP_STEPS, SKIP_BEYOND, SKIP_BEYOND_AGAIN

RECIPE_KEY = "R"
SAFE_CLIP_SHARE = 0.5
CALM_CLIP_SHARE = 1.5
GIVE_UP_AFTER = 2
"""Rollbacks for the same incident; a third would repeat what failed twice."""


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """A recommended command."""

    command: str
    """As a person would type it."""
    key: str
    """In the app; `R` runs the first action of the newest report."""
    why: str


class AdviceContext(msgspec.Struct, frozen=True, kw_only=True):
    """What the recommendations depend on."""

    step: int
    checkpoint: str | None = None
    """Nearest good checkpoint before the first warning."""
    checkpoint_step: int | None = None
    lr_scale: float = 1.0
    norm_high: float | None = None
    """95 % percentile of recent gradient norms."""
    clip: float | None = None
    """Max grad norm in force; None is off."""
    rollbacks: int = 0
    """Done already because of this incident."""


CAUSES: dict[str, tuple[str, ...]] = {
    "spike": (
        "an outlier batch: garbled, duplicated or very long samples",
        "a learning rate too high for this state, when the loss does not come back",
    ),
    "divergence": (
        "learning rate too high",
        "warm-up too short",
        "a part of the data that does not fit the rest",
        "too little precision",
    ),
    "grad_explosion": (
        "an unstable state: the loss often follows some steps later",
        "a single odd batch, when it is over at once",
    ),
    "nonfinite": (
        "a number too large for the precision, which fp16 is prone to",
        "learning rate too high",
        "a batch without a single label to learn from",
    ),
    "plateau": (
        "it has learned what this data and rate can give: the usual end of a run",
        "learning rate near zero",
        "frozen or missing adapters",
        "a wrong chat template or labels",
    ),
    "dead": (
        "every label is masked",
        "no adapter is attached or nothing requires a gradient",
    ),
    "overfit": ("too many epochs over too little data",),
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
        "another process beside it",
        "slow data loading on that rank",
    ),
    "vram_leak": ("tensors kept alive from step to step", "fragmentation"),
}
"""Likely causes by kind, most likely first."""

ADVICE: dict[str, str] = {
    "spike": "Look at the samples of this and the previous batch before changing anything.",
    "divergence": "After going back, give a new start a longer warm-up.",
    "grad_explosion": "Do not rely on checkpoints written while this lasts.",
    "nonfinite": "Train in bf16 rather than fp16; look for records whose labels are all masked.",
    "plateau": "Check the number of trainable parameters and one record's labels.",
    "dead": "Nothing is being learned: fix the configuration before going on.",
    "overfit": "The checkpoint with the best evaluation is the one to keep.",
    "throughput_drop": "Compare the time spent on data with the time spent computing.",
    "collapse": "Raise the temperature or the number of candidates before going on.",
    "lr_misconfig": "Compare the learning rate with its schedule and the method's usual range.",
    "straggler": "The whole run is as slow as that rank: look at its device first.",
    "vram_leak": "A restart from a checkpoint gives the memory back.",
}
"""One sentence by kind that no command can say."""


def recommend(alert: Alert, situation: AdviceContext) -> list[Recommendation]:
    """Commands for one alert, best first."""
    match alert.kind:
        case "spike" | "divergence" | "nonfinite" | "collapse":
            return _recover(alert, situation)
        case "grad_explosion":
            return _calm(alert, situation)
        case "lr_misconfig":
            lowered = f"lr scale {situation.lr_scale * 0.1:.3g}"
            return [_first(lowered, "a tenth of it, at once"), _stop("check schedule and rate")]
        case "plateau":
            return _judge_plateau(situation)
        case _:
            return list(_FIXED.get(alert.kind, ()))


def _judge_plateau(now: AdviceContext) -> list[Recommendation]:
    """Held-out data, not a higher rate, says whether a flat loss is an end or a fault."""
    tripled = f"lr scale {now.lr_scale * 3:.3g}"
    return [
        _first("eval", "if the held-out loss no longer falls either, the run has what it can get"),
        Recommendation(command=tripled, key="l", why="if it has learned nothing at all so far"),
        _stop("to keep what there is, or to check data and adapters"),
    ]


def _recover(alert: Alert, now: AdviceContext) -> list[Recommendation]:
    if now.rollbacks >= GIVE_UP_AFTER:
        why = f"{now.rollbacks} rollbacks did not help: change the configuration or the data"
        return [_first("stop", why), _pause()]
    halved = f"{_calm_scale(now) * 0.5:.3g}"
    if now.checkpoint is None:
        why = "there is no good checkpoint to go back to"
        return [_first(f"lr scale {halved}", why), _pause()]
    recover = _first(f"recover {alert.id}", f"{_why_back(alert, now)}, then a probation")
    by_hand = "the same by hand, without the probation"
    actions = [recover, Recommendation(command=_rollback(now, halved), key="r", why=by_hand)]
    if alert.kind == "spike":
        actions.append(_pause("most single spikes come back by themselves within some steps"))
    if alert.kind != "spike" or alert.severity != ALARM:
        actions.append(_lower(f"lr scale {halved}", "stay here with half the learning rate"))
    if alert.kind == "nonfinite":
        why = "hold at once when it happens again"
        actions.append(Recommendation(command="policy nonfinite halt", key="P", why=why))
    return actions


def _calm_scale(now: AdviceContext) -> float:
    """The scale to lower: one above the schedule may itself be the trouble."""
    return min(now.lr_scale, 1.0)


def _rollback(now: AdviceContext, lr_scale: str) -> str:
    words = ["rollback", now.checkpoint or "last", f"lr={lr_scale}"]
    if now.rollbacks and now.norm_high is not None and now.norm_high > 0:
        words.append(f"clip={now.norm_high * SAFE_CLIP_SHARE:.3g}")
    if (skip := skip_count(now)) > 0:
        words.append(f"skip={skip}")
    return " ".join(words)


def skip_count(now: AdviceContext) -> int:
    """Steps of data to drop after going back, as the recovery does."""
    if now.checkpoint_step is None:
        return 0
    beyond = SKIP_BEYOND_AGAIN if now.rollbacks else SKIP_BEYOND
    return min(max(now.step - now.checkpoint_step, 0) + beyond, MAX_SKIP_STEPS)


def _why_back(alert: Alert, now: AdviceContext) -> str:
    again = ", with tighter clipping this time" if now.rollbacks else ""
    if alert.kind == "spike":
        return f"if the loss does not come back: before the first warning, past this data{again}"
    return f"to before the first warning, past this data, at half the learning rate{again}"


def _calm(alert: Alert, now: AdviceContext) -> list[Recommendation]:
    lower = _lower(f"lr scale {_calm_scale(now) * 0.7:.3g}", "a little less learning rate")
    clip = _calm_clip(alert, now)
    if clip is None:
        actions = [_first(lower.command, lower.why)]
    else:
        why = "above what is normal, and half of this norm at most"
        actions = [_first(f"clip {clip:.3g}", why), lower]
    if now.checkpoint is not None and alert.severity == ALARM:
        command = _rollback(now, f"{_calm_scale(now) * 0.5:.3g}")
        why = "if the loss follows"
        actions.append(Recommendation(command=command, key="r", why=why))
    return actions


def _calm_clip(alert: Alert, now: AdviceContext) -> float | None:
    """A max grad norm above what is normal; None where the one in force is tighter already.

    Never above half the norm that alarmed: explosions before it may have widened the normal range.
    """
    if now.norm_high is None or not math.isfinite(now.norm_high) or now.norm_high <= 0:
        return None
    clip = now.norm_high * CALM_CLIP_SHARE
    if alert.value is not None and math.isfinite(alert.value):
        clip = min(clip, alert.value / 2)
    return clip if now.clip is None or clip < now.clip else None


def _first(command: str, why: str) -> Recommendation:
    return Recommendation(command=command, key=RECIPE_KEY, why=why)


def _lower(command: str, why: str) -> Recommendation:
    return Recommendation(command=command, key="l", why=why)


def _pause(why: str = "hold while you look at the samples") -> Recommendation:
    return Recommendation(command="pause", key="space", why=why)


def _stop(why: str) -> Recommendation:
    return Recommendation(command="stop", key="x", why=why)


_FIXED: dict[str, tuple[Recommendation, ...]] = {
    "overfit": (
        _first("stop", "more steps make it worse; the best checkpoint stays"),
        Recommendation(command="eval", key="e", why="confirm with a fresh evaluation"),
    ),
    "straggler": (
        _first("profile 2", "where each rank's time goes, before changing anything"),
        _pause("look at that rank's device while training holds"),
    ),
    "dead": (_first("stop no-save", "nothing was learned that could be lost"),),
    "throughput_drop": (
        _first("profile 2", "where the time of a step goes now, before changing anything"),
        _pause("see whether the machine is free while training holds"),
    ),
    "vram_leak": (
        _first("checkpoint pin leak", "be safe before memory runs out"),
        _stop("then go on in a fresh process: fttui run --resume"),
    ),
}
