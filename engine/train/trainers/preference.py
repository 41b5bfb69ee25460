"""The trainer for preference data (dpo, kto)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer

from ...config.schema import RunConfig
from ...losses.cross_entropy import IGNORED
from ...losses.gather import gather_counts
from ...losses.preference import CHOSEN, REJECTED, Compared, LogProbs, about
from ..forward import Forward, Way
from ..loop.hf_bridge import SteppedTrainer
from ..objectives.preference import Batch, PreferenceObjective
from .eager import EagerPreferenceForward


class PreferenceTrainer(SteppedTrainer, Trainer):  # type: ignore[misc]  # transformers is untyped
    """The loss is the mean over all pairs, or rated completions, of the optimizer step.

    Shares are multiplied by the number of ranks, because DDP averages.
    """

    loss_is_scaled_for_ga = True

    def __init__(self, config: RunConfig, **kwargs: Any) -> None:
        self._scales: dict[str, float] = {}
        """Factors from sums over this rank's rows to shares of the step's means, by name."""
        super().__init__(**kwargs)
        self.model_accepts_loss_kwargs = True
        self.objective = PreferenceObjective(config, self.model)
        self._divergence = torch.zeros((), device=self.args.device)

    def eager_forward(self, fact: str) -> Forward:
        """Return the forward strategy without CUDA graphs."""
        return EagerPreferenceForward(self.model, fact, log_probs=self.objective.log_probs)

    def prepare_step(self, batches: list[Batch]) -> None:
        """Count what the step's means are over, and see what the reference says of all of it.

        At once for the step: without graphs, switching a model's adapters off takes a while.
        """
        self._scales = self._count(batches)
        with self.step_loop.tally.time("compute"), self.compute_loss_context_manager():
            moved = self._look_back(batches)
        if self.objective.rated and moved is not None:
            mean = self.accelerator.reduce(moved * self._scales["all"], reduction="mean")
            self._divergence = mean.clamp_min(0)
            self.step_loop.tally.add_parts(kl=self._divergence)

    def _look_back(self, batches: Sequence[Batch]) -> Tensor | None:
        """Put `reference` into every batch; for kto, how far the model has moved, summed.

        None where the step is dropped on the way.
        """
        rated, moved = self.objective.rated, torch.zeros((), device=self.args.device)
        with self.forward.without_gradients():
            for batch in batches if rated else ():
                if not self.step_loop.may_continue():
                    return None
                moved += self._looked_at(batch["mismatched"], "still").sum()
            with self.forward.reference():
                for batch in batches:
                    if not self.step_loop.may_continue():
                        return None
                    batch["reference"] = self._looked_at(batch, "reference")
                    if rated:
                        moved -= self._looked_at(batch["mismatched"], "reference").sum()
        return moved

    def _looked_at(self, batch: Batch, way: Way) -> Tensor:
        """Return log-probabilities [rows] without a gradient, inside the contexts of `forward`."""
        inputs = self._prepare_inputs(batch)
        return self.forward(self.model, inputs, "log_probs", way=way)["log_probs"]

    def _log_probs(self, model: Any, inputs: Batch) -> LogProbs:
        """Return the log-probabilities of the trained model."""
        total = self.forward(model, inputs, "log_probs")["log_probs"]
        return LogProbs(total, (inputs["labels"][:, 1:] != IGNORED).sum(dim=1))

    def _count(self, batches: Sequence[Batch]) -> dict[str, float]:
        wanted = [self.objective.desirable(batch) for batch in batches]
        chosen = sum(int(rows.sum()) for rows in wanted)
        rejected = sum(len(rows) for rows in wanted) - chosen
        labels = [batch["labels"][rows] for batch, rows in zip(batches, wanted, strict=True)]
        tokens = sum(int((one[:, 1:] >= 0).sum()) for one in labels)
        every = gather_counts((chosen, rejected, tokens))
        totals = [sum(column) for column in zip(*every, strict=True)]
        counted = totals[0] + totals[1] if self.objective.rated else totals[0]
        counts = {CHOSEN: totals[0], REJECTED: totals[1], "all": counted, "tokens": totals[2]}
        ranks = self.accelerator.num_processes
        return {name: ranks / count for name, count in counts.items() if count}

    def compute_loss(
        self,
        model: Any,
        inputs: Batch,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Tensor:
        """This micro-batch's share of the step's loss."""
        desirable = self.objective.desirable(inputs)
        policy = self._log_probs(model, inputs)
        compared = self.objective.compare(policy, inputs["reference"], desirable, self._divergence)
        loss = compared.loss_sum * self._scales["all"]
        self._publish(compared)
        if self.objective.has_ce:
            ce = -torch.where(desirable, policy.total, 0.0).sum() * self._scales.get("tokens", 0.0)
            self.step_loop.tally.add_parts(preference=loss, ce=ce)
            loss = self.objective.total(loss, ce)
        return loss

    def _publish(self, compared: Compared) -> None:
        """Add to the step's figures; a kind of completion that the step has none of has no mean."""
        shares = {
            name: total * self._scales[about(name)]
            for name, total in compared.sums.items()
            if about(name) in self._scales
        }
        if {"rewards_chosen", "rewards_rejected"} <= shares.keys():
            shares["reward_margin"] = shares["rewards_chosen"] - shares["rewards_rejected"]
        self.step_loop.tally.add_parts(**shares)
