"""The recovery recipe: the checkpoint to return to, the data to skip and the settings to change.

A recovery returns to the newest good checkpoint before the first warning, skips the data of the
incident, halves the learning rate, tightens the gradient clip and then watches some steps, the
probation. A checkpoint whose learning rate had just been raised is passed over for an older one.
The second attempt uses an earlier checkpoint if there is a good one, and a quarter of the learning
rate; a third attempt is refused. This module decides only; it does no I/O.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from ..protocol.commands import Rollback
from .anomaly import INSTABILITY, Alert
from .incidents import INCIDENT_STEPS
from .retention import RetainedCheckpoint, good_checkpoint

RECOVERABLE = INSTABILITY | {"collapse"}
"""Kinds of alerts that a recovery can help against."""
MAX_ATTEMPTS = 2
"""Recoveries for one incident; if two changes did not help, a person has to look."""
MAX_SKIP_STEPS = 500
"""Skipping more data than this to pass a bad stretch costs more than it saves."""
SKIP_BEYOND, SKIP_BEYOND_AGAIN = 20, 80
"""Steps of data skipped beyond the last bad one, in the first and in the second attempt.

Bad data come in stretches, of which the first alarm shows only the beginning. Stopping short of the
end wastes the whole recovery; skipping too far wastes a few batches. If the first attempt met more
bad data, the second one skips much more.
"""
RAISED, RAISED_STEPS = 1.5, 20
"""A learning rate raised by this factor before a checkpoint is the likely cause of an incident that
begins at most so many steps after that checkpoint; the weights saved there have suffered already.
"""
LR_FACTOR = 0.5
TIGHTER = 0.5
"""Factor on the clip in force where it is already at or below the usual gradient norms."""


class NoWayBack(ValueError):
    """A recovery is refused; the message says why and what to do instead."""


class Detour(msgspec.Struct, frozen=True):
    """Training data that a rollback skipped after returning to a step."""

    step: int
    skipped: int
    """Number of optimizer-step batches that were skipped."""


class RecoveryAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One planned or finished recovery: checkpoint, settings and skipped data."""

    anomaly: str
    checkpoint: str
    step: int
    """Step of the checkpoint."""
    lr_scale: float
    clip: float | None
    """New max grad norm; None leaves the setting as it is."""
    skip: int

    def rollback(self) -> Rollback:
        """Return the rollback command that makes this recovery."""
        return Rollback(
            checkpoint=self.checkpoint, lr_scale=self.lr_scale, clip=self.clip, skip=self.skip
        )

    def describe(self) -> str:
        """Return the rollback command as a person types it, with four significant digits."""
        clip = "" if self.clip is None else f" clip={self.clip:.4g}"
        skip = f" skip={self.skip}" if self.skip else ""
        return f"rollback {self.checkpoint} lr={self.lr_scale:.4g}{clip}{skip}"


class RecoveryForecast(msgspec.Struct, frozen=True, kw_only=True):
    """The effect that `recover` would have on an anomaly at this moment."""

    attempt: RecoveryAttempt | None = None
    """The planned recovery; None if it would be refused or does not apply to the anomaly."""
    refused: str = ""
    """Why a recovery would be refused; empty if it would not."""
    tried: int = 0
    """Recoveries already made in this incident."""


class Probation(msgspec.Struct, frozen=True, kw_only=True):
    """The steps after a recovery in which an alarm means that it failed."""

    attempt: RecoveryAttempt
    until_step: int

    @property
    def steps(self) -> int:
        """Return the number of steps of the probation."""
        return self.until_step - self.attempt.step


class RecoveryHistory(msgspec.Struct, kw_only=True):
    """The recoveries and the data skipped so far; a rollback does not undo this record."""

    attempts: list[RecoveryAttempt] = []
    """Recoveries of the present incident, oldest first."""
    detours: list[Detour] = []
    """Skipped data on the present timeline, oldest first."""
    probation: Probation | None = None

    def passed_over(self, step: int, *, saved: bool = False) -> int:
        """Return how many optimizer-step batches were skipped before a step.

        Args:
            step: the step.
            saved: leave out a detour that begins at this very step, because a checkpoint of the
                step was written before that detour.
        """
        return sum(
            d.skipped for d in self.detours if d.step < step or (d.step == step and not saved)
        )

    def went_back(self, to_step: int, skipped: int) -> None:
        """Record a rollback to a step that skipped `skipped` optimizer-step batches after it.

        Data skipped from that step on are forgotten, because the rollback has undone it. The
        probation of a recovery that began at another step ends.
        """
        self.detours = [d for d in self.detours if d.step < to_step]
        if skipped:
            self.detours.append(Detour(to_step, skipped))
        if self.probation and self.probation.attempt.step != to_step:
            self.probation = None

    def begin(self, attempt: RecoveryAttempt, probation_steps: int) -> None:
        """Record an attempt and start its probation of so many steps after its checkpoint."""
        self.attempts.append(attempt)
        until = attempt.step + probation_steps
        self.probation = Probation(attempt=attempt, until_step=until)

    def over(self) -> None:
        """End the incident: forget its attempts, and end the probation."""
        self.attempts, self.probation = [], None


class RecoveryContext(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the run that a recovery plan depends on."""

    step: int
    """The present step."""
    timeline: int
    lr_scale: float
    lr_scales: dict[str, float] = {}
    """LR scale each checkpoint was trained with, by name; the scale may have been raised since."""
    clip: float | None
    norm_high: float | None
    """95th percentile of the usual gradient norms."""
    refused_at: int = 0
    """Step of the newest refused update; its data count as bad like those of the anomaly."""


def incident(alerts: Iterable[Alert], anomaly: Alert) -> list[Alert]:
    """Return an anomaly and the alerts before it that belong to the same incident, oldest first.

    They threaten the weights. Which incident an alert belongs to was decided when it was raised.
    """
    earlier = [
        alert
        for alert in alerts
        if alert.incident == anomaly.incident != ""
        and alert.threatens
        and alert.step <= anomaly.step
        and alert.id != anomaly.id
    ]
    return [*sorted(earlier, key=lambda alert: alert.step), anomaly]


def anomaly_named(
    alerts: Iterable[Alert], name: str, announced: Mapping[str, str] | None = None
) -> Alert:
    """Return the newest alert that `recover NAME` means.

    Args:
        alerts: the alerts of the present timeline, oldest first.
        name: an alert's id, with or without the `-t<timeline>` it is announced with; empty for
            the newest alert that threatens the weights.
        announced: the ids under which open alerts were announced, by the ids of the alerts; an id
            of an earlier timeline does not mean an open alert of this one.

    Raises:
        NoWayBack: there is no such alert, or a recovery cannot help against its kind.
    """
    bare = re.sub(r"-t\d+$", "", name)
    for alert in reversed(list(alerts)):
        public = (announced or {}).get(alert.id)
        meant = name in (alert.id, public) or (public is None and alert.id == bare)
        if (alert.kind in RECOVERABLE and meant) if name else alert.threatens:
            return alert
    what = f"anomaly {name!r}" if name else "instability"
    raise NoWayBack(
        f"there was no {what} on this timeline to recover from; "
        "to roll back anyway: rollback CHECKPOINT"
    )


def plan_recovery(
    anomaly: Alert,
    alerts: Iterable[Alert],
    manifests: Sequence[RetainedCheckpoint],
    past: RecoveryHistory,
    now: RecoveryContext,
) -> RecoveryAttempt:
    """Plan the next attempt to recover from an anomaly.

    Args:
        anomaly: the alert to recover from.
        alerts: all alerts of the present timeline.
        manifests: complete checkpoints, oldest first.
        past: the attempts and detours so far.
        now: the present settings and gradient norms.

    Raises:
        NoWayBack: no attempt is left, or no good checkpoint is old enough.
    """
    if len(past.attempts) >= MAX_ATTEMPTS:
        tried = "; ".join(attempt.describe() for attempt in past.attempts)
        raise NoWayBack(
            f"{len(past.attempts)} recoveries did not help ({tried}): "
            "change the configuration or the data, or send a rollback yourself"
        )
    signals = incident(alerts, anomaly)
    target = _target(signals, manifests, [a.checkpoint for a in past.attempts], now)
    if target is None:
        raise NoWayBack(
            f"there is no good checkpoint before step {signals[0].step}, where the anomaly began: "
            "lower the learning rate (lr scale 0.5) or start a new run"
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
    now: RecoveryContext,
) -> RetainedCheckpoint | None:
    """Return the newest good checkpoint before the signals, if possible one that was not tried.

    One written shortly before the signals gives way to an older one with a much lower learning
    rate. With a tried one the learning rate is halved once more. None if there is none.
    """
    seen = set(tried)
    target = newest = good_checkpoint(manifests, signals, timeline=now.timeline, exclude=seen)
    while newest is not None and newest.step >= signals[0].step - RAISED_STEPS:
        seen.add(newest.name)
        newest = good_checkpoint(manifests, signals, timeline=now.timeline, exclude=seen)
        if target and newest and _was_raised(newest, target, now):
            target = newest
    return target or good_checkpoint(manifests, signals, timeline=now.timeline)


def _was_raised(older: RetainedCheckpoint, newer: RetainedCheckpoint, now: RecoveryContext) -> bool:
    """Whether the LR scale was raised between two checkpoints; False if one of them is unknown."""
    before, after = (now.lr_scales.get(one.name) for one in (older, newer))
    return before is not None and after is not None and after >= RAISED * before > 0


def _tighter(now: RecoveryContext) -> float | None:
    high = now.norm_high
    if high is None or not math.isfinite(high) or high <= 0:
        return None if now.clip is None else now.clip * TIGHTER
    return high if now.clip is None or high < now.clip else now.clip * TIGHTER


def _last_bad(anomaly: Alert, now: RecoveryContext) -> int:
    near = 0 <= now.refused_at - anomaly.step <= INCIDENT_STEPS
    return now.refused_at if near else anomaly.step


def _skip(bad_step: int, to_step: int, past: RecoveryHistory) -> int:
    """Return how many optimizer-step batches to skip after a checkpoint to pass the bad step.

    That is up to `SKIP_BEYOND` steps beyond it (`SKIP_BEYOND_AGAIN` in the second attempt), but
    from 0 to `MAX_SKIP_STEPS` in all.
    """
    bad_place = bad_step + past.passed_over(bad_step)
    place = to_step + past.passed_over(to_step, saved=True)
    beyond = SKIP_BEYOND_AGAIN if past.attempts else SKIP_BEYOND
    return min(max(bad_place - place + beyond, 0), MAX_SKIP_STEPS)
