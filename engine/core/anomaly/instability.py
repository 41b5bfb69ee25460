"""Detection of instability: loss spikes, divergence, gradient explosions, non-finite values."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum, auto

import msgspec

from ..sliding_window import SlidingWindow
from .alerts import ALARM, INFO, UNSTABLE, Again, Finding, Findings
from .channel import Reading, Signal
from .scale import FROM_ZERO, Scale
from .trend import ColdStart, Trend

LOSS_RISE = math.log(1.3)
"""Least effect size: a loss 30 % above its usual value is a spike if noise does not explain it."""
CLEAR_SD, CLEAR_RISE = 20.0, math.log(1.2)
"""In a quiet run a loss 20 standard deviations above its usual value is a spike too, from a fifth
on. Smaller ones are seen in averages over epochs, and harm nothing."""
LINEAR_RISE = math.asinh(1)
"""Where ratios mean nothing, a loss must rise by one unit of the scale."""
LINEAR_LIFT = 4.0
"""Factor on the least rise of a divergence, for losses whose ratios mean nothing."""
GRAD_RISE = math.log(8)
"""A smaller rise of the gradient norm harms nothing; norms are noisier than losses."""
GRAD_ANY = math.log(10)
"""A norm of 10 times its usual value is an explosion if normal noise does not explain it.

The extrapolated tail of smaller norms does not raise this threshold, outliers of its size do.
"""
BAD_RECORDS = 10
"""Finite records after which a non-finite value is news again."""
SCALER_RECORDS = 8
"""Number of overflows from which a loss scaler no longer just searches for its scale."""
ZERO_RECORDS = 3
"""Losses of exactly 0 in a row that are an overflow, if the run has had none before."""
COLLAPSE_UNITS = 50.0
"""Loss from which a fall to exactly 0 must be an overflow, in units of the loss scale: 5 % of the
first losses."""
TOKEN_RECORDS = 21
"""Records whose median number of tokens is the usual one."""
STEPS = 10_000.0
"""The unit of the rate of false alarms."""
TESTS = 3
"""Tests of a record that share the rate: loss spike, divergence, gradient explosion."""
LIFT_SHARE = 1 / 3
"""A false divergence costs a rollback, so it may occur a third as often as a false spike."""


QUANTITIES = {"spike": "loss", "grad_explosion": "grad norm"}
"""The quantity of a kind of sudden alarm, as words of a headline."""


class Outcome(Enum):
    """What a value is that was compared with its baseline."""

    USUAL = auto()
    AGAIN = auto()
    """A peak like those that the run has come back from again and again."""
    ALARM = auto()


class Strictness(msgspec.Struct, frozen=True):
    """The thresholds of alarms: probability of a false alarm and least effect size."""

    probability: float
    """Probability of a false alarm of one test of one record."""
    size: float = 1.0
    """Factor on the least rises."""

    @classmethod
    def of_rate(cls, rate: float, size: float = 1.0) -> Strictness:
        """Return the thresholds for this many false alarms per 10,000 steps."""
        return cls(rate / STEPS / TESTS, size)


class Instability(msgspec.Struct):
    """Tests every loss and gradient norm against the run's own baseline."""

    scale: Scale = msgspec.field(default_factory=Scale)
    loss: Signal = msgspec.field(default_factory=Signal)
    grad: Signal = msgspec.field(default_factory=Signal)
    trend: Trend = msgspec.field(default_factory=Trend)
    start: ColdStart = msgspec.field(default_factory=ColdStart)
    tokens: SlidingWindow = msgspec.field(default_factory=lambda: SlidingWindow(TOKEN_RECORDS))
    zero_losses: int = 0
    zeros_before: bool = False
    """Whether the run has had losses of 0 and came back."""
    since_bad: int = BAD_RECORDS
    """Finite records since the last that was not."""
    bad: int = 0
    """Records that were not finite, with few finite ones between them."""

    def update(
        self,
        loss: float | None,
        norm: float | None,
        strict: Strictness,
        *,
        scaled: bool = False,
        tokens: float = 0,
        after_gap: bool = False,
    ) -> Findings:
        """Return the instabilities that a record shows, and update the baselines with it.

        Values that are not finite change no baseline, nor does a record after a gap in the log:
        how far the run has drifted meanwhile is unknown.

        Args:
            loss: loss of the record; None if unknown.
            norm: gradient norm of the record; None if unknown.
            strict: thresholds of alarms.
            scaled: whether a loss scaler skips steps whose gradients overflow.
            tokens: tokens of the step; 0 if unknown.
            after_gap: whether many more or fewer steps than usual lie between this record and the
                one before, so that only values that are not finite are reported.
        """
        finite = loss is not None and math.isfinite(loss)
        if finite and loss and not self.zero_losses and (norm is None or math.isfinite(norm)):
            self.since_bad += 1
            found: Findings = ()
        else:
            found = self._nonfinite(loss, norm, scaled=scaled)
            if self.since_bad == 0 and not finite:
                return found
        if after_gap:
            return found
        noisier = self._noise_factor(tokens) if tokens else 1.0
        grad = self._grad(norm, strict, noisier)
        if loss is not None and finite:
            found += self._loss(loss, strict, noisier)
        return found + grad

    def _noise_factor(self, tokens: float) -> float:
        """Return the factor on the noise of a step: above 1 if it has fewer tokens than usual.

        The standard deviation of a mean goes with the inverse root of their number. Such a step
        is the last one of an epoch, or one of short texts. The factor is 1 if the number of tokens
        is unknown (0).
        """
        if not 0 < tokens < math.inf:
            return 1.0
        usual = self.tokens.median() if len(self.tokens) else tokens
        self.tokens.push(tokens)
        return math.sqrt(usual / tokens) if tokens < usual else 1.0

    def _nonfinite(self, loss: float | None, norm: float | None, *, scaled: bool) -> Findings:
        """Return the finding about a record that is not finite, or no finding.

        It is reported if it is the first of the run, or the first after `BAD_RECORDS` finite ones.
        With a loss scaler, a gradient norm that is not finite is then information only; the
        `SCALER_RECORDS`th of them raises the alarm.
        """
        bad = self._bad(loss, norm)
        if bad is None:
            self.since_bad += 1
            return ()
        news = self.since_bad >= BAD_RECORDS
        self.bad = 1 if news else self.bad + 1
        self.since_bad = 0
        # A loss scaler finds its scale by overflows, and skips those steps.
        if scaled and bad.what == "grad norm":
            if self.bad < SCALER_RECORDS:
                return (msgspec.structs.replace(bad, severity=INFO),) if news else ()
            news = self.bad == SCALER_RECORDS
        return (bad,) if news else ()

    def _bad(self, loss: float | None, norm: float | None) -> Finding | None:
        if loss is not None and not math.isfinite(loss):
            return Finding(kind="nonfinite", severity=ALARM, what="loss", value=loss)
        if found := self._collapse(loss):
            return found
        if norm is None or math.isfinite(norm):
            return None
        return Finding(kind="nonfinite", severity=ALARM, what="grad norm", value=norm)

    def _collapse(self, loss: float | None) -> Finding | None:
        if loss != 0.0:
            self.zeros_before = self.zeros_before or self.zero_losses > 0
            self.zero_losses = 0
            return None
        self.zero_losses += 1
        if self.zeros_before or self.zero_losses < ZERO_RECORDS:
            return None
        if self.scale.unit is None or self.scale.signed:
            return None
        level = self.loss_level()
        if level is None or level <= COLLAPSE_UNITS * self.scale.unit:
            return None
        return Finding(
            kind="nonfinite",
            severity=ALARM,
            what="loss",
            value=0.0,
            level=level,
            tail="(exactly 0: a number format overflowed)",
        )

    def _grad(self, norm: float | None, strict: Strictness, noisier: float) -> Findings:
        if norm is None or not 0 < norm < math.inf:
            return ()
        y, signal, least = math.log(norm), self.grad, GRAD_RISE * strict.size
        reading = signal.read(y, noisier)
        found = Outcome.USUAL
        if reading is not None and reading.residual > least and signal.takes_alarms(y):
            any_run = max(GRAD_ANY * strict.size, signal.normal_limit(reading.sd))
            limit = min(signal.limit(reading.sd, strict.probability), any_run)
            found = _outcome(signal, reading, limit, least, strict)
        findings = _told(found, "grad_explosion", norm, math.exp, reading, signal)
        _learn(signal, y, reading, found, least)
        return findings

    def _spikes(self, x: float, reading: Reading, strict: Strictness) -> Outcome:
        """Return whether a loss that has risen by more than `CLEAR_RISE` is a spike."""
        signal, least = self.loss, self._least_rise(reading.sd) * strict.size
        if reading.residual <= least or not signal.takes_alarms(x):
            return Outcome.USUAL
        limit = signal.limit(reading.sd, strict.probability)
        return _outcome(signal, reading, limit, least, strict)

    def _loss(self, loss: float, strict: Strictness, noisier: float) -> Findings:
        found: Findings = ()
        grows = self.scale.signed or self.scale.zeros >= FROM_ZERO
        best = None if grows else self.start.update(loss)
        if best is not None:
            found = (_finding("divergence", "loss", loss, best, None),)
        scale = self.scale
        placed = scale.take(loss)
        if not placed:
            return found
        if len(placed) > 1:
            self._settle([scale.to(value) for value in placed[:-1]])
        return self._judge_loss(loss, scale.to(placed[-1]), strict, noisier) + found

    def _settle(self, values: list[float]) -> None:
        """Rebuild the baseline from earlier losses, because the scale is new or has changed.

        `values` are these losses on the scale, oldest first.
        """
        self.loss = Signal()
        self.trend = Trend()
        for x in values:
            self.loss.learn(x, None)
            self.trend.take(x)

    def _judge_loss(self, loss: float, x: float, strict: Strictness, noisier: float) -> Findings:
        signal, size = self.loss, strict.size
        reading = signal.read(x, noisier)
        sd, least, outcome = None, math.inf, Outcome.USUAL
        if reading is not None:
            sd = reading.level_sd
            if reading.residual > CLEAR_RISE * size:
                outcome = self._spikes(x, reading, strict)
                least = self._least_rise(reading.sd) * size
        found = _told(outcome, "spike", loss, self.scale.back, reading, signal)
        if self.scale.signed:
            size *= LINEAR_LIFT
        lift = self.trend.update(x, sd, LIFT_SHARE * strict.probability, size)
        if lift is not None:
            level, now = self.scale.back(lift.level), self.scale.back(lift.level + lift.size)
            found += (_finding("divergence", "loss", now, level, lift.size / lift.sd),)
        _learn(signal, x, reading, outcome, least)
        return found

    def _least_rise(self, sd: float) -> float:
        if self.scale.signed:
            return LINEAR_RISE
        return max(min(LOSS_RISE, CLEAR_SD * sd), CLEAR_RISE)

    def usual_up_to(self, strict: Strictness) -> float | None:
        """Return the loss above which a record may be a spike by the thresholds `strict`.

        None while the level is unknown, or if the limit is not finite.
        """
        reading = None if self.scale.unit is None else self.loss.read(0.0)
        if reading is None:
            return None
        least = self._least_rise(reading.sd) * strict.size
        limit = self.loss.limit(reading.sd, strict.probability)
        try:
            return self.scale.back(reading.level + max(limit, least))
        except OverflowError:
            return None

    def loss_level(self) -> float | None:
        """Return the usual loss at present, or None while it is unknown."""
        return self.scale.back(self.loss.recent.median()) if len(self.loss.recent) else None

    def renew(self) -> None:
        """Forget levels, noise and tails, because the records to come are of another kind."""
        self.loss, self.grad, self.trend = Signal(), Signal(), Trend()

    def relearn(self) -> None:
        """Reset the levels; keep the estimates of noise and tails."""
        self.loss.relearn()
        self.grad.relearn()
        self.trend.relearn()


def _outcome(
    signal: Signal, reading: Reading, limit: float, least: float, strict: Strictness
) -> Outcome:
    """Return the outcome for a value that rises by more than `least`, the least rise of an alarm.

    `limit` is the residual that noise rarely exceeds.
    """
    known = signal.known_limit(reading.sd, least, strict.probability)
    if reading.residual > max(limit, known):
        return Outcome.ALARM
    again = signal.peak_again(reading, least, strict.probability)
    return Outcome.AGAIN if again else Outcome.USUAL


def _learn(
    signal: Signal, x: float, reading: Reading | None, outcome: Outcome, least: float
) -> None:
    """Update a baseline with a value and its outcome; `least` is the least rise of an alarm."""
    signal.learn(x, reading, alarmed=outcome is Outcome.ALARM, least=least)
    if outcome is Outcome.AGAIN:
        signal.recurrence.told = signal.recurrence.peaks


def _told(
    outcome: Outcome,
    kind: str,
    value: float,
    back: Callable[[float], float],
    reading: Reading | None,
    signal: Signal,
) -> Findings:
    """Return the findings for an outcome: an alarm of the kind, or one more of its peaks.

    `back` converts a level to the unit of the value.
    """
    if reading is None or outcome is Outcome.USUAL:
        return ()
    level, what = back(reading.level), QUANTITIES[kind]
    if outcome is Outcome.ALARM:
        return (_finding(kind, what, value, level, reading.z),)
    peaks = signal.recurrence.peaks + 1
    again = Again(kind=kind, peaks=peaks, every=signal.recurrence.records / peaks)
    return (
        Finding(
            kind=UNSTABLE,
            severity=INFO,
            what=what,
            value=value,
            level=level,
            z=reading.z,
            again=again,
        ),
    )


def _finding(kind: str, what: str, value: float, level: float, z: float | None) -> Finding:
    return Finding(kind=kind, severity=ALARM, what=what, value=value, level=level, z=z)
