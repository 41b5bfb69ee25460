"""Masks of the candidates that must not count as negatives of an anchor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Texts:
    """Properties of n texts that decide which are negatives; every field is int64 [n]."""

    hash: Tensor
    """Hash of the token ids after truncation; equal hashes mean equal texts."""
    label: Tensor
    """Class of the text; negative if unknown."""
    pair: Tensor
    """Number of the pair that a text belongs to."""
    hard: Tensor
    """1 for a hard negative of its pair, 0 for its anchor or positive."""

    @classmethod
    def joined(cls, parts: Sequence[Texts]) -> Texts:
        """Concatenate texts in order."""
        return cls(*(torch.cat(column) for column in zip(*map(cls.columns, parts), strict=True)))

    def columns(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return `hash`, `label`, `pair` and `hard`."""
        return self.hash, self.label, self.pair, self.hard

    def __getitem__(self, rows: slice | Tensor) -> Texts:
        """Return the texts at these rows."""
        return Texts(self.hash[rows], self.label[rows], self.pair[rows], self.hard[rows])


@dataclass(frozen=True)
class Exclusions:
    """Rules by which candidates are excluded from the negatives."""

    duplicates: bool = True
    """Exclude texts equal to the positive or to the anchor."""
    labels: bool = True
    """Exclude texts of the anchor's class, if both classes are known."""
    own_hard_only: bool = False
    """Exclude hard negatives of other pairs."""
    in_batch: bool = True
    """Keep texts of other pairs; False excludes all of them."""


def exclusion_mask(
    anchors: Texts, positives: Texts, candidates: Texts, rules: Exclusions
) -> Tensor:
    """Return the candidates that must not count as negatives.

    Args:
        anchors: N anchors.
        positives: The N positives in the order of the anchors.
        candidates: M positives and hard negatives.
        rules: Rules that exclude a candidate.

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
