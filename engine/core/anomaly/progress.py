"""Detection of runs that make no progress: dead gradients, plateaus, overfitting."""

from __future__ import annotations

import math
import statistics
from itertools import count
from operator import mul, sub

import msgspec

from ..sliding_window import SlidingWindow

DEAD_RECORDS = 5
DEAD_SHARE = 1e-6
"""Share of the usual gradient norm below which no weight moves."""
DEAD_LONGER = 2
"""Multiple of the longest stretch without a gradient that the run has recovered from."""
FIRST_RECORDS = 10
LAST_RECORDS = 60
NO_LEARNING_SHARE = 0.985
NO_LEARNING_LOSS = 4.0
"""Loss in nats above which a flat loss means that nothing is learned.

A flat loss is normal if training starts from a good model; above about 4 nats it is near the loss
of guessing, which is 10.4 to 12.5 for vocabularies of 32 k to 256 k.
"""
FLAT_RECORDS = 60
"""Records of the slope: enough to detect half a standard deviation, few enough to be useful."""
FLAT_EVERY = 10
IMPROVING_T = -4.0
FLAT_T = -1.0
"""t values of the slope of a loss that certainly falls, and of one that may be flat."""
FLAT_AGAIN_RECORDS = 80
FLAT_AGAIN_SHARE = 0.1
"""A lasting plateau is reported again after 80 records or a tenth of the run, if that is more."""
FLAT_LR_SHARE = 0.1
"""Share of the highest learning rate so far below which the run is ending and may be flat."""
MIN_NOISE = 5e-4
OVERFIT_ONCE = 1.10
OVERFIT_TWICE = 1.03
TRAIN_BETTER = 0.98
"""Training must have improved by 2 % meanwhile; if both get worse it is no overfitting."""


class Dead(msgspec.Struct):
    """Counts records in a row without any gradient."""

    zeros: int = 0
    longest: int = 0
    """The longest such stretch that the run has recovered from.

    In reinforcement learning all rewards of a batch may be equal; such batches have no gradient.
    """

    def update(self, loss: float | None, grad_norm: float | None, usual: float | None) -> bool:
        """Add a record; return True in the one where the run counts as dead.

        Args:
            loss: loss of the record; None if a loss of 0 is normal here.
            grad_norm: gradient norm of the record.
            usual: median gradient norm so far; None if unknown.
        """
        floor = DEAD_SHARE * (usual or 0.0)
        if loss == 0.0 or (grad_norm is not None and grad_norm <= floor):
            self.zeros += 1
            return self.zeros == max(DEAD_RECORDS, DEAD_LONGER * self.longest)
        self.longest, self.zeros = max(self.longest, self.zeros), 0
        return False


class NoLearning(msgspec.Struct):
    """Compares the last losses with the first ones."""

    first: list[float] = []
    last: SlidingWindow = msgspec.field(default_factory=lambda: SlidingWindow(LAST_RECORDS))
    told: bool = False
    learned: bool = False
    """Whether the loss has left its first level; nothing is checked after that."""

    def update(self, loss: float) -> float | None:
        """Add a loss; return the level that it has not left, once."""
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
            return None  # it falls, if slowly
        self.told = True
        return level


class Plateau(msgspec.Struct):
    """Detects a loss that was falling and no longer is, by a t-test of its slope.

    The slope is over the last `FLAT_RECORDS`; the noise comes from the differences of neighbours,
    which a trend hardly changes. It is only a hint: most runs are flat in places.
    """

    last: list[float] = []
    """Losses on the loss scale, oldest first."""
    count: int = 0
    since: int = 0
    """Records since the last report of a plateau."""
    was_falling: bool = False
    told: bool = False
    top_lr: float = 0.0

    def update(self, x: float, lr: float | None) -> bool:
        """Add a loss; return whether a plateau is reported now.

        Args:
            x: loss on the loss scale.
            lr: learning rate of the record.
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
        """Forget the losses so far."""
        self.last = []


def _slope_t(values: list[float]) -> float:
    """Return the t value of the slope of equidistant values, with noise from their differences."""
    middle = (len(values) - 1) / 2
    spread = len(values) * (len(values) ** 2 - 1) / 12
    slope: float = sum(map(mul, count(-middle), values)) / spread
    steps = sorted(map(abs, map(sub, values[1:], values)))
    noise: float = max(steps[len(steps) // 2] / 0.954, MIN_NOISE)
    return slope / noise * math.sqrt(spread)


class Overfit(msgspec.Struct):
    """Detects an evaluation loss that rises while the training loss still falls."""

    best: float | None = None
    train_at_best: float = 0.0
    worse: int = 0
    told: bool = False

    def update(self, eval_loss: float, train: float) -> float | None:
        """Add an evaluation; return the best one if this one shows overfitting, once.

        Args:
            eval_loss: loss of the evaluation.
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
