"""Settings that are wrong by themselves: a learning rate of zero, a loss scale that falls away."""

from __future__ import annotations

import msgspec

ZERO_RECORDS = 10
"""A scheduler that waits for a loss scaler logs 0 a few times; the last record may be 0 as well."""
SCALE_RECORDS = 30
SCALE_FALL = 16.0
"""Four halvings within `SCALE_RECORDS` with no recovery between: overflows have become the rule."""
SCALE_WARMUP = 20
"""A scaler that starts far too high finds its scale by halving."""
RISING_LR_SHARE = 0.999


class LrZero(msgspec.Struct):
    """Counts records that train with no learning rate."""

    zeros: int = 0

    def update(self, lr: float) -> bool:
        """True in the record where it counts as a mistake."""
        self.zeros = self.zeros + 1 if lr == 0 else 0
        return self.zeros == ZERO_RECORDS


class TopLr(msgspec.Struct):
    """Knows whether the learning rate is still at its highest so far, as in a warm-up."""

    top: float = 0.0

    def update(self, lr: float) -> bool:
        """Take an LR in; true while it rises or holds its top."""
        self.top = max(self.top, lr)
        return lr > 0 and lr >= RISING_LR_SHARE * self.top


class LossScale(msgspec.Struct):
    """Watches the factor an fp16 run multiplies its loss with."""

    last: list[float] = []
    count: int = 0
    told: bool = False

    def update(self, scale: float) -> tuple[float, float] | None:
        """Take a scale in; returns it and the one it fell from, once per fall."""
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
