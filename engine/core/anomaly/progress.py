"""States of a run that need no sudden change: dead gradients, plateaus, overfitting."""

from __future__ import annotations

import math
import statistics
from itertools import count
from operator import mul, sub

import msgspec

from ..sliding_window import SlidingWindow

DEAD_RECORDS = 5
DEAD_SHARE = 1e-6
"""Of the median gradient norm: below that no weight moves."""
DEAD_LONGER = 2
"""Times the longest stretch the run has come back from."""
FIRST_RECORDS = 10
LAST_RECORDS = 60
NO_LEARNING_SHARE = 0.985
NO_LEARNING_LOSS = 4.0
"""A flat loss is normal when training goes on from a good model; above about 4 nats it is near
the loss of guessing, which for vocabularies of 32 k to 256 k is 10.4 to 12.5."""
FLAT_RECORDS = 60
"""Long enough for a slope of half a standard deviation to stand out, short enough to be of use."""
FLAT_EVERY = 10
IMPROVING_T = -4.0
FLAT_T = -1.0
"""t values of the slope: surely falling, and not distinguishable from flat."""
FLAT_AGAIN_RECORDS = 80
FLAT_AGAIN_SHARE = 0.1
"""A plateau that lasts is told again after this long, or a tenth of the run so far."""
FLAT_LR_SHARE = 0.1
"""Of the highest LR so far: below that a run is being finished and may be flat."""
MIN_NOISE = 5e-4
OVERFIT_ONCE = 1.10
OVERFIT_TWICE = 1.03
TRAIN_BETTER = 0.98
"""Training must have improved by 2 % meanwhile: when both get worse it is no overfitting."""


class Dead(msgspec.Struct):
    """Counts records in which nothing was learned at all."""

    zeros: int = 0
    longest: int = 0
    """Such records in a row after which learning went on: where rewards are all alike now and then,
    as in reinforcement learning, a batch without any gradient is no news."""

    def update(self, loss: float | None, grad_norm: float | None, usual: float | None) -> bool:
        """True in the record where the run counts as dead.

        Args:
            loss: of this record; None where a loss of 0 says nothing.
            grad_norm: of this record.
            usual: median gradient norm so far.
        """
        floor = DEAD_SHARE * (usual or 0.0)
        if loss == 0.0 or (grad_norm is not None and grad_norm <= floor):
            self.zeros += 1
            return self.zeros == max(DEAD_RECORDS, DEAD_LONGER * self.longest)
        self.longest, self.zeros = max(self.longest, self.zeros), 0
        return False


class NoLearning(msgspec.Struct):
    """Holds the last losses against the first ones."""

    first: list[float] = []
    last: SlidingWindow = msgspec.field(default_factory=lambda: SlidingWindow(LAST_RECORDS))
    told: bool = False
    learned: bool = False
    """It has left its first level, so the question is answered."""

    def update(self, loss: float) -> float | None:
        """Take a loss in; returns the level it has not left, once."""
        if self.told or self.learned:
            return None
        if len(self.first) < FIRST_RECORDS:
            self.first.append(loss)
        self.last.push(loss)
        if len(self.last) < LAST_RECORDS:
            return None
        level = self.last.median()
        self.learned = level <= NO_LEARNING_SHARE * statistics.median(self.first)
        if self.learned or level < NO_LEARNING_LOSS or loss < NO_LEARNING_LOSS:
            return None
        if _slope_t(self.last.values) < IMPROVING_T:
            return None  # slowly, but surely
        self.told = True
        return level


class Plateau(msgspec.Struct):
    """The loss was falling and no longer is, as far as its noise lets one tell.

    A t-test of the slope over the last `FLAT_RECORDS`; the noise comes from neighbours, which a
    trend hardly changes. Only a hint: most runs are flat in places.
    """

    last: list[float] = []
    """On the loss scale, oldest first."""
    count: int = 0
    since: int = 0
    """Records since it was told last."""
    was_falling: bool = False
    told: bool = False
    top_lr: float = 0.0

    def update(self, x: float, lr: float | None) -> bool:
        """Take a loss in; true where the run counts as flat.

        Args:
            x: on the loss scale.
            lr: of this record.
        """
        self.last.append(x)
        if len(self.last) > FLAT_RECORDS:
            del self.last[0]
        if lr is not None and lr > self.top_lr:
            self.top_lr = lr
        self.count += 1
        self.since += 1
        if self.count % FLAT_EVERY or len(self.last) < FLAT_RECORDS:
            return False
        t = _slope_t(self.last)
        self.was_falling = self.was_falling or t < IMPROVING_T
        soon = self.since < max(FLAT_AGAIN_RECORDS, FLAT_AGAIN_SHARE * self.count)
        if t < FLAT_T or soon or (lr or 0.0) < FLAT_LR_SHARE * self.top_lr:
            return False
        flat = self.was_falling or self.told
        if flat:
            self.was_falling, self.told, self.since = False, True, 0
        return flat

    def relearn(self) -> None:
        """What came before no longer counts."""
        self.last = []


def _slope_t(values: list[float]) -> float:
    """The t value of the slope of equidistant values, with noise from their differences."""
    middle = (len(values) - 1) / 2
    spread = len(values) * (len(values) ** 2 - 1) / 12
    slope: float = sum(map(mul, count(-middle), values)) / spread
    steps = sorted(map(abs, map(sub, values[1:], values)))
    noise: float = max(steps[len(steps) // 2] / 0.954, MIN_NOISE)
    return slope / noise * math.sqrt(spread)


class Overfit(msgspec.Struct):
    """Evaluation gets worse while training still gets better."""

    best: float | None = None
    train_at_best: float = 0.0
    worse: int = 0
    told: bool = False

    def update(self, eval_loss: float, train: float) -> float | None:
        """Take an evaluation in; returns the best one when this one shows overfitting, once.

        Args:
            eval_loss: of this record.
            train: level of the training loss.
        """
        if eval_loss <= 0:
            return None
        if self.best is None or eval_loss < self.best:
            self.best, self.train_at_best = eval_loss, train
            self.worse, self.told = 0, False
            return None
        self.worse = self.worse + 1 if eval_loss > OVERFIT_TWICE * self.best else 0
        clear = self.worse >= 2 or eval_loss > OVERFIT_ONCE * self.best
        if self.told or not clear or train >= TRAIN_BETTER * self.train_at_best:
            return None
        self.told = True
        return self.best
