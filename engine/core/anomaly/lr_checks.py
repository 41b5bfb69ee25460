"""Checks of the learning rate (zero, or still rising) and of the fp16 loss scale (collapsing)."""

from __future__ import annotations

import msgspec

from .channel import LEVEL_RECORDS

ZERO_RECORDS = 10
"""Records in a row with a learning rate of 0 that count as a mistake.

A scheduler that waits for a loss scaler logs 0 a few times, and the last record may be 0 too.
"""
SCALE_RECORDS = 30
SCALE_FALL = 16.0
"""Fall within `SCALE_RECORDS`, four halvings without a rise, that shows constant overflows."""
SCALE_WARMUP = 20
"""First records that are ignored, because a loss scaler starts high and halves to its scale."""
RAISED_FACTOR = 1.2
"""Factor from one record to the next above which the learning rate was raised at once.

A linear warm-up has smaller ones from its 6th record on.
"""
RAISED_RECORDS = LEVEL_RECORDS
"""Records after which no record before the rise is in the usual loss."""
RISING_LR_SHARE = 0.999
"""Share of the highest learning rate so far from which the rate counts as still at its top."""


class LrZero(msgspec.Struct):
    """Counts records in a row with a learning rate of 0."""

    zeros: int = 0

    def update(self, lr: float) -> bool:
        """Add a learning rate; return True with the `ZERO_RECORDS`th 0 in a row, else False."""
        self.zeros = self.zeros + 1 if lr == 0 else 0
        return self.zeros == ZERO_RECORDS


class TopLr(msgspec.Struct):
    """Tracks whether the learning rate is still at its highest so far, as in a warm-up."""

    top: float = 0.0

    def update(self, lr: float) -> bool:
        """Add a learning rate; return whether it is above 0 and about the highest so far."""
        if lr > self.top:
            self.top = lr
        return lr > 0 and lr >= RISING_LR_SHARE * self.top


class RaisedLr(msgspec.Struct):
    """Tracks how long ago the learning rate was raised at once, as by a command."""

    last: float = 0.0
    since: int = RAISED_RECORDS
    """Records since it was raised; it need not be exact beyond `RAISED_RECORDS`."""

    def update(self, lr: float) -> None:
        """Add a learning rate; a first one above 0, as after a rate of 0, is not a raised one."""
        raised = 0.0 < RAISED_FACTOR * self.last < lr
        self.since = 0 if raised else min(self.since + 1, RAISED_RECORDS)
        self.last = lr

    @property
    def settled(self) -> bool:
        """Whether the usual loss is that of records with the present rate alone."""
        return self.since >= RAISED_RECORDS


class LossScale(msgspec.Struct):
    """Detects a collapse of the loss scale of fp16 training."""

    last: list[float] = []
    count: int = 0
    told: bool = False

    def update(self, scale: float) -> tuple[float, float] | None:
        """Add a loss scale; return it and the one it fell from, once per collapse, else None.

        The first `SCALE_WARMUP` loss scales show no collapse.
        """
        self.count += 1
        self.last = [*self.last[1 - SCALE_RECORDS :], scale]
        if self.count <= SCALE_WARMUP:
            self.last = [scale]
            return None
        before = max(self.last)
        fallen = scale * SCALE_FALL <= before
        news = fallen and not self.told
        self.told = fallen
        return (scale, before) if news else None
