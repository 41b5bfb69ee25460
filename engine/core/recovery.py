"""The recovery recipe: where to go back to, what to drop, what to change. Pure.

Back to the good checkpoint before the first watch signal, past the data of the incident, at half
the learning rate, under a tighter clip; then a probation. What failed once is not repeated: the
second attempt goes to an earlier checkpoint or to a quarter of the rate, a third is refused.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

import msgspec

from .anomaly import INFO, INSTABILITY, Alert
from .retention import RetainedCheckpoint, good_checkpoint

MAX_ATTEMPTS = 2
"""For one incident; what two changes did not cure needs a person."""
MAX_SKIP_STEPS = 500
"""Dropping more data than this to pass a bad spot costs more than it saves."""
SKIP_BEYOND, SKIP_BEYOND_AGAIN = 20, 80
"""Steps of data dropped past the bad one. Bad data come in stretches, of which the first alarm
knows only the beginning: stopping short of their end costs the whole recovery, going past it a few
batches. Where the first attempt still met more of it, the second passes much more."""
LR_FACTOR = 0.5
TIGHTER = 0.5
"""Of the clip in force, where that is below the usual norms already."""
INCIDENT_STEPS = 50
"""Signals this close to each other belong to one incident."""


class NoWayBack(ValueError):
    """A recovery that is refused; the message says why and what can be done."""


class Detour(msgspec.Struct, frozen=True):
    """Data left out: from a step on, this many more steps' batches were passed over."""

    step: int
    skipped: int


class RecoveryAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One recovery."""

    anomaly: str
    checkpoint: str
    step: int
    lr_scale: float
    clip: float | None
    skip: int

    def describe(self) -> str:
        """As a person would type it."""
        clip = "" if self.clip is None else f" clip={self.clip:.4g}"
        skip = f" skip={self.skip}" if self.skip else ""
        return f"rollback {self.checkpoint} lr={self.lr_scale:.4g}{clip}{skip}"


class Probation(msgspec.Struct, frozen=True, kw_only=True):
    """The steps after a recovery in which it has to prove itself."""

    attempt: RecoveryAttempt
    until_step: int

    @property
    def steps(self) -> int:
        """Its length."""
        return self.until_step - self.attempt.step


class RecoveryHistory(msgspec.Struct, kw_only=True):
    """What was tried so far; a rollback does not undo it."""

    attempts: list[RecoveryAttempt] = []
    """Of the present incident, oldest first."""
    detours: list[Detour] = []
    """Of the present timeline, oldest first."""
    probation: Probation | None = None

    def passed_over(self, step: int, *, saved: bool = False) -> int:
        """Batches left out before a step; `saved`: as a checkpoint written there has it."""
        return sum(
            d.skipped for d in self.detours if d.step < step or (d.step == step and not saved)
        )

    def went_back(self, to_step: int, skipped: int) -> None:
        """Any rollback: later detours are undone, its own begins."""
        self.detours = [d for d in self.detours if d.step < to_step]
        if skipped:
            self.detours.append(Detour(to_step, skipped))
        if self.probation and self.probation.attempt.step != to_step:
            self.probation = None

    def begin(self, attempt: RecoveryAttempt, probation_steps: int) -> None:
        """A recovery is under way."""
        self.attempts.append(attempt)
        until = attempt.step + probation_steps
        self.probation = Probation(attempt=attempt, until_step=until)

    def over(self) -> None:
        """The incident is: what was tried because of it no longer counts."""
        self.attempts, self.probation = [], None


class RecoveryContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a recovery depends on."""

    step: int
    """Now."""
    timeline: int
    lr_scale: float
    lr_scales: dict[str, float] = {}
    """By checkpoint: the scale it was trained with, which a raise since then may have left."""
    clip: float | None
    norm_high: float | None
    """95 % percentile of usual gradient norms."""
    refused_at: int = 0
    """The last step whose update was refused: its data are as bad as the first one's."""


def incident(alerts: Iterable[Alert], anomaly: Alert) -> list[Alert]:
    """The signals that belong to an anomaly: itself and what warned of it, oldest first."""
    found = [anomaly]
    for alert in sorted(alerts, key=lambda a: -a.step):
        grave = alert.kind in INSTABILITY and alert.severity != INFO
        near = 0 <= found[-1].step - alert.step <= INCIDENT_STEPS
        if grave and near and alert.id != anomaly.id:
            found.append(alert)
    return found[::-1]


def plan_recovery(
    anomaly: Alert,
    alerts: Iterable[Alert],
    manifests: Sequence[RetainedCheckpoint],
    past: RecoveryHistory,
    now: RecoveryContext,
) -> RecoveryAttempt:
    """The next attempt to recover from an anomaly.

    Raises:
        NoWayBack: with the reason.
    """
    if len(past.attempts) >= MAX_ATTEMPTS:
        tried = "; ".join(attempt.describe() for attempt in past.attempts)
        raise NoWayBack(
            f"{len(past.attempts)} recoveries did not help ({tried}): "
            "change the configuration or the data, or use rollback by hand"
        )
    signals = incident(alerts, anomaly)
    target = _target(signals, manifests, [a.checkpoint for a in past.attempts], now.timeline)
    if target is None:
        raise NoWayBack(
            f"there is no good checkpoint before step {signals[0].step}, the first sign of it: "
            "lower the rate (lr scale 0.5) or start anew"
        )
    saved = now.lr_scales.get(target.name, now.lr_scale)
    failed = [a.lr_scale for a in past.attempts if a.checkpoint == target.name]
    return RecoveryAttempt(
        anomaly=anomaly.id,
        checkpoint=target.name,
        step=target.step,
        lr_scale=min(now.lr_scale, saved, *failed) * LR_FACTOR,
        clip=_tighter(now),
        skip=_skip(_last_bad(anomaly, now), target.step, past),
    )


def _target(
    signals: list[Alert],
    manifests: Sequence[RetainedCheckpoint],
    tried: Collection[str],
    timeline: int,
) -> RetainedCheckpoint | None:
    """An untried checkpoint; else, with the rate halved once more, a tried one."""
    fresh = good_checkpoint(manifests, signals, timeline=timeline, exclude=tried)
    return fresh or good_checkpoint(manifests, signals, timeline=timeline)


def _tighter(now: RecoveryContext) -> float | None:
    high = now.norm_high
    if high is None or not math.isfinite(high) or high <= 0:
        return None if now.clip is None else now.clip * TIGHTER
    return high if now.clip is None or high < now.clip else now.clip * TIGHTER


def _last_bad(anomaly: Alert, now: RecoveryContext) -> int:
    near = 0 <= now.refused_at - anomaly.step <= INCIDENT_STEPS
    return now.refused_at if near else anomaly.step


def _skip(bad_step: int, to_step: int, past: RecoveryHistory) -> int:
    """From the checkpoint's place in the data to past the bad one."""
    bad_place = bad_step + past.passed_over(bad_step)
    place = to_step + past.passed_over(to_step, saved=True)
    beyond = SKIP_BEYOND_AGAIN if past.attempts else SKIP_BEYOND
    return min(max(bad_place - place + beyond, 0), MAX_SKIP_STEPS)
