"""Which candidates must not count as negatives of an anchor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Texts:
    """What tells texts apart without looking at their vectors; every field is int64 [n]."""

    hash: Tensor
    """Of the token ids after truncation: equal hashes are equal texts."""
    label: Tensor
    """Class of the text; negative = unknown."""
    pair: Tensor
    """The pair a text belongs to."""
    hard: Tensor
    """1 for a hard negative of its pair, 0 for its anchor or positive."""

    @classmethod
    def joined(cls, parts: Sequence[Texts]) -> Texts:
        """All of them, in order."""
        return cls(*(torch.cat(column) for column in zip(*map(cls.columns, parts), strict=True)))

    def columns(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The fields, in order."""
        return self.hash, self.label, self.pair, self.hard

    def __getitem__(self, rows: slice | Tensor) -> Texts:
        """Some of the texts."""
        return Texts(self.hash[rows], self.label[rows], self.pair[rows], self.hard[rows])


@dataclass(frozen=True)
class Exclusions:
    """Which rules are in force."""

    duplicates: bool = True
    """A text equal to the positive, or to the anchor itself, is no negative."""
    labels: bool = True
    """A text of the anchor's class is no negative, where both classes are known."""
    own_hard_only: bool = False
    """Hard negatives of other pairs do not count."""
    in_batch: bool = True
    """Texts of other pairs count at all."""


def exclusion_mask(
    anchors: Texts, positives: Texts, candidates: Texts, rules: Exclusions
) -> Tensor:
    """Find the candidates that must not count as negatives.

    Args:
        anchors: N anchors.
        positives: their N positives, in the same order.
        candidates: M positives and hard negatives.
        rules: what excludes a candidate.

    Returns:
        [N, M] bool; never True at an anchor's own positive.
    """
    same_pair = _equal(anchors.pair, candidates.pair)
    mask = torch.zeros_like(same_pair)
    if rules.duplicates:
        mask |= _equal(positives.hash, candidates.hash) | _equal(anchors.hash, candidates.hash)
    if rules.labels:
        mask |= _equal(anchors.label, candidates.label) & (candidates.label >= 0)
    if rules.own_hard_only:
        mask |= candidates.hard.bool() & ~same_pair
    if not rules.in_batch:
        mask |= ~same_pair
    return mask & ~(same_pair & ~candidates.hard.bool())


def _equal(rows: Tensor, columns: Tensor) -> Tensor:
    return rows.unsqueeze(1) == columns.unsqueeze(0)
