"""The trainer of reward models."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import Trainer

from ...config.schema import RunConfig
from ...losses.gather import gather_sizes
from ...losses.weights import total_weight
from ...model.hidden import HiddenStates
from ..forward import Forward
from ..loop.hf_bridge import SteppedTrainer
from ..objectives.reward import RewardObjective
from .eager import EagerPairForward


class RewardTrainer(SteppedTrainer, Trainer):  # type: ignore[misc]  # transformers is untyped
    """Trains on the mean loss over all pairs of the optimizer step.

    Shares are multiplied by the number of ranks, because DDP averages the gradients.
    """

    loss_is_scaled_for_ga = True
    generates = False

    def __init__(self, config: RunConfig, **kwargs: Any) -> None:
        self._scale = 1.0
        """Factor from a sum over this rank's pairs to its share of the step's mean."""
        self._loss_scale = 1.0
        """Factor from a weighted sum of their losses to its share of the step's loss."""
        super().__init__(**kwargs)
        self.model_accepts_loss_kwargs = True
        self.objective = RewardObjective(config, self.model)
        self._hidden = HiddenStates(self.model).attach()

    def eager_forward(self, fact: str) -> Forward:
        """Return the forward strategy without CUDA graphs."""
        return EagerPairForward(self.model, fact, hidden=self._hidden)

    def prepare_step(self, batches: list[Any]) -> None:
        """Count the pairs of the step on all ranks."""
        counts = [(batch, int(batch["pair_count"])) for batch in batches]
        pairs, ranks = sum(gather_sizes(sum(n for _, n in counts))), self.accelerator.num_processes
        weight = total_weight(counts)
        self._scale, self._loss_scale = ranks / max(pairs, 1), ranks / weight if weight else 0.0

    def nothing_to_learn(self, batches: list[Any]) -> bool:
        """Return whether all pairs of the step have the weight 0."""
        return self._loss_scale == 0

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Tensor:
        """Return this micro-batch's share of the step's loss, and add its figures."""
        hidden = self.forward(model, inputs, "hidden")["hidden"]
        compared = self.objective.compare(self.objective.scores(hidden, inputs), inputs)
        shares = {name: total * self._scale for name, total in compared.sums.items()}
        shares["reward_margin"] = shares["rewards_chosen"] - shares["rewards_rejected"]
        self.step_loop.tally.add_parts(**shares)
        return compared.loss_sum * self._loss_scale
