"""Reward objective: scores of texts, the loss of pairs of them, and evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ...config.schema import RunConfig
from ...losses.preference import CHOSEN, REJECTED, Compared, means
from ...losses.reward import last_token_states, reward_losses, scores_of
from ...losses.weights import record_weights, weighted_sum
from ...model.adapter.score_head import score_weight
from ...model.hidden import base_model_of

FIGURES = ("rewards_chosen", "rewards_rejected", "reward_accuracy")
"""Names of the sums over pairs beside the loss."""


class RewardObjective:
    """Scores texts by the hidden state of their last token and compares the scores of pairs."""

    def __init__(self, config: RunConfig, model: Any) -> None:
        self._config = config.reward
        self._weight = score_weight(model)
        base: Any = base_model_of(model)
        self._pad_id = int(base.config.pad_token_id)

    def scores(self, hidden: Tensor, batch: dict[str, Any]) -> Tensor:
        """Return the score of every text, [2B], from the last hidden states [2B, T, H]."""
        states = last_token_states(hidden, batch["input_ids"], self._pad_id)
        return scores_of(states, self._weight)

    def losses(self, scores: Tensor, batch: dict[str, Any]) -> Tensor:
        """Return the loss of every pair, [B], from the scores [2B] of chosen, then rejected."""
        chosen, rejected = scores.chunk(2)
        return reward_losses(chosen, rejected, batch.get("margin"), self._config.centering)

    def compare(self, scores: Tensor, batch: dict[str, Any]) -> Compared:
        """Return the loss and the metrics of a batch, as sums over its pairs."""
        chosen, rejected = scores.detach().chunk(2)
        sums = (chosen.sum(), rejected.sum(), (chosen > rejected).sum())
        loss_sum = weighted_sum(self.losses(scores, batch), record_weights(batch))
        return Compared(loss_sum, dict(zip(FIGURES, sums, strict=True)))


def evaluate_rewards(
    objective: RewardObjective,
    states: Iterable[tuple[Tensor, dict[str, Any]]],
    over_ranks: Callable[[list[float]], list[float]],
) -> dict[str, float]:
    """Return the metrics of the task over all held-out pairs.

    Args:
        objective: computes the loss and the metrics.
        states: last hidden states [2B, T, H] of each batch of this rank, and the batch.
        over_ranks: sums lists of numbers over the ranks; a collective.
    """
    totals = torch.zeros(2 + len(FIGURES), dtype=torch.float64)
    for hidden, batch in states:
        compared = objective.compare(objective.scores(hidden, batch), batch)
        found = [float(batch["pair_count"]), float(compared.loss_sum)]
        totals += torch.tensor(
            found + [float(compared.sums[name]) for name in FIGURES], dtype=torch.float64
        )
    pairs, loss, *sums = over_ranks(totals.tolist())
    count = max(pairs, 1.0)
    counts = {CHOSEN: count, REJECTED: count, "all": count}
    return {"loss": loss / count, **means(dict(zip(FIGURES, sums, strict=True)), counts)}
