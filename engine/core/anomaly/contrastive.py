"""Detection of collapse in a contrastive run, in which all representations become alike."""

from __future__ import annotations

import math

import msgspec

COLLAPSE_RECORDS = 50
"""Records in a row; every run passes through such a state at first, a collapsed one stays in it."""
ALIKE = 0.98
"""Mean cosine to the negatives above which representations count as alike."""
GUESSING = 0.01
"""Relative distance of the loss from ln(candidates) below which the choice counts as random."""


class Collapse(msgspec.Struct):
    """Counts records in which negatives look like positives or the choice is random."""

    alike: int = 0
    guessing: int = 0

    def update(
        self, neg_cos: float | None, loss: float | None, candidates: float | None
    ) -> tuple[str, float, float] | None:
        """Add a record; return (quantity, value, limit) if it completes a collapse, else None.

        A collapse is complete after `COLLAPSE_RECORDS` such records in a row. A record in which a
        value was not measured ends the row. The limit of the loss is ln(candidates).

        Args:
            neg_cos: mean cosine to the negatives; None if it is not measured.
            loss: the contrastive part of the loss; None if it is not measured.
            candidates: number of candidates the positive is chosen from; None if not counted.
        """
        self.alike = self.alike + 1 if neg_cos is not None and neg_cos > ALIKE else 0
        chance = math.log(candidates) if candidates is not None and candidates > 1 else None
        near = loss is not None and chance is not None and abs(loss - chance) < GUESSING * chance
        self.guessing = self.guessing + 1 if near else 0
        if self.alike == COLLAPSE_RECORDS and neg_cos is not None:
            return "mean cosine to negatives", neg_cos, ALIKE
        if self.guessing == COLLAPSE_RECORDS and loss is not None and chance is not None:
            return "contrastive loss", loss, chance
        return None
