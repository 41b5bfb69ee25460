"""The contrastive objective over the pooled texts of a micro-batch, a step or all ranks.

A text is a vector and the facts that the exclusion masks need. Joining and gathering keep the same
layout, so one loss serves a micro-batch, a whole optimizer step, and the texts of all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add
from typing import Any

import torch
from torch import Tensor

from ...config.schema import ContrastiveConfig
from ...losses.contrastive import (
    ContrastiveResult,
    Reverse,
    info_nce,
    pairwise_logistic,
    triplet,
)
from ...losses.gather import gather_counts, gather_rows, own_rank, world_size
from ...losses.masks import Exclusions, Texts, exclusion_mask
from ...losses.pooling import pool
from ...losses.retrieval import retrieval_sums, triplet_sums
from ...losses.temperature import Temperature
from ...losses.weights import record_weights

COSINES_AT_ONCE = 2**22
"""Elements of one block of the cosine matrix: 16 MB in fp32, about ten of which exist at once."""


@dataclass(frozen=True)
class PairTexts:
    """The pooled texts of N pairs, as rows: N anchors, N positives, K hard negatives."""

    vectors: Tensor
    """Pooled vectors, [2N + K, H] fp32."""
    texts: Texts
    """The texts of the same rows; pairs are numbered from 0 in the order of the anchors."""
    pairs: int
    """Number of pairs N."""
    scores: Tensor | None = None
    """[N] similarity score of each pair; None for losses that use no scores."""
    weights: Tensor | None = None
    """[N] factor on the loss of each pair; None if all are 1. Of pairs of other ranks it is 0."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.vectors)

    def cut(self, size: int) -> PairTexts:
        """Return the texts with the first `size` numbers of their vectors."""
        return replace(self, vectors=self.vectors[:, :size])

    @property
    def anchors(self) -> slice:
        """The rows of the anchors."""
        return slice(0, self.pairs)

    @property
    def positives(self) -> slice:
        """The rows of the positives, in the order of the anchors."""
        return slice(self.pairs, 2 * self.pairs)

    @property
    def negatives(self) -> slice:
        """The rows of the hard negatives."""
        return slice(2 * self.pairs, None)

    @property
    def candidates(self) -> slice:
        """The rows of the candidates of an anchor: positives, then hard negatives."""
        return slice(self.pairs, None)


def pair_texts(pooled: Tensor, batch: dict[str, Any]) -> PairTexts:
    """Return the texts of one micro-batch, in the layout of the pair collator.

    Args:
        pooled: pooled vectors [2B + N, H].
        batch: a batch of the pair collator.
    """
    pairs = int(batch["pair_count"])
    owner, label = batch["negative_owner"], batch["label"]
    number = torch.arange(pairs, device=pooled.device)
    texts = Texts(
        hash=batch["text_hash"],
        label=torch.cat((label, label, label.new_full((len(owner),), -1))),
        pair=torch.cat((number, number, owner)),
        hard=torch.cat((torch.zeros_like(number).repeat(2), torch.ones_like(owner))),
    )
    return PairTexts(pooled, texts, pairs, weights=record_weights(batch))


def join(parts: Sequence[PairTexts]) -> PairTexts:
    """Join the texts of several micro-batches or ranks into one, in the same order."""
    numbered, pairs = [], 0
    for part in parts:
        texts = replace(part.texts, pair=part.texts.pair + pairs)
        numbered.append(replace(part, texts=texts))
        pairs += part.pairs
    chosen = [(part, part.anchors) for part in numbered]
    chosen += [(part, part.positives) for part in numbered]
    chosen += [(part, part.negatives) for part in numbered]
    vectors = torch.cat([part.vectors[rows] for part, rows in chosen])
    known = [part.scores for part in parts if part.scores is not None]
    return PairTexts(
        vectors,
        Texts.joined([part.texts[rows] for part, rows in chosen]),
        pairs,
        torch.cat(known) if known else None,
        _joined_weights(parts),
    )


def _joined_weights(parts: Sequence[PairTexts]) -> Tensor | None:
    """Return the weights of the pairs of all parts, [N]; None if all are 1."""
    if all(part.weights is None for part in parts):
        return None
    each = [
        part.vectors.new_ones(part.pairs) if part.weights is None else part.weights
        for part in parts
    ]
    return torch.cat(each)


def across_ranks(own: PairTexts) -> tuple[PairTexts, range]:
    """Return the texts of all ranks and the range of this rank's pairs.

    All ranks call this together, and run its backward pass together.
    """
    if world_size() == 1:
        return own, range(own.pairs)
    counts = gather_counts((own.pairs, len(own)))
    sizes = [rows for _, rows in counts]
    vectors, _ = gather_rows(own.vectors, sizes)
    columns, _ = gather_rows(torch.stack(own.texts.columns(), dim=1), sizes)
    ranks = zip(torch.split(vectors, sizes), torch.split(columns, sizes), counts, strict=True)
    parts = [
        PairTexts(rows, Texts(*columns.unbind(1)), pairs) for rows, columns, (pairs, _) in ranks
    ]
    joined = join(parts)
    if own.scores is not None:
        scores, _ = gather_rows(own.scores, [pairs for pairs, _ in counts])
        joined = replace(joined, scores=scores)
    first = sum(pairs for pairs, _ in counts[: own_rank()])
    if own.weights is not None:
        weights = own.weights.new_zeros(joined.pairs)
        weights[first : first + own.pairs] = own.weights
        joined = replace(joined, weights=weights)
    return joined, range(first, first + own.pairs)


class PairObjective:
    """Pools hidden states and computes the configured contrastive loss over texts."""

    scored = False
    """Whether the loss compares cosines with the scores of pairs."""
    main = "ndcg_at_10"
    """The metric that is also measured for shorter vectors."""

    def __init__(self, config: ContrastiveConfig) -> None:
        self._config = config
        self._loss = _loss_of(config)
        self._rules = Exclusions(
            duplicates=config.mask_duplicates,
            labels=config.mask_labels,
            own_hard_only=config.own_hard_only,
            in_batch=config.in_batch,
        )
        self.temperature = Temperature(
            config.temperature,
            learned=config.learn_temperature,
            bounds=(config.temperature_bounds[0], config.temperature_bounds[1]),
        )

    def pool(self, hidden: Tensor, batch: dict[str, Any]) -> PairTexts:
        """Pool the last hidden states [2B + N, T, H] of one micro-batch."""
        mask = batch["pool_mask" if self._config.exclude_prompt else "attention_mask"]
        return pair_texts(pool(hidden, mask, self._config.pooling), batch)

    def spread(self, own: PairTexts) -> tuple[PairTexts, range]:
        """Return the texts to compare and the range of this rank's pairs among them.

        They are the texts of all ranks with `contrastive.cross_device`, otherwise this rank's own.
        """
        return across_ranks(own) if self._config.cross_device else (own, range(own.pairs))

    def compare(self, everyone: PairTexts, own: range) -> ContrastiveResult:
        """Return loss and figures of the anchors in a range against all candidates, as sums."""
        return reduce(add, self.blocks(everyone, own))

    def blocks(self, everyone: PairTexts, own: range) -> Iterator[ContrastiveResult]:
        """Yield the results of one block of anchors at a time, so that each can be freed early.

        The losses of vectors cut to `contrastive.dimensions` follow, without anchors and figures.
        """
        yield from self.whole_blocks(everyone, own)
        for size in self._config.dimensions:
            for part in self.whole_blocks(everyone.cut(size), own):
                yield part.loss_alone()

    def whole_blocks(self, everyone: PairTexts, own: range) -> Iterator[ContrastiveResult]:
        """Yield the results of `blocks` for vectors of one length."""
        size = max(1, COSINES_AT_ONCE // max(1, len(everyone)))
        for start in range(own.start, max(own.stop, own.start + 1), size):
            yield self._block(everyone, slice(start, min(start + size, own.stop)))

    def held_out(self, everyone: PairTexts, own: range) -> dict[str, float]:
        """Return the metrics of held-out texts, as sums over the anchors in a range.

        For vectors cut to `contrastive.dimensions` the `main` one follows, with the length in its
        name, such as `ndcg_at_10_64`.
        """
        found = self.measured(everyone, own)
        for size in self._config.dimensions:
            found[f"{self.main}_{size}"] = self.measured(everyone.cut(size), own)[self.main]
        return found

    def measured(self, everyone: PairTexts, own: range) -> dict[str, float]:
        """Return the metrics of `held_out` for vectors of one length."""
        return retrieval(everyone, own)

    def _block(self, everyone: PairTexts, rows: slice) -> ContrastiveResult:
        vectors, texts = everyone.vectors, everyone.texts
        anchors, positives = texts[everyone.anchors], texts[everyone.positives]
        candidates = texts[everyone.candidates]
        index = torch.arange(rows.start, rows.stop, device=vectors.device)
        symmetric: bool | Reverse = False
        if self._config.symmetric:
            back = exclusion_mask(anchors, positives, positives[rows], self._rules).T
            symmetric = Reverse(vectors[everyone.anchors], index, back)
        result = self._loss(
            vectors[everyone.anchors][rows],
            vectors[everyone.candidates],
            index,
            exclusion_mask(anchors[rows], positives[rows], candidates, self._rules),
            self.temperature.now(),
            symmetric=symmetric,
            margin=self._config.mask_margin,
        )
        return result.weighted(None if everyone.weights is None else everyone.weights[rows])


def _loss_of(config: ContrastiveConfig) -> Callable[..., ContrastiveResult]:
    """Return the loss over anchors and candidates of a kind that compares texts without scores."""
    if config.kind == "triplet":
        return partial(triplet, lead=config.margin)
    return pairwise_logistic if config.kind == "pairwise" else info_nce


def retrieval(everyone: PairTexts, own: range) -> dict[str, float]:
    """Return the retrieval metrics of the anchors in a range, as sums over these anchors.

    The corpus consists of all distinct positives. A text is relevant to an anchor if it is its
    positive, equals the positive or the anchor, or has the label of the anchor. `triplets` counts
    the hard negatives, `right_triplets` those farther from their anchor than its positive.
    """
    rows = slice(own.start, own.stop)
    vectors, texts = everyone.vectors, everyone.texts
    anchors, positives = vectors[everyone.anchors], vectors[everyone.positives]
    distinct = _first_of_each(texts[everyone.positives].hash)
    corpus = texts[everyone.positives][distinct]
    asked, answers = texts[everyone.anchors][rows], texts[everyone.positives][rows]
    relevant = exclusion_mask(asked, answers, corpus, Exclusions())
    relevant |= answers.hash.unsqueeze(1) == corpus.hash
    sums = retrieval_sums(anchors[rows], positives[distinct], relevant)
    owner = texts[everyone.negatives].pair
    mine = (owner >= own.start) & (owner < own.stop)
    right = triplet_sums(anchors, positives, vectors[everyone.negatives][mine], owner[mine])
    found = {name: float(value) for name, value in sums.items()}
    return {**found, "triplets": float(mine.sum()), "right_triplets": float(right)}


def _first_of_each(hashes: Tensor) -> Tensor:
    """Return the ascending indices of the first occurrence of every value."""
    values, group = torch.unique(hashes, return_inverse=True)
    index = torch.arange(len(hashes), device=hashes.device)
    first = torch.full((len(values),), len(hashes), device=hashes.device)
    return first.scatter_reduce(0, group, index, "amin").sort().values
