"""Detection of runs without progress: dead gradients, nothing learned, plateaus, overfitting."""

from __future__ import annotations

import math
from itertools import count
from operator import mul, sub

import msgspec

from ..sliding_window import SlidingWindow, median_of

DEAD_RECORDS = 5
DEAD_SHARE = 1e-6
"""Share of the usual gradient norm below which no weight moves."""
NEAR_NORM = 13.0
"""A norm within this log ratio of the largest one is above `DEAD_SHARE` of it, which is 13.8."""
DEAD_CHANCE = 1e-5
"""Probability from which on a stretch without a gradient is not due to chance."""
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
FLAT_BLOCKS = 60
"""Blocks of the slope: enough to detect half a standard deviation, few enough to be useful."""
RUN_BLOCKS = 240
"""Blocks of the whole run, at most twice as many: the slope is that of its last 25 to 50 %."""
FLAT_EVERY = 10
"""Blocks between two looks."""
IMPROVING_T = -4.0
FLAT_T = -1.0
"""t values of the slope of a loss that certainly falls, and of one that may be flat."""
FLAT_AGAIN_RECORDS = 10_000
"""Records between two hints at a plateau."""
FLAT_LR_SHARE = 0.1
"""Share of the highest learning rate so far below which the run is ending and may be flat."""
MIN_NOISE = 5e-4
OVERFIT_ONCE = 1.10
OVERFIT_TWICE = 1.03
TRAIN_BETTER = 0.98
"""Training must have improved by 2 % meanwhile; if both get worse it is not overfitting."""


class Dead(msgspec.Struct):
    """Counts records in a row without any gradient."""

    zeros: int = 0
    seen: int = 0
    """Records before, and those of them without a gradient."""
    before: int = 0
    longest: int = 0
    """The longest such stretch that the run has recovered from.

    In reinforcement learning all rewards of a batch may be equal; such batches have no gradient.
    """
    moved: bool = False
    """Whether the loss changed in the present stretch."""
    last_loss: float | None = None
    positive: bool = False
    """Whether any gradient norm was above 0; a logger that has no norm may write 0."""

    def update(self, loss: float | None, grad_norm: float | None, usual: float | None) -> bool:
        """Add a record; return True if the run counts as dead now: it has no gradient any more.

        That is once in a stretch of records without a gradient.

        Args:
            loss: loss of the record; None if unknown, or if a loss of 0 is normal here.
            grad_norm: gradient norm of the record; None if unknown.
            usual: median of the recent gradient norms; None if unknown.
        """
        floor = DEAD_SHARE * (usual or 0.0)
        self.positive = self.positive or (grad_norm is not None and grad_norm > 0)
        moves = loss is not None and self.last_loss is not None and loss != self.last_loss
        self.last_loss = loss if loss is not None and math.isfinite(loss) else None
        if loss == 0.0 or (grad_norm is not None and grad_norm <= floor):
            self.zeros += 1
            self.moved = self.moved or moves
            if self.moved and not self.positive:
                return False
            return self.zeros == self._many()
        self.longest = max(self.longest, self.zeros)
        self.seen += 1 + self.zeros
        self.before += self.zeros
        self.zeros, self.moved = 0, False
        return False

    def moves(self, loss: float) -> None:
        """Add a record with a gradient, while no record without one is counted.

        The effect is that of `update`, at less cost. The loss is finite and not 0.
        """
        self.positive = True
        self.last_loss = loss
        self.seen += 1

    def _many(self) -> int:
        """Return the number of records without a gradient that chance does not explain."""
        share = (1 + self.before) / (2 + self.seen)
        chance = math.ceil(math.log(DEAD_CHANCE) / math.log(share)) if share < 1 else 0
        return max(DEAD_RECORDS, DEAD_LONGER * self.longest, chance)


class NoLearning(msgspec.Struct):
    """Compares the last losses with the first ones."""

    first: list[float] = []
    last: SlidingWindow = msgspec.field(default_factory=lambda: SlidingWindow(LAST_RECORDS))
    told: bool = False
    learned: bool = False
    """Whether the loss has left its first level; nothing is checked after that."""

    def update(self, loss: float) -> float | None:
        """Add a loss; return the median of the last losses, once, if nothing is learned.

        Otherwise return None.
        """
        if self.told or self.learned:
            return None
        if len(self.first) < FIRST_RECORDS:
            self.first.append(loss)
        self.last.push(loss)
        if len(self.last) < LAST_RECORDS:
            return None
        level = self.last.median()
        self.learned = level <= NO_LEARNING_SHARE * median_of(sorted(self.first))
        if self.learned or level < NO_LEARNING_LOSS or loss < NO_LEARNING_LOSS:
            return None
        if _slope_t(self.last.values) < IMPROVING_T:
            return None  # it falls, if slowly
        self.told = True
        return level


class Plateau(msgspec.Struct):
    """Detects a loss that was falling and no longer is, by a t-test of its slope.

    The slope is over the last `FLAT_BLOCKS` blocks of records; blocks grow with the run, so that a
    plateau is long in relation to it. The noise comes from the differences of neighbours, which a
    trend hardly changes. It is only a hint: most runs are flat in places.
    """

    blocks: list[float] = []
    """Mean losses of the last blocks on the loss scale, oldest first."""
    size: int = 1
    """Records of a block."""
    total: float = 0.0
    held: int = 0
    """Records in the block that is not full yet."""
    count: int = 0
    """Number of full blocks of this size in the run."""
    since: int = FLAT_AGAIN_RECORDS
    """Records since the last hint."""
    was_falling: bool = False
    told: bool = False
    top_lr: float = 0.0

    @property
    def records(self) -> int:
        """Number of records over which the loss has to be flat."""
        return FLAT_BLOCKS * self.size

    def update(self, x: float, lr: float | None) -> bool:
        """Add a loss; return whether a plateau is reported now.

        Args:
            x: loss on the loss scale.
            lr: learning rate of the record; None if unknown.
        """
        if lr is not None and lr > self.top_lr:
            self.top_lr = lr
        self.since += 1
        self.total += x
        self.held += 1
        if self.held < self.size:
            return False
        self._close_block()
        if self.count % FLAT_EVERY or len(self.blocks) < FLAT_BLOCKS:
            return False
        t = _slope_t(self.blocks)
        self.was_falling = self.was_falling or t < IMPROVING_T
        ending = (lr or 0.0) < FLAT_LR_SHARE * self.top_lr
        if t < FLAT_T or not self.was_falling or ending or self.since < FLAT_AGAIN_RECORDS:
            return False
        self.told, self.since = True, 0
        return True

    def _close_block(self) -> None:
        self.blocks.append(self.total / self.held)
        if len(self.blocks) > FLAT_BLOCKS:
            del self.blocks[0]
        self.total, self.held = 0.0, 0
        self.count += 1
        if self.count >= 2 * RUN_BLOCKS:
            pairs = zip(self.blocks[::2], self.blocks[1::2], strict=False)
            self.blocks = [(a + b) / 2 for a, b in pairs]
            self.size *= 2
            self.count = RUN_BLOCKS

    def relearn(self) -> None:
        """Forget the losses so far, as after a rollback; the size of a block stays."""
        self.blocks = []
        self.total, self.held = 0.0, 0


def _slope_t(values: list[float]) -> float:
    """Return the t value of the slope of equidistant values, with noise from their differences."""
    middle = (len(values) - 1) / 2
    spread = len(values) * (len(values) ** 2 - 1) / 12
    slope: float = sum(map(mul, count(-middle), values)) / spread
    steps = sorted(map(abs, map(sub, values[1:], values)))
    noise: float = max(steps[len(steps) // 2] / 0.954, MIN_NOISE)
    return slope / noise * math.sqrt(spread)


class Forgetting(msgspec.Struct):
    """Detects a loss on general texts that has risen above that of the base by too much."""

    told: bool = False

    def update(self, rise: float, limit: float) -> bool:
        """Add a rise; return whether it is above the limit and was not before."""
        told, self.told = self.told, rise > limit
        return self.told and not told


class Overfit(msgspec.Struct):
    """Detects an evaluation loss that rises while the training loss still falls."""

    best: float | None = None
    train_at_best: float = 0.0
    worse: int = 0
    told: bool = False

    def update(self, eval_loss: float, train: float, *, settled: bool = True) -> float | None:
        """Add an evaluation; return the best loss, once, if this one shows overfitting, else None.

        Args:
            eval_loss: loss of the evaluation; one that is not above 0 is ignored.
            train: level of the training loss.
            settled: whether that level is one of the present learning rate; shortly after the rate
                was raised it is not, and the evaluation loss rises before it does.
        """
        if eval_loss <= 0:
            return None
        if self.best is None or eval_loss < self.best:
            self.best, self.train_at_best = eval_loss, train
            self.worse, self.told = 0, False
            return None
        if not settled:
            return None
        self.worse = self.worse + 1 if eval_loss > OVERFIT_TWICE * self.best else 0
        clear = self.worse >= 2 or eval_loss > OVERFIT_ONCE * self.best
        if self.told or not clear or train >= TRAIN_BETTER * self.train_at_best:
            return None
        self.told = True
        return self.best
