"""The trainer for preference data (dpo, kto)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer

from ...config.schema import RunConfig
from ...losses.cross_entropy import IGNORED
from ...losses.gather import sums_over_ranks
from ...losses.preference import CHOSEN, REJECTED, Compared, LogProbs, about
from ...losses.weights import record_weights, weighted_sum, weights_of
from ...model.experts import balance_weight
from ...model.hidden import base_model_of
from ..forward import Forward, Want, Way
from ..loop.hf_bridge import SteppedTrainer
from ..objectives.preference import Batch, PreferenceObjective
from ..objectives.reference import StartReference
from .eager import EagerPreferenceForward


class PreferenceTrainer(SteppedTrainer, Trainer):  # type: ignore[misc]  # transformers is untyped
    """Trains on the mean loss over all pairs, or rated completions, of the optimizer step.

    Shares are multiplied by the number of ranks, because DDP averages the gradients.
    """

    loss_is_scaled_for_ga = True

    def __init__(self, config: RunConfig, **kwargs: Any) -> None:
        self._balance_weight = 0.0
        self._micro_batches = 1
        self._has_effect = True
        """Whether a loss of the step has a weight above 0 on any rank."""
        self._scales: dict[str, float] = {}
        """Factors from sums over this rank's rows to shares of the step's means, by name."""
        super().__init__(**kwargs)
        self.model_accepts_loss_kwargs = True
        self.objective = PreferenceObjective(config, self.model)
        base = base_model_of(self.model)
        self._balance_weight = balance_weight(base, config.train.router_aux_loss)
        self._divergence = torch.zeros((), device=self.args.device)

    def eager_forward(self, fact: str) -> Forward:
        """Return the forward strategy without CUDA graphs."""
        return EagerPreferenceForward(
            self.model, fact, log_probs=self.objective.log_probs_and_balance
        )

    @property
    def divergence(self) -> Tensor:
        """Mean divergence from the reference in the newest step, []; 0 except for kto."""
        return self._divergence

    def prepare_step(self, batches: list[Batch]) -> None:
        """Count the rows of the step and compute the log-probabilities of the reference, if any.

        They are computed for the whole step, because without graphs it is slow to disable adapters.
        For kto, the mean divergence of the step is computed, too. All of that ends early if the
        step is dropped.
        """
        self._scales = self._count(batches)
        self._micro_batches = max(1, len(batches))
        if self.objective.in_reference is None:
            return
        with self.step_loop.tally.time("compute"), self.compute_loss_context_manager():
            moved = self._add_reference(batches)
        if self.objective.diverges and moved is not None:
            mean = self.accelerator.reduce(moved * self._scales["all"], reduction="mean")
            self._divergence = mean.clamp_min(0)
            self.step_loop.tally.add_parts(kl=self._divergence)

    def _add_reference(self, batches: Sequence[Batch]) -> Tensor | None:
        """Add `reference` to every batch; return the summed divergence, which is 0 except for kto.

        An ordered loss adds `partners` too. Returns None if the step is dropped meanwhile.
        """
        diverges, ordered = self.objective.diverges, self.objective.ordered
        moved, policies = torch.zeros((), device=self.args.device), []
        with self.forward.without_gradients():
            for batch in batches if diverges or ordered else ():
                if not self.step_loop.may_continue():
                    return None
                if ordered:
                    policies.append(self._compared_log_probs(batch, "still"))
                else:
                    moved += self._compared_log_probs(batch["mismatched"], "still").sum()
            context, way = self._reference_way()
            with context:
                for batch in batches:
                    if not self.step_loop.may_continue():
                        return None
                    batch["reference"] = self._compared_log_probs(batch, way)
                    if diverges:
                        moved -= self._compared_log_probs(batch["mismatched"], way).sum()
        if ordered:
            orders = self.objective.partners(policies, [batch["reference"] for batch in batches])
            for batch, order in zip(batches, orders, strict=True):
                batch["partners"] = order
        return moved

    def _reference_way(self) -> tuple[AbstractContextManager[None], Way]:
        """Return the context in which the reference runs, and the `Way` to run it there."""
        reference = self.objective.in_reference
        assert reference is not None, "steps without a reference end before this"
        if isinstance(reference, StartReference):
            return reference(), "still"
        return self.forward.reference(), "reference"

    @property
    def kept_tensors(self) -> Sequence[Tensor]:
        """Tensors beside model and optimizer that the run keeps on the device."""
        reference = self.objective.in_reference
        return () if reference is None else reference.kept

    def _compared_log_probs(self, batch: Batch, way: Way) -> Tensor:
        """Return log-probabilities [rows]; called within the contexts without gradients."""
        inputs = self._prepare_inputs(self.objective.split(batch))
        return self._passed(self.model, inputs, [], way)[0].total

    def _log_probs(self, model: Any, inputs: Batch) -> tuple[LogProbs, Tensor | None]:
        """Return log-probabilities by the trained model, and the load balancing loss of experts.

        The second value is None unless that loss is a part of the trained one.
        """
        more: list[Want] = ["balance"] if self._balance_weight else []
        return self._passed(model, self.objective.split(inputs, with_prompt=True), more, "trained")

    def _passed(
        self, model: Any, inputs: Batch, more: Sequence[Want], way: Way
    ) -> tuple[LogProbs, Tensor | None]:
        """Return log-probabilities by a pass over what `split` has returned, and the balance."""
        tokens, context = _targets(inputs["labels"]), inputs.get("context")
        wants: list[Want] = ["log_probs", *more]
        if context is None:
            found = self.forward(model, inputs, *wants, way=way)
            return LogProbs(found["log_probs"], tokens), found.get("balance")
        found = self.forward(model, inputs, *wants, "context_log_probs", way=way)
        apart = found["context_log_probs"], _targets(context)
        log_probs = LogProbs(found["log_probs"], tokens, *apart)
        return self.objective.joined(log_probs), found.get("balance")

    def _count(self, batches: Sequence[Batch]) -> dict[str, float]:
        wanted = [self.objective.desirable(batch) for batch in batches]
        chosen = sum(int(rows.sum()) for rows in wanted)
        rejected = sum(len(rows) for rows in wanted) - chosen
        tokens = weight = 0.0
        for batch, rows in zip(batches, wanted, strict=True):
            weights = weights_of(batch, len(rows) if self.objective.rated else int(rows.sum()))
            weight += sum(weights)
            context = self.objective.context(batch)
            each = _targets(batch["labels"][rows])
            each = each if context is None else each + _targets(context[rows])
            said = weights if not self.objective.rated else [1.0] * len(each)
            tokens += sum(n * w for n, w in zip(each.tolist(), said, strict=True))
        totals = sums_over_ranks((chosen, rejected, weight, tokens, self._effective(batches)))
        self._has_effect = totals[4] > 0 or (self.objective.has_ce and totals[3] > 0)
        counted = totals[0] + totals[1] if self.objective.rated else totals[0]
        counts = {CHOSEN: totals[0], REJECTED: totals[1], "all": counted}
        counts |= {"loss": totals[2], "tokens": totals[3]}
        ranks = self.accelerator.num_processes
        return {name: ranks / count for name, count in counts.items() if count}

    def _effective(self, batches: Sequence[Batch]) -> float:
        """Return the summed weights of the losses of this rank.

        That of a rated completion is the weight of its record times the one of its rating.
        """
        total = 0.0
        for batch in batches:
            wanted = self.objective.desirable(batch).tolist()
            factors = self.objective.factors(wanted)
            weights = weights_of(batch, len(factors))
            total += sum(one * weight for one, weight in zip(factors, weights, strict=True))
        return total

    def nothing_to_learn(self, batches: list[Batch]) -> bool:
        """Return whether no pair, or no rated completion, of the step has a weight above 0."""
        return not self._has_effect

    def compute_loss(
        self,
        model: Any,
        inputs: Batch,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Tensor:
        """Return this micro-batch's share of the step's loss, and add its parts to the metrics."""
        desirable = self.objective.desirable(inputs)
        policy, balance = self._log_probs(model, inputs)
        reference = inputs.get("reference", torch.zeros_like(policy.total))
        weights = record_weights(inputs)
        compared = self.objective.compare(
            policy, reference, desirable, self._divergence, weights, inputs.get("partners")
        )
        loss = compared.loss_sum * self._scales.get("loss", 0.0)
        self._publish(compared)
        if self.objective.has_ce:
            said = torch.where(desirable, policy.with_context()[0], 0.0)
            said = said if weights is None else said[: len(weights)]
            ce = -weighted_sum(said, weights) * self._scales.get("tokens", 0.0)
            self.step_loop.tally.add_parts(preference=loss, ce=ce)
            loss = self.objective.total(loss, ce)
        if balance is not None:
            share = self._balance_weight * balance / self._micro_batches
            self.step_loop.tally.add_parts(balance=share)
            loss = loss + share
        return loss

    def _publish(self, compared: Compared) -> None:
        """Add the figures of a micro-batch to the metrics of the step.

        Figures about chosen or rejected completions are left out if the step has none of them.
        """
        shares = {
            name: total * self._scales[about(name)]
            for name, total in compared.sums.items()
            if about(name) in self._scales
        }
        if {"rewards_chosen", "rewards_rejected"} <= shares.keys():
            shares["reward_margin"] = shares["rewards_chosen"] - shares["rewards_rejected"]
        self.step_loop.tally.add_parts(**shares)


def _targets(labels: Tensor) -> Tensor:
    """Return the number of predicted tokens of each row of labels [B, T], [B]."""
    return (labels[:, 1:] != IGNORED).sum(dim=1)
