"""Detection of instability: loss spikes, divergence, gradient explosions, non-finite values."""

from __future__ import annotations

import math

import msgspec

from .alerts import ALARM, INFO, WATCH, Finding
from .channel import Reading, Signal, Way
from .scale import Scale
from .trend import Trend
from .warmup import ColdStart

LOSS_WAYS = (
    Way(z=9, rise=math.log(1.2), tail=1.75),
    Way(z=16, rise=0.03, tail=1.75),
    Way(z=4.5, rise=math.log(2), tail=1.5),
    Way(z=1.5, rise=math.log(2.5), tail=1.4, records=300),
)
"""Rules for a loss spike.

In order: a plain spike; a smaller one in a very quiet run; twice the level in a noisy run; two and
a half times the level in any run of 300 records, however noisy. The last two must also exceed the
run's tail by a half and by two fifths.

The last rule relies on the tail instead of the noise: of 300 records the third largest lies above
two standard deviations of any noise that has tails, so its z matters only in runs without tails,
such as those with two kinds of batch. With fewer records the tail depends on chance: with noise of
0.5, a minimum of 100 records gave twice as many false alarms as one of 300.

Why 1.75 times the tail: with power-law tails of exponent 3, as logs of small batches have, a record
exceeds c times the third largest of the last n with a probability of 3 / (n c³), so 1.75 leaves a
fifth of the alarms of 1.
"""
GRAD_WAYS = (
    Way(z=6, rise=math.log(6), tail=1.15),
    Way(z=3, rise=math.log(10), tail=1.15),
)
"""Rules for a gradient explosion: six times the level in a quiet run, ten times in any run.

Gradient norms are noisier than losses, and their harm comes later.
"""
GRAD_WARMUP_RECORDS = 20
"""First gradient norms that are ignored; an adapter that starts at zero has unusual ones."""
SUPPORT_SHARE = 0.6
SUPPORT_FACTOR = 0.7
"""If the gradient norm is above 60 % of its own limit, the limit of the loss is 30 % lower."""
CLIMB_RECORDS, CLIMB_HITS = 5, 3
CLIMB_RISE, CLIMB_SD = math.log(3), 2.5
"""A norm climbs if 3 of 5 records are above three times the level and 2.5 standard deviations."""
CALM_RISE = math.log(1.2)
"""Rise of the loss below which a report calls it normal."""
BAD_GRAD_RECORDS = 10
COLLAPSE_UNITS = 50.0
"""Loss from which a fall to exactly 0 must be an overflow, in units of the loss scale: 5 % of the
first losses."""


class Instability(msgspec.Struct):
    """Judges loss and gradient norm of every record together."""

    scale: Scale = msgspec.field(default_factory=Scale)
    loss: Signal = msgspec.field(default_factory=Signal)
    grad: Signal = msgspec.field(default_factory=Signal)
    trend: Trend = msgspec.field(default_factory=Trend)
    start: ColdStart = msgspec.field(default_factory=ColdStart)
    climbing: list[bool] = []
    """Whether the gradient norm was well above its level, for the last records."""
    norms: list[float] = []
    """The last gradient norms; a climb ends above its start, a fading explosion does not."""
    bad_grads: list[bool] = []
    """Whether the gradient norm was not finite, for the last records."""
    zero_losses: int = 0
    broken: bool = False
    """Whether the last record was not finite."""

    def update(self, loss: float | None, norm: float | None, strictness: float) -> list[Finding]:
        """Judge one record and learn from it."""
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
        """Return an early warning that names the state of the loss; none beside a loss finding."""
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
        # A loss scaler overflows a few times at first, until it has found its scale.
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
        """Learn the earlier losses on the scale, which is new or has changed."""
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
        """Return the loss above which a record may be a spike, given a large gradient.

        None while the level is unknown, or if the limit is not finite.
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
        """Return the usual loss at present, or None while it is unknown."""
        return self.scale.back(self.loss.recent.median()) if len(self.loss.recent) else None

    def relearn(self) -> None:
        """Forget the levels; keep noise and tails."""
        self.loss.relearn()
        self.grad.relearn()
        self.trend.relearn()


def _loss_finding(kind: str, value: float, level: float, z: float | None) -> Finding:
    return Finding(kind=kind, severity=ALARM, what="loss", value=value, level=level, z=z)
