"""The two trainers: TRL's for next-token training, HF's for the joint loss over pairs."""

from __future__ import annotations

from typing import Any

import torch
from datasets import Dataset
from datasets.table import InMemoryTable
from peft import PeftModel
from torch import Tensor
from transformers import PrinterCallback, Trainer, TrainingArguments
from trl import SFTConfig, SFTTrainer

from ..config.schema import ContrastiveConfig, RunConfig
from ..losses.contrastive import simctg
from ..model.hidden import HiddenStates, lm_head_of
from .bridge import Controlled, StepCallback
from .objective import pair_loss
from .stepper import Stepper


class TextTrainer(Controlled, SFTTrainer):  # type: ignore[misc]  # trl is untyped
    """Next-token loss through TRL's fused head, with SimCTG over the hidden states if asked for."""

    loss_is_scaled_for_ga = True

    def __init__(self, config: ContrastiveConfig, **kwargs: Any) -> None:
        self._contrastive = config
        self._hidden: HiddenStates | None = None
        super().__init__(**kwargs)
        if config.kind == "simctg":
            self._hidden = HiddenStates(self.model).attach()

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Tensor:
        """Per-token share of this micro-batch, plus its share of the token-level part."""
        ce: Tensor = super().compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        self._forget_metrics()
        self.stepper.tally.add_parts(ce=ce)
        loss: Tensor = self._contrastive.ce_weight * ce
        if self._hidden is not None:
            mask = inputs["attention_mask"]
            token_level = simctg(self._hidden.take(), mask, self._contrastive.margin)
            share = token_level / self.current_gradient_accumulation_steps
            self.stepper.tally.add_parts(contrastive=share)
            loss = loss + self._contrastive.weight * share
        return loss

    def _forget_metrics(self) -> None:
        """TRL keeps its own metrics until a log call that never comes here."""
        self._metrics["train"].clear()


class PairTrainer(Controlled, Trainer):  # type: ignore[misc]  # transformers is untyped
    """`ce_weight × CE + weight × InfoNCE`, per token and per anchor over the optimizer step."""

    loss_is_scaled_for_ga = True

    def __init__(self, config: ContrastiveConfig, **kwargs: Any) -> None:
        self._contrastive = config
        super().__init__(**kwargs)
        self.model_accepts_loss_kwargs = True
        self._hidden = HiddenStates(self.model).attach()
        self._head = lm_head_of(self.model)

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Tensor:
        """This micro-batch's share of the step's joint loss.

        One forward of [anchors; positives; negatives] through the (wrapped) model, so that DDP's
        hooks are armed once. Shares are multiplied by the world size because DDP averages.
        """
        model(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            logits_to_keep=1,
        )
        found = pair_loss(self._contrastive, self._hidden.take(), inputs, self._head)
        ranks = self.accelerator.num_processes
        ce = found.ce_sum / max(float(num_items_in_batch or 0), 1.0) * ranks
        accumulation = self.current_gradient_accumulation_steps
        contrastive = found.contrastive.loss_sum / found.contrastive.count / accumulation
        self.stepper.tally.add_parts(
            ce=ce,
            contrastive=contrastive,
            pos_cos=found.contrastive.pos_cos / accumulation,
            neg_cos=found.contrastive.neg_cos / accumulation,
            top1=found.contrastive.top1 / accumulation,
        )
        joint: Tensor = self._contrastive.ce_weight * ce + self._contrastive.weight * contrastive
        return joint


def build_trainer(
    config: RunConfig,
    model: PeftModel,
    tokenizer: Any,
    arguments: dict[str, Any],
    stepper: Stepper,
) -> TextTrainer | PairTrainer:
    """The trainer of the configured task, under the stepper's control."""
    trainer = (
        _pair_trainer(config, model, arguments)
        if config.task == "contrastive"
        else _text_trainer(config, model, tokenizer, arguments)
    )
    trainer.stepper = stepper
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(StepCallback(stepper, trainer.accelerator))
    return trainer


def _pair_trainer(config: RunConfig, model: PeftModel, arguments: dict[str, Any]) -> PairTrainer:
    return PairTrainer(config.contrastive, model=model, args=TrainingArguments(**arguments))


def _text_trainer(
    config: RunConfig, model: PeftModel, tokenizer: Any, arguments: dict[str, Any]
) -> TextTrainer:
    dtypes = {name: p.dtype for name, p in model.named_parameters() if p.requires_grad}
    trainer = TextTrainer(
        config.contrastive,
        model=model,
        args=SFTConfig(**arguments, dataset_kwargs={"skip_prepare_dataset": True}),
        train_dataset=_placeholder(),
        data_collator=lambda rows: rows,
        processing_class=tokenizer,
    )
    _restore_dtypes(model, dtypes)
    return trainer


def _placeholder() -> Dataset:
    """What TRL wants to see of the data; the step loop is fed by the batch source.

    The fingerprint is given because computing one pickles the table, which not every pair of
    Python and pyarrow survives.
    """
    table = InMemoryTable.from_pydict({"input_ids": [[0]], "labels": [[0]]})
    return Dataset(table, fingerprint="placeholder")


def _restore_dtypes(model: PeftModel, dtypes: dict[str, torch.dtype]) -> None:
    """TRL makes adapters of quantized models bf16; the configuration decides here."""
    for name, parameter in model.named_parameters():
        if name in dtypes:
            parameter.data = parameter.data.to(dtypes[name])
