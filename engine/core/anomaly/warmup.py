"""Detection of divergence in the very first records, before there is a level to compare with."""

from __future__ import annotations

import msgspec

RECORDS = 12
BEFORE = 2
"""Least number of losses before the blow-up."""
BLOW_UP = 3.0
"""Two records in a row above three times everything before, which batch noise does not cause."""


class ColdStart(msgspec.Struct):
    """Detects a loss that blows up within the first `RECORDS` losses."""

    losses: list[float] = []
    alarmed: bool = False

    def update(self, loss: float) -> float | None:
        """Add a loss; return the level that it left, once."""
        if self.alarmed or len(self.losses) >= RECORDS or loss <= 0:
            return None
        self.losses.append(loss)
        before, now = self.losses[:-2], min(self.losses[-2:])
        if len(before) < BEFORE:
            return None
        most, least = max(before), min(before)
        # A rise that the losses have among themselves is nothing new.
        self.alarmed = now > most * max(BLOW_UP, most / least)
        return most if self.alarmed else None
