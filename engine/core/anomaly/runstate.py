"""States of a run that need no sudden change: dead gradients, no learning, overfitting."""

from __future__ import annotations

import statistics

import msgspec

from ..windows import Window

DEAD_RECORDS = 5
DEAD_SHARE = 1e-6
"""Of the median gradient norm: below that no weight moves."""
FIRST_RECORDS = 10
LAST_RECORDS = 60
NO_LEARNING_SHARE = 0.985
NO_LEARNING_LOSS = 4.0
"""A flat loss is normal when training goes on from a good model; above about 4 nats it is near
the loss of guessing, which for vocabularies of 32 k to 256 k is 10.4 to 12.5."""
OVERFIT_ONCE = 1.10
OVERFIT_TWICE = 1.03
TRAIN_BETTER = 0.98
"""Training must have improved by 2 % meanwhile: when both get worse it is no overfitting."""


class Dead(msgspec.Struct):
    """Counts records in which nothing was learned at all."""

    zeros: int = 0

    def update(self, loss: float | None, grad_norm: float | None, usual: float | None) -> bool:
        """True in the record where the run counts as dead.

        Args:
            loss: of this record.
            grad_norm: of this record.
            usual: median gradient norm so far.
        """
        floor = DEAD_SHARE * (usual or 0.0)
        dead = loss == 0.0 or (grad_norm is not None and grad_norm <= floor)
        self.zeros = self.zeros + 1 if dead else 0
        return self.zeros == DEAD_RECORDS


class NoLearning(msgspec.Struct):
    """Holds the last losses against the first ones."""

    first: list[float] = []
    last: Window = msgspec.field(default_factory=lambda: Window(LAST_RECORDS))
    told: bool = False

    def update(self, loss: float) -> float | None:
        """Take a loss in; returns the level it has not left, once."""
        if self.told:
            return None
        if len(self.first) < FIRST_RECORDS:
            self.first.append(loss)
        self.last.push(loss)
        if len(self.last) < LAST_RECORDS:
            return None
        level = self.last.median()
        if level < NO_LEARNING_LOSS or level <= NO_LEARNING_SHARE * statistics.median(self.first):
            return None
        self.told = True
        return level


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
