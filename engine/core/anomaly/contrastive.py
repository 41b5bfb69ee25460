"""Collapse of a contrastive run: representations that are all alike."""

from __future__ import annotations

import math

import msgspec

COLLAPSE_RECORDS = 50
"""Every run passes through such a state in its first steps; a collapsed one stays."""
ALIKE = 0.98
"""Mean cosine between what should differ."""
GUESSING = 0.01
"""Loss within 1 % of ln(candidates): no better than picking one at random."""


class Collapse(msgspec.Struct):
    """Counts records in which negatives look like positives or the choice is a guess."""

    alike: int = 0
    guessing: int = 0

    def update(
        self, neg_cos: float | None, loss: float | None, candidates: float | None
    ) -> tuple[str, float, float] | None:
        """Take a record in; returns what, value and limit in the record where it is a collapse.

        Args:
            neg_cos: mean cosine to the negatives.
            loss: the contrastive loss alone.
            candidates: how many the positive is chosen from.
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
