"""The trainer for judged completions (dpo, kto), under the same control as the others.

The reference is the model with its adapters off, so there is no second one in memory, and no state
of its own to save: a checkpoint of the adapter is all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from peft import PeftModel
from torch import Tensor
from transformers import Trainer

from ...config.schema import RunConfig
from ...losses.cross_entropy import IGNORED
from ...losses.gather import gather_counts
from ...losses.preference import (
    CHOSEN,
    FIGURES,
    REJECTED,
    Compared,
    LogProbs,
    about,
    completion_log_probs,
    means,
    pair_losses,
    rated_losses,
    reward_sums,
)
from ...model.hidden import HiddenStates, lm_head_of
from ..loop.hf_bridge import SteppedTrainer

Batch = dict[str, Any]
Loss = TypeVar("Loss", float, Tensor)


@dataclass(frozen=True)
class EvaluatedBatch:
    """A batch as an evaluation keeps it until all are seen."""

    policy: LogProbs
    reference: Tensor
    desirable: Tensor
    apart: float
    """Sum of log π − log ρ over its mismatched completions."""

    def counts(self) -> tuple[float, float, float, float]:
        """Chosen, rejected, tokens of the chosen, and how far the model is from its reference."""
        chosen, rows = int(self.desirable.sum()), len(self.desirable)
        tokens = int(self.policy.tokens[self.desirable].sum())
        return float(chosen), float(rows - chosen), float(tokens), self.apart


class PreferenceObjective:
    """Log-probabilities of model and reference, and how they compare, as configured."""

    def __init__(self, config: RunConfig, model: PeftModel) -> None:
        self._config = config.preference
        self.rated = config.task == "kto"
        """Completions are judged one by one, not in pairs."""
        self._model = model
        self._head = lm_head_of(model)

    def log_probs(self, model: Any, batch: Batch) -> LogProbs:
        """Of the completions of a batch, [rows], by the model as it is (wrapped or not)."""
        with HiddenStates(self._model) as hidden:
            model(
                input_ids=batch["input_ids"],
                attention_mask=batch["attention_mask"],
                logits_to_keep=1,
            )
            return completion_log_probs(hidden.take(), batch["labels"], self._head)

    def reference(self, batch: Batch) -> Tensor:
        """Log-probabilities of the completions without the adapter, [rows]; no gradient."""
        with still(self._model), self._model.disable_adapter():
            return self.log_probs(self._model, batch).total

    def divergence_sum(self, batch: Batch) -> Tensor:
        """Sum over a batch of log π − log ρ of completions that do not belong to their prompt."""
        other = batch["mismatched"]
        with still(self._model):
            now = self.log_probs(self._model, other).total
        return (now - self.reference(other)).sum()

    def desirable(self, batch: Batch) -> Tensor:
        """Which rows are wanted: the first half where completions come in pairs."""
        if self.rated:
            wanted: Tensor = batch["desirable"]
            return wanted
        rows = len(batch["input_ids"])
        return torch.arange(rows, device=batch["input_ids"].device) < rows // 2

    def compare(
        self, policy: LogProbs, reference: Tensor, desirable: Tensor, divergence: Tensor
    ) -> Compared:
        """Loss and figures of a batch, summed.

        Args:
            policy: of the model, [rows].
            reference: log-probabilities of the reference, [rows].
            desirable: which rows are wanted.
            divergence: of the whole step; not used for pairs.
        """
        config, ratio = self._config, policy.total - reference
        if self.rated:
            weights = config.desirable_weight, config.undesirable_weight
            losses = rated_losses(ratio, desirable, divergence, config.beta, weights)
            right = (ratio > divergence) == desirable
        else:
            chosen, rejected = ratio.chunk(2)
            lengths = policy.tokens.chunk(2)
            losses = pair_losses(
                chosen,
                rejected,
                (lengths[0], lengths[1]),
                config.loss,
                config.beta,
                config.label_smoothing,
            )
            right = chosen > rejected
        sums = reward_sums(policy, ratio.detach(), desirable, config.beta)
        return Compared(losses.sum(), {**sums, "reward_accuracy": right.sum()})

    def see(self, batch: Batch) -> EvaluatedBatch:
        """What an evaluation keeps of a batch."""
        policy, reference = self.log_probs(self._model, batch), self.reference(batch)
        apart = self.divergence_sum(batch) if self.rated else torch.zeros(())
        return EvaluatedBatch(policy, reference, self.desirable(batch), float(apart))

    def total(self, loss: Loss, ce: Loss) -> Loss:
        """The loss that is optimized, of its parts."""
        return loss + self._config.ce_weight * ce

    @property
    def has_ce(self) -> bool:
        """The next-token loss of chosen completions is a part of the loss."""
        return self._config.ce_weight > 0


def evaluate_judged(
    objective: PreferenceObjective,
    batches: Iterable[Batch],
    over_ranks: Callable[[list[float]], list[float]],
) -> dict[str, float]:
    """The task's metrics over all held-out completions.

    Args:
        objective: whose loss is meant.
        batches: this rank's, ready for the device; perhaps none.
        over_ranks: sums lists of numbers over the ranks; a collective.
    """
    seen = [objective.see(batch) for batch in batches]
    own = [sum(column) for column in zip(*(one.counts() for one in seen), strict=True)]
    chosen, rejected, tokens, apart = over_ranks(own or [0.0] * 4)
    judged = max(chosen + rejected if objective.rated else chosen, 1.0)
    divergence = torch.tensor(max(apart / judged, 0.0))
    sums = dict.fromkeys(("loss", "ce", *FIGURES), 0.0)
    for one in seen:
        at = divergence.to(one.reference.device)
        compared = objective.compare(one.policy, one.reference, one.desirable, at)
        sums["loss"] += float(compared.loss_sum)
        sums["ce"] -= float(one.policy.total[one.desirable].sum())
        for name, total in compared.sums.items():
            sums[name] += float(total)
    totals = dict(zip(sums, over_ranks(list(sums.values())), strict=True))
    ce, loss = totals.pop("ce") / max(tokens, 1.0), totals.pop("loss") / judged
    return {
        "loss": objective.total(loss, ce),
        **({"ce": ce} if objective.has_ce else {}),
        **means(totals, {CHOSEN: chosen, REJECTED: rejected, "all": judged}),
        **({"kl": float(divergence)} if objective.rated else {}),
    }


@contextmanager
def still(model: PeftModel) -> Iterator[None]:
    """No dropout and no gradient for a while: these passes must not take random numbers."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


class PreferenceTrainer(SteppedTrainer, Trainer):  # type: ignore[misc]  # transformers is untyped
    """The loss is the mean over all pairs, or rated completions, of the optimizer step.

    Shares are multiplied by the number of ranks, because DDP averages.
    """

    loss_is_scaled_for_ga = True

    def __init__(self, config: RunConfig, **kwargs: Any) -> None:
        self._scales: dict[str, float] = {}
        """From sums over this rank's rows to shares of the step's means, by what they are about."""
        super().__init__(**kwargs)
        self.model_accepts_loss_kwargs = True
        self.objective = PreferenceObjective(config, self.model)
        self._divergence = torch.zeros((), device=self.args.device)

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
        graphs = self.fast is not None
        with nullcontext() if graphs else still(self.model):
            for batch in batches if rated else ():
                if not self.step_loop.may_continue():
                    return None
                moved += self._looked_at(batch["mismatched"], "still").sum()
            with nullcontext() if graphs else self.model.disable_adapter():
                for batch in batches:
                    if not self.step_loop.may_continue():
                        return None
                    batch["reference"] = self._looked_at(batch, "reference")
                    if rated:
                        moved -= self._looked_at(batch["mismatched"], "reference").sum()
        return moved

    def _looked_at(self, batch: Batch, way: Literal["still", "reference"]) -> Tensor:
        """Log-probabilities [rows] without a gradient; a graph is switched already, a model is not.

        Without graphs the model must be in that way when this is called.
        """
        inputs = self._prepare_inputs(batch)
        if self.fast is not None:
            return self.fast(inputs, "log_probs", way=way)["log_probs"]
        return self.objective.log_probs(self.model, inputs).total

    def _log_probs(self, model: Any, inputs: Batch) -> LogProbs:
        """What is trained."""
        if self.fast is None:
            return self.objective.log_probs(model, inputs)
        total = self.fast(inputs, "log_probs")["log_probs"]
        return LogProbs(total, (inputs["labels"][:, 1:] != IGNORED).sum(dim=1))

    def _count(self, batches: Sequence[Batch]) -> dict[str, float]:
        wanted = [self.objective.desirable(batch) for batch in batches]
        chosen = sum(int(rows.sum()) for rows in wanted)
        rejected = sum(len(rows) for rows in wanted) - chosen
        labels = [batch["labels"][rows] for batch, rows in zip(batches, wanted, strict=True)]
        tokens = sum(int((one[:, 1:] >= 0).sum()) for one in labels)
        every = gather_counts((chosen, rejected, tokens))
        totals = [sum(column) for column in zip(*every, strict=True)]
        judged = totals[0] + totals[1] if self.objective.rated else totals[0]
        counts = {CHOSEN: totals[0], REJECTED: totals[1], "all": judged, "tokens": totals[2]}
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
