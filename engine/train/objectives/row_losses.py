"""The losses of single rows with the present weights, for the report of an alert.

They are computed only when an alarm is raised, by passes without gradients over the rows of two
steps, so that a step without an alarm costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...config.memory.contrastive_candidates import uses_gradcache
from ...config.schema import RunConfig
from ...config.tasks import PREFERENCE_TASKS
from ...data.batches.batch_source import Batch
from ...data.tokens.examples import Example
from ...losses.contrastive import simctg
from ...losses.cross_entropy import IGNORED, selected_cross_entropy
from ...losses.weights import record_weights, token_weights
from ...model.hidden import HiddenStates, lm_head_of
from ..monitoring.step_rows import NoRowLosses, RowLoss
from .contrastive import join
from .evaluation_mode import evaluation_mode


class RowLossComputer:
    """Computes the loss of every record by itself, as far as the loss of the task has such parts.

    The candidates of a contrastive loss are those of the step on this rank. Means over tokens are
    taken within a record.
    """

    def __init__(
        self, config: RunConfig, trainer: Any, collate: Callable[[Sequence[Any]], Batch]
    ) -> None:
        """Take what the passes need.

        Args:
            config: configuration of the run.
            trainer: the Hugging Face trainer.
            collate: makes a batch of examples that are not packed.
        """
        self._config = config
        self._trainer = trainer
        self._collate = collate

    def __call__(self, examples: Sequence[Example]) -> list[RowLoss]:
        """Return the loss of every example, in order.

        Raises:
            NoRowLosses: the loss has no part that belongs to a single row.
        """
        if self._config.train.shards:
            raise NoRowLosses("with train.strategy: fsdp a rank cannot run the model by itself")
        if self._config.task == "contrastive" and self._config.contrastive.kind == "cosent":
            raise NoRowLosses("the CoSENT loss compares all pairs of a step with each other")
        if self._config.task == "dpo" and self._config.preference.traits.ordered:
            raise NoRowLosses("the losses aot and aot_unpaired sort all pairs of a step")
        with evaluation_mode(self._trainer):
            if self._config.task in PREFERENCE_TASKS:
                found = self._preferences(examples)
            elif self._config.task == "reward":
                found = self._rewards(examples)
            elif self._config.task == "contrastive":
                found = self._pairs(examples)
            else:
                found = self._text(examples)
            losses, weights = (torch.cat(parts).tolist() for parts in zip(*found, strict=True))
        return [RowLoss(loss, weight) for loss, weight in zip(losses, weights, strict=True)]

    def _batches(self, examples: Sequence[Example]) -> Iterator[Batch]:
        size = self._config.train.micro_batch_size
        for start in range(0, len(examples), size):
            batch = self._collate(examples[start : start + size])
            batch.pop("ids", None)
            yield self._trainer._prepare_inputs(batch)

    def _states(self, batch: Batch) -> Tensor:
        """Return the last hidden states [B, T, H]."""
        with HiddenStates(self._trainer.model) as hidden:
            self._trainer.model(
                input_ids=batch["input_ids"],
                attention_mask=batch["attention_mask"],
                logits_to_keep=1,
            )
            return hidden.take()

    def _text(self, examples: Sequence[Example]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the mean loss and the number of targets of the rows of each batch, [B] each."""
        config = self._config.contrastive
        for batch in self._batches(examples):
            states = self._states(batch)
            sums, counts = self._cross_entropy(states, batch["labels"], token_weights(batch))
            losses = sums / torch.where(counts == 0, 1, counts)
            if config.kind == "simctg":
                apart = [
                    simctg(states[[n]], batch["attention_mask"][[n]], config.margin)
                    for n in range(len(states))
                ]
                shares = torch.stack([total / pairs.clamp_min(1) for total, pairs in apart])
                losses = config.ce_weight * losses + config.weight * shares
            yield losses, counts

    def _cross_entropy(
        self, states: Tensor, labels: Tensor, weights: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return summed next-token loss and number of targets of every row, [B] each.

        With weights [B, T], the losses are multiplied by them, and the numbers are their sums.
        """
        head, recipe = lm_head_of(self._trainer.model), self._config.train
        rows = [
            selected_cross_entropy(
                states[[n]],
                labels[[n]],
                head,
                smoothing=recipe.label_smoothing,
                focal=recipe.focal,
                weights=None if weights is None else weights[[n]],
            )
            for n in range(len(states))
        ]
        sums, counts = zip(*rows, strict=True)
        if weights is not None:
            targets = (labels[:, 1:] != IGNORED).to(weights.dtype)
            counts = tuple((weights.expand(labels.shape)[:, 1:] * targets).sum(dim=1))
        return torch.stack([loss.float() for loss in sums]), torch.stack(counts)

    def _pairs(self, examples: Sequence[Example]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield loss and weight of the pairs that are compared with each other."""
        one = self._config.train.micro_batch_size
        together = len(examples) if uses_gradcache(self._config) else one
        for start in range(0, len(examples), together):
            yield self._compared(examples[start : start + together])

    def _compared(self, examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
        config, objective = self._config.contrastive, self._trainer.objective
        parts, texts = [], []
        for batch in self._batches(examples):
            states = self._states(batch)
            parts.append(objective.pool(states, batch))
            if config.ce_weight > 0:
                texts.append(self._pair_cross_entropy(states, batch))
        everyone = join(parts)
        weights, everyone = everyone.weights, replace(everyone, weights=None)
        losses = torch.stack(
            [
                objective.compare(everyone, range(n, n + 1)).loss_sum.float()
                for n in range(everyone.pairs)
            ]
        )
        losses = config.weight * losses
        if texts:
            losses = losses + config.ce_weight * torch.cat(texts)
        return losses, torch.ones_like(losses) if weights is None else weights

    def _pair_cross_entropy(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the mean next-token loss over both texts of every pair, [B]."""
        pairs = int(batch["pair_count"])
        sums, counts = self._cross_entropy(states[: 2 * pairs], batch["labels"][: 2 * pairs])
        sums, counts = sums.view(2, pairs).sum(dim=0), counts.view(2, pairs).sum(dim=0)
        return sums / counts.clamp_min(1)

    def _rewards(self, examples: Sequence[Example]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield loss and weight of the pairs of each batch."""
        objective = self._trainer.objective
        for batch in self._batches(examples):
            losses = objective.losses(objective.scores(self._states(batch), batch), batch)
            yield losses, _weights(batch, losses)

    def _preferences(self, examples: Sequence[Example]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield loss and weight of the pairs, or of the rated completions, of each batch."""
        objective = self._trainer.objective
        for batch in self._batches(examples):
            policy = objective.log_probs(self._trainer.model, batch, with_prompt=True)
            desirable = objective.desirable(batch)
            losses = objective.losses(
                policy, objective.reference(batch), desirable, self._trainer.divergence
            ).float()
            if objective.has_ce:
                total, tokens = policy.with_context()
                ce = -total / tokens.clamp_min(1)
                ce = torch.where(desirable, ce, 0.0)
                losses = objective.total(losses, ce[: len(losses)])
            yield losses, _weights(batch, losses)


def _weights(batch: Batch, losses: Tensor) -> Tensor:
    """Return the weights of the records of a batch, [B]; they are 1 without any."""
    found = record_weights(batch)
    return torch.ones_like(losses) if found is None else found
