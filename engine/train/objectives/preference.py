"""Preference objective (dpo, kto): log-probabilities of model and reference, losses, evaluation.

What an ordered loss compares a pair with follows from the log-probabilities of all pairs of the
step on all ranks, so the loss does not depend on how a step is split.

The reference is the model as it was before training: with its adapter disabled, or with copies of
its initial weights put in place. No second model is in memory, no checkpoint holds the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from peft import PeftModel
from torch import Tensor

from ...config.schema import RunConfig
from ...config.tasks import PAIR_LOSSES, PairLoss
from ...losses.cross_entropy import IGNORED
from ...losses.gather import gather_rows, gather_sizes
from ...losses.preference import (
    CHOSEN,
    FIGURES,
    REJECTED,
    Compared,
    LogProbs,
    PairLossSettings,
    completion_log_probs,
    desensitized,
    means,
    ordered_losses,
    pair_losses,
    partners_of,
    rated_losses,
    reward_sums,
    tail_of,
)
from ...losses.weights import weighted_sum
from ...model.hidden import HiddenStates, lm_head_of
from .reference import reference_of

Batch = dict[str, Any]
Loss = TypeVar("Loss", float, Tensor)
Partners = Mapping[PairLoss, Tensor]
"""Of each ordered loss, the values that those of a batch are compared with, [2, pairs]."""


@dataclass(frozen=True)
class EvaluatedBatch:
    """The values of one evaluation batch that are kept until all batches have run."""

    policy: LogProbs
    reference: Tensor
    desirable: Tensor
    apart: float
    """Sum of log π (model) − log ρ (reference) over the mismatched completions."""

    def counts(self) -> tuple[float, float, float, float]:
        """Return the numbers of chosen rows, rejected rows and chosen tokens, and `apart`.

        The tokens are those of the next-token loss.
        """
        chosen, rows = int(self.desirable.sum()), len(self.desirable)
        tokens = int(self.policy.with_context()[1][self.desirable].sum())
        return float(chosen), float(rows - chosen), float(tokens), self.apart


class PreferenceObjective:
    """Computes log-probabilities of model and reference, and the configured loss of both."""

    def __init__(self, config: RunConfig, model: PeftModel) -> None:
        self._config = own = config.preference
        self._settings = PairLossSettings(
            own.beta,
            own.label_smoothing,
            own.gamma,
            own.f_divergence,
            own.f_alpha,
            own.discopop_tau,
            own.reward_alpha,
        )
        self.rated = config.task == "kto"
        """Whether completions are rated one by one instead of compared in pairs."""
        self.diverges = self.rated and own.rated_loss == "kto"
        """Whether the loss needs the mean divergence from the reference."""
        self.ordered = not self.rated and own.traits.ordered
        """Whether the pairs of a step are sorted and compared with each other."""
        self._rewards_per_token = not config.has_reference and own.traits.per_token
        self._model = model
        self._head = lm_head_of(model)
        self.in_reference = reference_of(config, model)
        """Puts the model in the form of the reference in a block; None without a reference."""

    def log_probs(self, model: Any, batch: Batch, *, with_prompt: bool = False) -> LogProbs:
        """Return the log-probabilities of the completions of a batch, [rows], by a model.

        `with_prompt` is that of `split`.
        """
        parts = self.split(batch, with_prompt=with_prompt)
        return self.joined(self.log_probs_and_balance(model, parts, parts.get("context"))[0])

    def split(self, batch: Batch, *, with_prompt: bool = False) -> Batch:
        """Return a batch with `context`, if log-probabilities of some tokens are needed separately.

        These are the tokens beyond the shorter completion of a pair with `ld_alpha`, which are then
        not labels, or those of `context` if `with_prompt`.
        """
        if self._config.ld_alpha is not None:
            labels, tail = batch["labels"], tail_of(batch["labels"])
            return {
                **batch,
                "labels": labels.masked_fill(tail != IGNORED, IGNORED),
                "context": tail,
            }
        context = self.context(batch) if with_prompt else None
        return batch if context is None else {**batch, "context": context}

    def joined(self, found: LogProbs) -> LogProbs:
        """Return log-probabilities of a batch that `split` has returned, of whole completions."""
        alpha = self._config.ld_alpha
        return found if alpha is None else desensitized(found, alpha)

    def log_probs_and_balance(
        self, model: Any, batch: Batch, context: Tensor | None = None, *, balanced: bool = False
    ) -> tuple[LogProbs, Tensor | None]:
        """Return log-probabilities [rows] and, if `balanced`, the load balancing loss of experts.

        The second value is None otherwise; `context` [rows, T] are tokens whose log-probabilities
        are returned apart.
        """
        more = {"output_router_logits": True} if balanced else {}
        with HiddenStates(self._model) as hidden:
            outputs = model(
                input_ids=batch["input_ids"],
                attention_mask=batch["attention_mask"],
                logits_to_keep=1,
                **more,
            )
            found = completion_log_probs(hidden.take(), batch["labels"], self._head, context)
        return found, outputs.aux_loss if balanced else None

    def context(self, batch: Batch) -> Tensor | None:
        """Return the tokens of the prompts of chosen completions, [rows, T], -100 elsewhere.

        They are None unless the next-token loss covers them.
        """
        if not self._config.next_token_on_prompt:
            return None
        labels = batch["labels"]
        inside = (batch["attention_mask"] != 0) & (labels == IGNORED)
        inside = inside & self.desirable(batch).unsqueeze(1)
        found: Tensor = batch["input_ids"].masked_fill(~inside, IGNORED)
        return found

    def reference(self, batch: Batch) -> Tensor:
        """Return the log-probabilities of the completions by the reference, [rows], detached.

        They are 0 without a reference.
        """
        if self.in_reference is None:
            return torch.zeros(len(batch["input_ids"]), device=batch["input_ids"].device)
        with without_gradients(self._model), self.in_reference():
            return self.log_probs(self._model, batch).total

    def divergence_sum(self, batch: Batch) -> Tensor:
        """Return the sum of log π (model) − log ρ (reference) over the mismatched completions.

        Only batches of the task kto have these: each pairs a prompt with another one's completion.
        """
        other = batch["mismatched"]
        with without_gradients(self._model):
            now = self.log_probs(self._model, other).total
        return (now - self.reference(other)).sum()

    def desirable(self, batch: Batch) -> Tensor:
        """Return which rows are desirable, [rows]; of pairs it is the first half."""
        if self.rated:
            wanted: Tensor = batch["desirable"]
            return wanted
        rows = len(batch["input_ids"])
        return torch.arange(rows, device=batch["input_ids"].device) < rows // 2

    def compare(
        self,
        policy: LogProbs,
        reference: Tensor,
        desirable: Tensor,
        divergence: Tensor,
        weights: Tensor | None = None,
        partners: Partners | None = None,
    ) -> Compared:
        """Return the loss and the metrics of a batch, as sums.

        Args:
            policy: log-probabilities of the model, [rows].
            reference: log-probabilities of the reference, [rows]; 0 without one.
            desirable: whether each row is desirable, [rows].
            divergence: mean divergence of the whole step, []; not used for pairs.
            weights: factor on each loss, of pairs or rated completions; None is 1.
            partners: what an ordered loss compares each pair with; None orders these pairs alone.
        """
        ratio = policy.total - reference
        losses = self.losses(policy, reference, desirable, divergence, partners)
        if self._rewards_per_token:
            ratio = ratio / policy.tokens.clamp_min(1)
        if self.rated:
            right = (ratio > divergence) == desirable
        else:
            chosen, rejected = ratio.chunk(2)
            right = chosen > rejected
        sums = reward_sums(policy, ratio.detach(), desirable, self._config.beta)
        return Compared(weighted_sum(losses, weights), {**sums, "reward_accuracy": right.sum()})

    def losses(
        self,
        policy: LogProbs,
        reference: Tensor,
        desirable: Tensor,
        divergence: Tensor,
        partners: Partners | None = None,
    ) -> Tensor:
        """Return the loss of every pair, or of every rated completion; arguments as `compare`."""
        config, ratio = self._config, policy.total - reference
        if self.rated:
            weights = config.desirable_weight, config.undesirable_weight
            return rated_losses(ratio, desirable, divergence, config.beta, weights)
        chosen, rejected = ratio.chunk(2)
        lengths = policy.tokens.chunk(2)
        total = torch.zeros_like(chosen)
        for kind, weight in config.losses.items():
            if PAIR_LOSSES[kind].ordered:
                pair = _sides(kind, policy.total, reference)
                at = partners[kind] if partners else None
                losses = ordered_losses(*pair, self._settings, at)
            else:
                both = lengths[0], lengths[1]
                losses = pair_losses(chosen, rejected, both, kind, self._settings)
            total = total + (losses if weight == 1 else weight * losses)
        return total

    def partners(self, policies: Sequence[Tensor], references: Sequence[Tensor]) -> list[Partners]:
        """Return what an ordered loss compares the pairs of each batch with; a collective.

        Args:
            policies: log-probabilities of every batch of this rank by the model, [rows] each.
            references: the same by the reference.
        """
        kinds = [kind for kind in self._config.losses if PAIR_LOSSES[kind].ordered]
        device = next(self._model.parameters()).device
        return _partners_in_step(kinds, policies, references, device)

    def factors(self, desirable: Sequence[bool]) -> list[float]:
        """Return the factor of each loss of a batch: 1 for a pair, the weight of a rating.

        Args:
            desirable: whether each row is desirable; of pairs, the rows are twice as many.
        """
        if not self.rated:
            return [1.0] * (len(desirable) // 2)
        good, bad = self._config.desirable_weight, self._config.undesirable_weight
        return [good if one else bad for one in desirable]

    def see(self, batch: Batch) -> EvaluatedBatch:
        """Return the values that an evaluation keeps of a batch."""
        policy = self.log_probs(self._model, batch, with_prompt=True)
        reference = self.reference(batch)
        apart = self.divergence_sum(batch) if self.diverges else torch.zeros(())
        return EvaluatedBatch(policy, reference, self.desirable(batch), float(apart))

    def total(self, loss: Loss, ce: Loss) -> Loss:
        """Return the optimized loss: the preference loss + `ce_weight` × the next-token loss."""
        return loss + self._config.next_token_weight * ce

    @property
    def has_ce(self) -> bool:
        """Whether the next-token loss of the chosen completions is a part of the loss."""
        return self._config.next_token_weight > 0


def evaluate_preferences(
    objective: PreferenceObjective,
    batches: Iterable[Batch],
    over_ranks: Callable[[list[float]], list[float]],
) -> dict[str, float]:
    """Return the metrics of the task over all held-out completions.

    Args:
        objective: computes the loss and the metrics.
        batches: batches of this rank, on the device; may be empty.
        over_ranks: sums lists of numbers over the ranks; a collective.
    """
    seen = [objective.see(batch) for batch in batches]
    own = [sum(column) for column in zip(*(one.counts() for one in seen), strict=True)]
    chosen, rejected, tokens, apart = over_ranks(own or [0.0] * 4)
    counted = max(chosen + rejected if objective.rated else chosen, 1.0)
    divergence = torch.tensor(max(apart / counted, 0.0))
    sums = dict.fromkeys(("loss", "ce", *FIGURES), 0.0)
    orders: Sequence[Partners | None] = [None] * len(seen)
    if objective.ordered:
        orders = objective.partners(
            [one.policy.total for one in seen], [one.reference for one in seen]
        )
    for one, order in zip(seen, orders, strict=True):
        at = divergence.to(one.reference.device)
        compared = objective.compare(one.policy, one.reference, one.desirable, at, partners=order)
        sums["loss"] += float(compared.loss_sum)
        sums["ce"] -= float(one.policy.with_context()[0][one.desirable].sum())
        for name, total in compared.sums.items():
            sums[name] += float(total)
    totals = dict(zip(sums, over_ranks(list(sums.values())), strict=True))
    ce, loss = totals.pop("ce") / max(tokens, 1.0), totals.pop("loss") / counted
    return {
        "loss": objective.total(loss, ce),
        **({"ce": ce} if objective.has_ce else {}),
        **means(totals, {CHOSEN: chosen, REJECTED: rejected, "all": counted}),
        **({"kl": float(divergence)} if objective.diverges else {}),
    }


def _sides(kind: PairLoss, policy: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
    """Return the values that should be the larger ones and those they are compared with, [B] each.

    Args:
        kind: aot or aot_unpaired.
        policy: log-probabilities of the chosen, then of the rejected completions, [2 B].
        reference: the same of the reference.
    """
    chosen, rejected = policy.chunk(2)
    chosen_before, rejected_before = reference.chunk(2)
    if kind == "aot":
        return chosen - rejected, chosen_before - rejected_before
    return chosen - chosen_before, rejected - rejected_before


def _partners_in_step(
    kinds: Iterable[PairLoss],
    policies: Sequence[Tensor],
    references: Sequence[Tensor],
    device: torch.device,
) -> list[Partners]:
    """Return the partners of the pairs of every batch; a collective.

    Args:
        kinds: the ordered losses.
        policies: log-probabilities of every batch of this rank, without gradients; may be empty.
        references: the same of the reference.
        device: where the log-probabilities are.
    """
    found: dict[PairLoss, Sequence[Tensor]] = {}
    for kind in kinds:
        pairs = [_sides(kind, *one) for one in zip(policies, references, strict=True)]
        nothing = torch.empty(0, device=device)
        upper, lower = (torch.cat([nothing, *(pair[n] for pair in pairs)]) for n in (0, 1))
        every = _of_all_ranks(upper, lower)
        found[kind] = torch.split(every, [len(one) for one, _ in pairs], dim=1)
    return [{kind: parts[n] for kind, parts in found.items()} for n in range(len(policies))]


def _of_all_ranks(upper: Tensor, lower: Tensor) -> Tensor:
    sizes = gather_sizes(len(upper))
    every, first = gather_rows(torch.stack((upper, lower), dim=1), sizes)
    return partners_of(every[:, 0], every[:, 1])[:, first : first + len(upper)]


@contextmanager
def without_gradients(model: PeftModel) -> Iterator[None]:
    """Switch off dropout and gradients in the block, so that passes draw no random numbers."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)
