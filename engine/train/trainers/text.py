"""The trainer for next-token training (sft), with SimCTG over the hidden states if configured."""

from __future__ import annotations

from typing import Any

import torch
from datasets import Dataset
from datasets.table import InMemoryTable
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor
from trl import SFTConfig, SFTTrainer

from ...config.schema import ContrastiveConfig, RunConfig
from ...losses.contrastive import simctg
from ...losses.cross_entropy import selected_cross_entropy
from ...losses.gather import gather_sizes
from ...losses.sliced import sliced_of
from ...losses.weights import token_weights
from ...model.experts import balance_weight
from ...model.hidden import HiddenStates, base_model_of, give_states_for_head, lm_head_of
from ...model.vision import sees_images
from ..forward import Forward, Want
from ..loop.hf_bridge import SteppedTrainer
from ..loop.passes.drawn_targets import sampled_labels
from ..objectives.mean import mean_over_step
from ..patches import head_shown_plain, on_one_device
from .eager import EagerTextForward

_OWN: dict[str, Any] = {
    "dataset_kwargs": {"skip_prepare_dataset": True},
    "router_aux_loss_coef": 0.0,
}
"""Work of TRL that this trainer does itself: preparing records, and the load balancing loss."""


class TextTrainer(SteppedTrainer, SFTTrainer):  # type: ignore[misc]  # trl is untyped
    """Trains on the next-token loss, with SimCTG over the hidden states if configured."""

    loss_is_scaled_for_ga = True

    def __init__(
        self,
        config: ContrastiveConfig,
        label_smoothing: float = 0.0,
        focal: float = 0.0,
        balance_weight: float = 0.0,
        **kwargs: Any,
    ) -> None:
        self._contrastive = config
        self._balance_weight = balance_weight
        self._label_smoothing, self._focal = label_smoothing, focal
        self._hidden: HiddenStates | None = None
        self._token_pairs = self._micro_batches = 1
        with head_shown_plain(kwargs["model"]):
            super().__init__(**kwargs)
        base: Any = base_model_of(self.model)
        head = lm_head_of(self.model)
        plain = head is base.get_output_embeddings()
        own = not plain or sliced_of(head) is not None
        own = own or label_smoothing > 0 or focal > 0 or balance_weight > 0 or self.weighted
        own = own or self.recipe.optimizer == "sophia"  # which draws targets from its logits
        own = own or isinstance(head, BaseTunerLayer)  # TRL's head would leave out its adapter
        own = own or sees_images(base.config)
        frozen = not any(parameter.requires_grad for parameter in head.parameters())
        own = own or (self.recipe.shards and frozen)  # TRL's head needs its weight again later
        self._own_head = head if own else None
        if self._own_head is None:
            give_states_for_head(self.model)  # TRL's head takes them as they are
        if config.kind == "simctg" or self._own_head is not None:
            self._hidden = HiddenStates(self.model).attach()

    def prepare_step(self, batches: list[Any]) -> None:
        """Count micro-batches and SimCTG's token pairs, over which parts of the loss are means."""
        self._micro_batches = max(1, len(batches))
        if self._contrastive.kind == "simctg":
            lengths = torch.cat([batch["attention_mask"].sum(dim=1) for batch in batches])
            pairs = int((lengths * (lengths - 1)).sum())
            self._token_pairs = max(1, sum(gather_sizes(pairs)))

    def nothing_to_learn(self, batches: list[Any]) -> bool:
        """Return whether the step has no target of a weight above 0; SimCTG needs none."""
        return self.no_items and self._contrastive.kind != "simctg"

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Tensor:
        """Return this micro-batch's share of the loss of the step.

        It is that of the next-token loss, plus those of SimCTG and of the load balancing loss of
        experts if they are trained. These parts are added to the metrics of the step.
        """
        found = self.forward(model, inputs, *self._wants())
        ce = mean_over_step(found["ce"], num_items_in_batch, self.accelerator.num_processes)
        self.step_loop.tally.add_parts(ce=ce)
        loss: Tensor = self._contrastive.ce_weight * ce
        if "balance" in found:
            balance = self._balance_weight * found["balance"] / self._micro_batches
            self.step_loop.tally.add_parts(balance=balance)
            loss = loss + balance
        if self._contrastive.kind == "simctg":
            pair_sum, _ = simctg(
                found["hidden"], inputs["attention_mask"], self._contrastive.margin
            )
            share = pair_sum * (self.accelerator.num_processes / self._token_pairs)
            self.step_loop.tally.add_parts(contrastive=share)
            loss = loss + self._contrastive.weight * share
        return loss

    def sampled_loss(
        self, model: Any, inputs: dict[str, Any], uniform: Tensor, num_items_in_batch: Any
    ) -> Tensor:
        """Return this micro-batch's share of the loss for targets that the model draws itself.

        Its squared gradient estimates the curvature of the next-token loss. Weights of tokens enter
        as square roots, so that they enter the squares as they are.

        Args:
            model: the prepared model, wrapped in DDP if there is one.
            inputs: on the device.
            uniform: a number from 0 to 1 for each target, [n].
            num_items_in_batch: as in `compute_loss`.
        """
        assert self._own_head is not None, "the trainer keeps the head if targets are drawn"
        hidden = self.forward(model, inputs, "hidden")["hidden"]
        labels = sampled_labels(hidden, inputs["labels"], self._own_head, uniform)
        weights = token_weights(inputs)
        roots = None if weights is None else weights.sqrt()
        ce_sum, _ = selected_cross_entropy(hidden, labels, self._own_head, weights=roots)
        return mean_over_step(ce_sum, num_items_in_batch, self.accelerator.num_processes)

    def _wants(self) -> list[Want]:
        wants: list[Want] = ["ce"]
        if self._contrastive.kind == "simctg":
            wants.append("hidden")
        if self._balance_weight > 0:
            wants.append("balance")
        return wants

    def eager_forward(self, fact: str) -> Forward:
        """Return the forward strategy without CUDA graphs."""
        return EagerTextForward(
            self.model,
            fact,
            hidden=self._hidden,
            own_head=self._own_head,
            label_smoothing=self._label_smoothing,
            focal=self._focal,
            head_kept=self.head_kept,
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
        config.train.focal,
        balance_weight(base_model_of(model), config.train.router_aux_loss),
        **common,
        args=on_one_device(SFTConfig(**arguments, **_OWN)),
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
