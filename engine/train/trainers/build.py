"""The trainers: TRL's for next-token training, HF's for the joint loss over pairs.

The one for judged completions is in `preference`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from datasets import Dataset
from datasets.table import InMemoryTable
from peft import PeftModel
from torch import Tensor
from transformers import PrinterCallback, Trainer, TrainingArguments
from trl import SFTConfig, SFTTrainer

from ...config.contrastive_candidates import uses_gradcache
from ...config.schema import ContrastiveConfig, RunConfig
from ...config.tasks import PREFERENCE_TASKS
from ...errors import ConfigError
from ...losses.contrastive import ContrastiveResult, simctg
from ...losses.cross_entropy import selected_cross_entropy
from ...losses.gather import gather_sizes
from ...losses.sliced import sliced_of
from ...model.hidden import HiddenStates, lm_head_of
from ..loop.hf_bridge import SteppedTrainer
from ..loop.optimizers import Factor, rate_of
from ..objectives.contrastive import PairObjective, PairTexts
from ..objectives.gradcache import (
    StepCache,
    cache_step,
    graph_bytes_per_token,
    graphs_kept,
    look_ahead,
)
from ..patches import on_one_device
from ..position import Position
from .preference import PreferenceTrainer


class TextTrainer(SteppedTrainer, SFTTrainer):  # type: ignore[misc]  # trl is untyped
    """Next-token loss through TRL's fused head, with SimCTG over the hidden states if asked for."""

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
        """Count the token pairs of the step, which the token-level part is the mean over."""
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
        """Per-token share of this micro-batch, plus its share of the token-level part."""
        ce, hidden = self._cross_entropy(model, inputs, num_items_in_batch)
        self.step_loop.tally.add_parts(ce=ce)
        loss: Tensor = self._contrastive.ce_weight * ce
        if self._contrastive.kind == "simctg":
            assert hidden is not None, "attached for it"
            pair_sum, _ = simctg(hidden, inputs["attention_mask"], self._contrastive.margin)
            share = pair_sum * (self.accelerator.num_processes / self._token_pairs)
            self.step_loop.tally.add_parts(contrastive=share)
            loss = loss + self._contrastive.weight * share
        return loss

    def _cross_entropy(
        self, model: Any, inputs: dict[str, Any], num_items: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Through TRL's fused head, or through ours where that does not do what is wanted."""
        if self.fast is not None:
            wants_hidden = self._contrastive.kind == "simctg"
            found = self.fast(inputs, *(("ce", "hidden") if wants_hidden else ("ce",)))
            return mean_over_step(found["ce"], self, num_items), found.get("hidden")
        if self._own_head is None:
            ce = self._fused_head(model, inputs, num_items)
            return ce, self._hidden.take() if self._hidden is not None else None
        assert self._hidden is not None, "attached for it"
        wanted = {name: value for name, value in inputs.items() if name != "labels"}
        model(**wanted, use_cache=False, logits_to_keep=1)
        hidden = self._hidden.take()
        ce_sum, _ = selected_cross_entropy(
            hidden, inputs["labels"], self._own_head, smoothing=self._label_smoothing
        )
        return mean_over_step(ce_sum, self, num_items), hidden

    def _fused_head(self, model: Any, inputs: dict[str, Any], num_items: Any) -> Tensor:
        """TRL's loss without its metrics, which gather and wait for the device four times each."""
        if self.aux_loss_enabled:
            loss: Tensor = super().compute_loss(model, inputs, num_items_in_batch=num_items)
            self._metrics["train"].clear()
            return loss
        outputs = model(**{**inputs, "use_cache": False}, fused_lm_head=True)
        return mean_over_step(-outputs.log_probs.sum(), self, num_items)


def mean_over_step(ce_sum: Tensor, trainer: Any, num_items_in_batch: Any) -> Tensor:
    """From a micro-batch's sum to its share of the mean over the step's tokens, times the ranks."""
    known = 0 if num_items_in_batch is None else num_items_in_batch
    items = torch.as_tensor(known, device=ce_sum.device).clamp(min=1)
    share: Tensor = ce_sum / items * trainer.accelerator.num_processes
    return share


class PairTrainer(SteppedTrainer, Trainer):  # type: ignore[misc]  # transformers is untyped
    """`ce_weight × CE + weight × contrastive`, per token and per anchor over the optimizer step.

    Anchors are compared within a micro-batch, or, when looking ahead, over the whole step.
    Shares are multiplied by the number of ranks, because DDP averages.
    """

    loss_is_scaled_for_ga = True

    def __init__(self, config: RunConfig, **kwargs: Any) -> None:
        self._contrastive = config.contrastive
        self._uses_gradcache = uses_gradcache(config)
        self._cache: StepCache | None = None
        self._fast_ce: Tensor | None = None
        """Token loss that came with the hidden states."""
        self._scale = 1.0
        """From a sum over this rank's anchors to its share of the step's loss."""
        super().__init__(**kwargs)
        self.model_accepts_loss_kwargs = True
        self.objective = PairObjective(config.contrastive)
        self.objective.temperature.to(self.args.device)
        self._hidden = HiddenStates(self.model).attach()
        self._head = lm_head_of(self.model)

    def create_optimizer(self, model: Any = None) -> Any:
        """The adapter's groups, and one without weight decay for a learned temperature."""
        optimizer = super().create_optimizer(model)
        temperature = self.objective.temperature
        if temperature.log_scale is not None:
            ratio = self.recipe.lr_ratios.temperature
            group = {"params": [temperature.log_scale], "weight_decay": 0.0}
            optimizer.add_param_group({**group, **rate_of(self.recipe.lr, ratio)})
            optimizer.register_step_post_hook(lambda *_: temperature.clamp())
        return optimizer

    @property
    def own_parameters(self) -> dict[str, torch.nn.Parameter]:
        """What is trained and belongs to no adapter; part of the exact state."""
        log_scale = self.objective.temperature.log_scale
        return {} if log_scale is None else {"contrastive.log_scale": log_scale}

    def prepare_step(self, batches: list[Any]) -> None:
        """Count the step's anchors; when looking ahead, compare all of its texts."""
        own = sum(int(batch["pair_count"]) for batch in batches)
        anchors = sum(gather_sizes(own))
        self._scale = self.accelerator.num_processes / max(anchors, 1)
        self._cache = None
        for parameter in self.own_parameters.values():
            parameter.grad = None
        temperature = self.objective.temperature.now()
        if not isinstance(temperature, Tensor):  # made on the device: sending it would wait for it
            temperature = torch.full((), temperature, device=self.args.device)
        self.step_loop.tally.add_parts(temperature=temperature)
        if self._uses_gradcache:
            with self.step_loop.tally.time("compute"):
                self._cache = self._look_ahead(batches)

    def _look_ahead(self, batches: list[Any]) -> StepCache | None:
        self.model.train()
        for number, batch in enumerate(batches):
            batch["number"] = number

        def embed(number: int) -> tuple[Tensor, PairTexts]:
            inputs = self._prepare_inputs(batches[number])
            with self.compute_loss_context_manager():
                hidden = self._forward(self.model, inputs)
                return hidden, self.objective.pool(hidden, inputs)

        may_go_on, keep = self.step_loop.may_continue, self._graphs_kept(batches)
        seen = look_ahead(len(batches), embed, self.args.device, may_go_on, keep)
        if seen is None:
            return None
        cache = cache_step(seen, self.objective, self._scale)
        self._publish(cache.result)
        return cache

    def _graphs_kept(self, batches: list[Any]) -> int:
        """The last micro-batch passes through DDP, which averages the gradients behind it.

        In fast mode none is kept: all micro-batches use the same memory.
        """
        if self.fast is not None:
            return 0
        per_token = graph_bytes_per_token(
            self.model.config.get_text_config(),
            self.model.get_input_embeddings().weight.element_size(),
            whole_layers=self.recipe.whole_layers if self.recipe.recomputes else None,
        )
        tokens = [batch["input_ids"].numel() for batch in batches]
        at_most = len(batches) - (self.accelerator.num_processes > 1)
        return graphs_kept(tokens, per_token, at_most)

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Tensor:
        """This micro-batch's share of the step's joint loss."""
        hidden = self._hidden_states(model, inputs)
        contrastive = self._contrastive_share(self.objective.pool(hidden, inputs), inputs)
        joint: Tensor = self._contrastive.weight * contrastive
        if self._contrastive.ce_weight > 0:
            ce = mean_over_step(self._ce_sum(hidden, inputs), self, num_items_in_batch)
            self.step_loop.tally.add_parts(ce=ce)
            joint = joint + self._contrastive.ce_weight * ce
        return joint

    def _hidden_states(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        if self._cache is None:
            return self._forward(model, inputs)
        number = inputs["number"]
        if number in self._cache.kept:
            return self._cache.kept.pop(number)
        with self._cache.randomness[number].again():
            return self._forward(model, inputs)

    def _ce_sum(self, hidden: Tensor, inputs: dict[str, Any]) -> Tensor:
        ce_sum, self._fast_ce = self._fast_ce, None
        if ce_sum is None:
            ce_sum, _ = selected_cross_entropy(
                hidden, inputs["labels"], self._head, smoothing=self.recipe.label_smoothing
            )
        return ce_sum

    def _forward(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """One pass of [anchors; positives; negatives] → last hidden states [2B + N, T, H].

        A single pass through the (wrapped) model, so that DDP's hooks are armed once.
        """
        if self.fast is not None:
            with_ce = torch.is_grad_enabled() and self._contrastive.ce_weight > 0
            found = self.fast(inputs, *(("hidden", "ce") if with_ce else ("hidden",)))
            self._fast_ce = found.get("ce")
            return found["hidden"]
        model(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            logits_to_keep=1,
        )
        return self._hidden.take()

    def _contrastive_share(self, texts: PairTexts, inputs: dict[str, Any]) -> Tensor:
        if self._cache is not None:
            return self._cache.share(inputs["number"], texts, self.objective.temperature.log_scale)
        result = self.objective.compare(*self.objective.spread(texts))
        self._publish(result)
        return result.loss_sum * self._scale

    def _publish(self, result: ContrastiveResult) -> None:
        """Add to the step's figures, each a mean over all of the step's anchors."""
        shares = {name: total * self._scale for name, total in result.sums.items()}
        self.step_loop.tally.add_parts(contrastive=result.loss_sum * self._scale, **shares)

    def _clip_grad_norm(self, model: Any) -> Tensor:
        """Average over ranks what DDP does not know of, then judge the step."""
        self._cache = None
        for parameter in self.own_parameters.values():
            if parameter.grad is not None:
                parameter.grad = self.accelerator.reduce(parameter.grad, reduction="mean")
        return super()._clip_grad_norm(model)


AnyTrainer = TextTrainer | PairTrainer | PreferenceTrainer


def build_trainer(
    config: RunConfig,
    model: PeftModel,
    tokenizer: Any,
    arguments: dict[str, Any],
    position: Position,
    log: Callable[[str, str], None],
    lr_factor: Factor | None = None,
) -> AnyTrainer:
    """Build the trainer of the configured task.

    Args:
        config: the run.
        model: with its adapter.
        tokenizer: of the model.
        arguments: keyword arguments of the Hugging Face and TRL trainers.
        position: moved by the trainer as it trains.
        log: writes a line (level, text) to the log of the run.
        lr_factor: replaces the configured schedule; None keeps it.
    """
    trainer: AnyTrainer
    common = {"recipe": config.train, "position": position, "lr_factor": lr_factor, "model": model}
    if config.task in PREFERENCE_TASKS:
        args = on_one_device(TrainingArguments(**arguments))
        trainer = PreferenceTrainer(config, args=args, **common)
    elif config.task == "contrastive":
        args = on_one_device(TrainingArguments(**arguments))
        trainer = PairTrainer(config, args=args, **common)
    else:
        trainer = _text_trainer(config, tokenizer, arguments, common)
    require_ranks(trainer.accelerator.num_processes, config.train.devices)
    trainer.choose_forward(config, int(tokenizer.pad_token_id), log)
    trainer.remove_callback(PrinterCallback)
    return trainer


def require_ranks(got: int, asked: int) -> None:
    """Refuse to train on another number of ranks than the configuration counts with.

    Raises:
        ConfigError: they differ.
    """
    if got != asked:
        raise ConfigError(
            f"train.devices asks for {asked} rank{'s' * (asked != 1)}, but {got} came up; start "
            f"with `fttui run`, or with torchrun --nproc-per-node {asked}, or set train.devices: "
            f"{got}"
        )


def _text_trainer(
    config: RunConfig, tokenizer: Any, arguments: dict[str, Any], common: dict[str, Any]
) -> TextTrainer:
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
