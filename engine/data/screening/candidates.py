"""Find the anchors of a data set for which none of its texts can be a negative."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain

from ...config.schema import ContrastiveConfig
from ..tokens.examples import PairExample


def anchors_without_negatives(
    pairs: Sequence[PairExample], config: ContrastiveConfig, hard_negatives: int
) -> Iterator[PairExample]:
    """Yield the pairs whose anchor has no negative among all texts of the data.

    A step holds a part of the data, so the anchors that are yielded have none in any step. The
    masks are those of the loss; `mask_margin`, which depends on the model, is left out.

    Args:
        pairs: All training pairs.
        config: Decides which texts are excluded from the negatives.
        hard_negatives: Largest number of hard negatives used per pair.
    """
    counts = _Counts(pairs, config, hard_negatives)
    return (pair for pair in pairs if not counts.negatives(pair))


class _Counts:
    """The frequency of each text and label among the candidates.

    Texts are represented by hashes of their token ids, as in the loss.
    """

    def __init__(
        self, pairs: Sequence[PairExample], config: ContrastiveConfig, hard_negatives: int
    ) -> None:
        self._config = config
        self._hard_negatives = hard_negatives
        hard = chain.from_iterable(map(self._hard, pairs))
        self._hard_texts = Counter(hard)
        self._hard_total = self._hard_texts.total()
        self._pairs = len(pairs)
        self._positives = Counter(_key(pair.positive) for pair in pairs)
        self._labels = Counter(pair.label for pair in pairs)
        self._labelled = Counter((_key(pair.positive), pair.label) for pair in pairs)

    def negatives(self, pair: PairExample) -> int:
        """Return the number of texts that may be negatives of a pair's anchor."""
        same = {_key(pair.positive), _key(pair.anchor)} if self._config.mask_duplicates else set()
        if not self._config.in_batch or self._config.own_hard_only:
            hard = sum(key not in same for key in self._hard(pair))
        else:
            hard = self._hard_total - sum(self._hard_texts[key] for key in same)
        return hard + (self._others(pair, same) if self._config.in_batch else 0)

    def _others(self, pair: PairExample, same: set[int]) -> int:
        """Return how many positives of other pairs may be negatives."""
        label = pair.label if self._config.mask_labels else None
        excluded = sum(self._positives[key] for key in same)
        if label is not None:
            excluded += self._labels[label] - sum(self._labelled[key, label] for key in same)
        own = 0 if same or label is not None else 1
        return self._pairs - excluded - own

    def _hard(self, pair: PairExample) -> list[int]:
        return [_key(ids) for ids in pair.negatives[: self._hard_negatives]]


def _key(ids: Sequence[int]) -> int:
    return hash(tuple(ids))
