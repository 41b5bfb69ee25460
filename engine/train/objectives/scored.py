"""The objective of scored pairs: the cosine of each pair is trained to follow its score."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...config.schema import ContrastiveConfig
from ...config.tasks import SCORED_KINDS
from ...losses.contrastive import ContrastiveResult
from ...losses.scored import cosent, ordered_share, pair_cosines, spearman, squared_errors
from ...losses.weights import weighted_sum
from .contrastive import PairObjective, PairTexts


def pair_objective(config: ContrastiveConfig) -> PairObjective:
    """Return the objective of the configured contrastive loss over pairs."""
    return ScoredObjective(config) if config.kind in SCORED_KINDS else PairObjective(config)


class ScoredObjective(PairObjective):
    """Pools hidden states and compares the cosine of each pair with its score.

    The CoSENT loss is one value for all pairs that are compared with each other. Each rank computes
    it over the pairs of all ranks and weights it with the number of its own pairs, so that the sum
    over the ranks divided by the number of pairs is the loss.
    """

    scored = True
    main = "spearman"

    def pool(self, hidden: Tensor, batch: dict[str, Any]) -> PairTexts:
        """Pool the last hidden states [2B, T, H] of one micro-batch and keep its scores."""
        return replace(super().pool(hidden, batch), scores=batch["score"])

    def whole_blocks(self, everyone: PairTexts, own: range) -> Iterator[ContrastiveResult]:
        """Yield the result of this rank's pairs, as a single block."""
        scores = _scores(everyone)
        cosines = self._cosines(everyone)
        seen, rows = cosines.detach(), slice(own.start, own.stop)
        sums = {"cosine": seen[rows].sum(), "score": scores[rows].sum()}
        if self._config.kind == "cosine":
            weights = None if everyone.weights is None else everyone.weights[rows]
            loss = weighted_sum(squared_errors(cosines[rows], scores[rows]), weights)
        else:
            loss = cosent(cosines, scores, self.temperature.now()) * len(own)
            sums["ordered"] = ordered_share(seen, scores).to(seen.dtype) * len(own)
        yield ContrastiveResult(loss, len(own), sums)

    def measured(self, everyone: PairTexts, own: range) -> dict[str, float]:
        """Return Spearman's correlation of cosine and score, times the number of pairs in `own`."""
        return {"spearman": spearman(self._cosines(everyone), _scores(everyone)) * len(own)}

    def _cosines(self, everyone: PairTexts) -> Tensor:
        vectors = everyone.vectors
        return pair_cosines(vectors[everyone.anchors], vectors[everyone.positives])


def _scores(everyone: PairTexts) -> Tensor:
    if everyone.scores is None:
        raise TypeError("the texts have no scores, which ScoredObjective.pool adds")
    return everyone.scores.to(torch.float32)
