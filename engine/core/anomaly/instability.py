"""Sudden trouble: spikes of the loss, explosions of the gradient, numbers that are none."""

from __future__ import annotations

import math

import msgspec

from .alerts import ALARM, INFO, WATCH
from .channel import Reading, Signal, Way
from .finding import Finding
from .scale import Scale
from .trend import Trend
from .warmup import ColdStart

LOSS_WAYS = (
    Way(z=9, rise=math.log(1.2), tail=1.75),
    Way(z=16, rise=0.03, tail=1.75),
    Way(z=4.5, rise=math.log(2), tail=1.5),
    Way(z=1.5, rise=math.log(2.5), tail=1.4, records=300),
)
"""Plain spike; a smaller one in a very quiet run; twice the level in a noisy run; two and a half
times in any run that has been seen long enough, however noisy. The last two have to go half, or
two fifths, beyond what the run has shown.

The last one leaves the noise to the tail: of 300 records the third largest lies above two standard
deviations of any noise that has tails, so a z of its own matters only to runs without any, such as
those with two kinds of batch. With fewer records the tail is luck: from 100 on, noise of 0.5 gave
twice as many false alarms as from 300 on.

Why 1.75 times the tail: with power-law tails of exponent 3, as logs of small batches have, a record
beats c times the third largest of the last n with a chance of 3 / (n c³): 1.75 leaves a fifth of
the alarms of 1."""
GRAD_WAYS = (
    Way(z=6, rise=math.log(6), tail=1.15),
    Way(z=3, rise=math.log(10), tail=1.15),
)
"""Gradient norms are noisier than losses and do harm later: six times the level in a quiet run,
ten times in any."""
GRAD_WARMUP_RECORDS = 20
"""The first gradients of an adapter that starts at zero tell nothing about the later ones."""
SUPPORT_SHARE = 0.6
SUPPORT_FACTOR = 0.7
"""With the gradient at 60 % of its own limit the loss needs 30 % less to alarm."""
CLIMB_RECORDS, CLIMB_HITS = 5, 3
CLIMB_RISE, CLIMB_SD = math.log(3), 2.5
CALM_RISE = math.log(1.2)
"""Below that a loss is called normal."""
BAD_GRAD_RECORDS = 10
COLLAPSE_UNITS = 50.0
"""Of the loss scale, so 5 % of the first losses: from there nothing falls to exactly 0 at once."""


class Instability(msgspec.Struct):
    """Watches loss and gradient norm together."""

    scale: Scale = msgspec.field(default_factory=Scale)
    loss: Signal = msgspec.field(default_factory=Signal)
    grad: Signal = msgspec.field(default_factory=Signal)
    trend: Trend = msgspec.field(default_factory=Trend)
    start: ColdStart = msgspec.field(default_factory=ColdStart)
    climbing: list[bool] = []
    """Of the last records: was the gradient well above its level?"""
    norms: list[float] = []
    """The last ones: a climb ends above where it began, what dies down does not."""
    bad_grads: list[bool] = []
    """Of the last records: was the gradient norm not finite?"""
    zero_losses: int = 0
    broken: bool = False
    """The last record was not finite."""

    def update(self, loss: float | None, norm: float | None, strictness: float) -> list[Finding]:
        """Judge and learn one record."""
        bad = self._nonfinite(loss, norm)
        if bad is not None and bad.severity == ALARM:
            return [] if self.broken else self._break(bad)
        self.broken = False
        found = [bad] if bad is not None else []
        share, grad = self._grad(norm, strictness)
        if loss is not None and math.isfinite(loss):
            found += self._loss(loss, share, strictness)
            if grad and grad[0].severity == WATCH:
                grad = self._with_loss(grad[0], shaken=bool(found))
        return found + grad

    def _with_loss(self, climb: Finding, *, shaken: bool) -> list[Finding]:
        """An early warning in the light of the loss; none beside what the loss itself says."""
        if shaken:
            return []
        x, recent = self.loss.last, self.loss.recent
        normal = x is None or not len(recent) or x - recent.median() < CALM_RISE
        tail = f"{climb.tail}, loss still normal" if normal else climb.tail
        return [msgspec.structs.replace(climb, tail=tail)]

    def _break(self, bad: Finding) -> list[Finding]:
        self.broken = True
        return [bad]

    def _nonfinite(self, loss: float | None, norm: float | None) -> Finding | None:
        grad_bad = norm is not None and not math.isfinite(norm)
        self.bad_grads.append(grad_bad)
        del self.bad_grads[:-BAD_GRAD_RECORDS]
        if loss is not None and not math.isfinite(loss):
            return Finding(kind="nonfinite", severity=ALARM, what="loss", value=loss)
        if found := self._collapse(loss, grad_bad):
            return found
        if not grad_bad or norm is None:
            return None
        many = sum(self.bad_grads)
        early = self.grad.count < GRAD_WARMUP_RECORDS
        # A loss scaler that looks for its scale overflows a few times at first; that is its job.
        severity = ALARM if many >= (6 if early else 2) else INFO
        return Finding(kind="nonfinite", severity=severity, what="grad norm", value=norm)

    def _collapse(self, loss: float | None, grad_bad: bool) -> Finding | None:
        self.zero_losses = self.zero_losses + 1 if loss == 0.0 else 0
        if not self.zero_losses or self.scale.unit is None or self.scale.signed:
            return None
        level = self.loss_level()
        far = level is not None and level > COLLAPSE_UNITS * self.scale.unit
        if far and (grad_bad or self.zero_losses == 2):
            tail = "exactly 0: a number format ran over"
            return Finding(
                kind="nonfinite", severity=ALARM, what="loss", value=0.0, level=level, tail=tail
            )
        return None

    def _grad(self, norm: float | None, strictness: float) -> tuple[float, list[Finding]]:
        if norm is None or not math.isfinite(norm) or norm <= 0:
            return 0.0, []
        y = math.log(norm)
        reading = self.grad.read(y) if self.grad.count >= GRAD_WARMUP_RECORDS else None
        share, found = 0.0, []
        if reading is not None:
            if reading.residual > 0:
                share = reading.residual / reading.limit(GRAD_WAYS, strictness)
            found = self._judge_grad(norm, reading, share, strictness)
        self.grad.learn(y, reading, alarmed=bool(found))
        return share, found

    def _judge_grad(
        self, norm: float, reading: Reading, share: float, strictness: float
    ) -> list[Finding]:
        level = math.exp(reading.level)
        climb = reading.residual > max(CLIMB_RISE, CLIMB_SD * reading.sd) * strictness
        self.climbing.append(climb)
        del self.climbing[:-CLIMB_RECORDS]
        self.norms.append(norm)
        del self.norms[: -1 - CLIMB_RECORDS]
        if self.grad.quiet:
            return []
        severity, tail = ALARM, ""
        if share <= 1:
            falls = norm <= self.norms[0]
            if not climb or falls or sum(self.climbing) < CLIMB_HITS:
                return []
            severity, tail = WATCH, "and climbing"
        return [
            Finding(
                kind="grad_explosion",
                severity=severity,
                what="grad norm",
                value=norm,
                level=level,
                z=reading.z,
                tail=tail,
            )
        ]

    def _loss(self, loss: float, grad_share: float, strictness: float) -> list[Finding]:
        found = []
        if (best := self.start.update(loss)) is not None:
            found.append(_loss_finding("divergence", loss, best, None))
        fresh = [self.scale.to(value) for value in self.scale.take(loss)]
        if not fresh:
            return found
        if len(fresh) > 1:
            self._settle(fresh[:-1])
        return self._judge_loss(loss, fresh[-1], grad_share, strictness) + found

    def _settle(self, values: list[float]) -> None:
        """The scale is known now, or another one than before: learn what came earlier."""
        self.loss.relearn()
        self.trend.relearn()
        for x in values:
            self.loss.learn(x, None)
            self.trend.take(x)

    def _judge_loss(
        self, loss: float, x: float, grad_share: float, strictness: float
    ) -> list[Finding]:
        reading = self.loss.read(x)
        found = []
        spike = reading is not None and self._is_spike(x, reading, grad_share, strictness)
        if reading is not None and spike:
            found.append(_loss_finding("spike", loss, self.scale.back(reading.level), reading.z))
        lift = self.trend.update(x, None if reading is None else reading.sd, strictness)
        if lift is not None:
            level = self.scale.back(lift.level)
            now = self.scale.back(lift.level + lift.size)
            found.append(_loss_finding("divergence", now, level, lift.size / lift.sd))
        self.loss.learn(x, reading, alarmed=spike)
        return found

    def _is_spike(self, x: float, reading: Reading, grad_share: float, strictness: float) -> bool:
        support = SUPPORT_FACTOR if grad_share > SUPPORT_SHARE else 1.0
        if reading.residual <= 0 or self.loss.quiet or not self.loss.rises(x):
            return False
        return reading.residual > support * reading.limit(LOSS_WAYS, strictness)

    def usual_up_to(self, strictness: float) -> float | None:
        """The loss beyond which a record may be a spike, if the gradient supports it.

        None while any loss is fine.
        """
        reading = None if self.scale.unit is None else self.loss.read(0.0)
        if reading is None:
            return None
        limit = SUPPORT_FACTOR * reading.limit(LOSS_WAYS, strictness)
        try:
            return self.scale.back(reading.level + limit)
        except OverflowError:
            return None

    def loss_level(self) -> float | None:
        """The usual loss at present; None while unknown."""
        return self.scale.back(self.loss.recent.median()) if len(self.loss.recent) else None

    def relearn(self) -> None:
        """Levels start anew; noise and tails stay known."""
        self.loss.relearn()
        self.grad.relearn()
        self.trend.relearn()


def _loss_finding(kind: str, value: float, level: float, z: float | None) -> Finding:
    return Finding(kind=kind, severity=ALARM, what="loss", value=value, level=level, z=z)
