"""The trainer for next-token training (sft), with SimCTG over the hidden states if configured."""

from __future__ import annotations

from typing import Any

import torch
from datasets import Dataset
from datasets.table import InMemoryTable
from peft import PeftModel
from torch import Tensor
from trl import SFTConfig, SFTTrainer

from ...config.schema import ContrastiveConfig, RunConfig
from ...losses.contrastive import simctg
from ...losses.gather import gather_sizes
from ...losses.sliced import sliced_of
from ...model.hidden import HiddenStates, lm_head_of
from ..forward import Forward
from ..loop.hf_bridge import SteppedTrainer
from ..objectives.mean import mean_over_step
from ..patches import on_one_device
from .eager import EagerTextForward


class TextTrainer(SteppedTrainer, SFTTrainer):  # type: ignore[misc]  # trl is untyped
    """Trains on the next-token loss, with SimCTG over the hidden states if configured."""

    loss_is_scaled_for_ga = True

    def __init__(
        self, config: ContrastiveConfig, label_smoothing: float = 0.0, **kwargs: Any
    ) -> None:
        self._contrastive = config
        self._label_smoothing = label_smoothing
        self._hidden: HiddenStates | None = None
        self._token_pairs = 1
        super().__init__(**kwargs)
        head = lm_head_of(self.model)
        own = sliced_of(head) is not None or label_smoothing > 0
        self._own_head = head if own else None
        if config.kind == "simctg" or self._own_head is not None:
            self._hidden = HiddenStates(self.model).attach()

    def prepare_step(self, batches: list[Any]) -> None:
        """Count the token pairs of the step, over which the SimCTG part is a mean."""
        if self._contrastive.kind == "simctg":
            lengths = torch.cat([batch["attention_mask"].sum(dim=1) for batch in batches])
            pairs = int((lengths * (lengths - 1)).sum())
            self._token_pairs = max(1, sum(gather_sizes(pairs)))

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Tensor:
        """Return this micro-batch's share of the next-token loss, plus its SimCTG share."""
        ce, hidden = self._cross_entropy(model, inputs, num_items_in_batch)
        self.step_loop.tally.add_parts(ce=ce)
        loss: Tensor = self._contrastive.ce_weight * ce
        if self._contrastive.kind == "simctg":
            assert hidden is not None, "HiddenStates is attached for SimCTG"
            pair_sum, _ = simctg(hidden, inputs["attention_mask"], self._contrastive.margin)
            share = pair_sum * (self.accelerator.num_processes / self._token_pairs)
            self.step_loop.tally.add_parts(contrastive=share)
            loss = loss + self._contrastive.weight * share
        return loss

    def _cross_entropy(
        self, model: Any, inputs: dict[str, Any], num_items: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Return this micro-batch's share of the mean cross-entropy, and its hidden states."""
        if self.aux_loss_enabled and self._own_head is None and not self.forward.uses_graphs:
            return self._with_aux_loss(model, inputs, num_items)
        wants_hidden = self._contrastive.kind == "simctg"
        found = self.forward(model, inputs, *(("ce", "hidden") if wants_hidden else ("ce",)))
        ce = mean_over_step(found["ce"], num_items, self.accelerator.num_processes)
        return ce, found.get("hidden")

    def _with_aux_loss(
        self, model: Any, inputs: dict[str, Any], num_items: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Return TRL's own loss, without its metrics, which wait for the device four times each."""
        loss: Tensor = super().compute_loss(model, inputs, num_items_in_batch=num_items)
        self._metrics["train"].clear()
        return loss, self._hidden.take() if self._hidden is not None else None

    def eager_forward(self, fact: str) -> Forward:
        """Return the forward strategy without CUDA graphs."""
        return EagerTextForward(
            self.model,
            fact,
            hidden=self._hidden,
            own_head=self._own_head,
            label_smoothing=self._label_smoothing,
        )


def text_trainer(
    config: RunConfig, tokenizer: Any, arguments: dict[str, Any], common: dict[str, Any]
) -> TextTrainer:
    """Build the trainer for next-token training.

    Args:
        config: configuration of the run.
        tokenizer: tokenizer of the model.
        arguments: keyword arguments of the Hugging Face and TRL trainers.
        common: arguments that the trainers of all tasks share.
    """
    model = common["model"]
    dtypes = {name: p.dtype for name, p in model.named_parameters() if p.requires_grad}
    trainer = TextTrainer(
        config.contrastive,
        config.train.label_smoothing,
        **common,
        args=on_one_device(SFTConfig(**arguments, dataset_kwargs={"skip_prepare_dataset": True})),
        train_dataset=_placeholder(),
        data_collator=lambda rows: rows,
        processing_class=tokenizer,
    )
    _restore_dtypes(model, dtypes)
    return trainer


def _placeholder() -> Dataset:
    """Return the placeholder dataset that TRL requires; the batch source feeds the step loop.

    The fingerprint is given because computing one pickles the table, which not every pair of
    Python and pyarrow survives.
    """
    table = InMemoryTable.from_pydict({"input_ids": [[0]], "labels": [[0]]})
    return Dataset(table, fingerprint="placeholder")


def _restore_dtypes(model: PeftModel, dtypes: dict[str, torch.dtype]) -> None:
    """Restore the configured dtypes, because TRL casts adapters of quantized models to bf16."""
    for name, parameter in model.named_parameters():
        if name in dtypes:
            parameter.data = parameter.data.to(dtypes[name])
