"""The trainer for contrastive pairs, combined with next-token training if configured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer

from ...config.memory.contrastive_candidates import uses_gradcache
from ...config.schema import RunConfig
from ...errors import ConfigError
from ...losses.contrastive import ContrastiveResult
from ...losses.cross_entropy import selected_cross_entropy
from ...losses.gather import gather_sizes
from ...losses.weights import token_weights, total_weight
from ...model.hidden import HiddenStates, lm_head_of
from ..forward import Forward
from ..loop.hf_bridge import SteppedTrainer
from ..loop.optimizers import SPARED, rate_of
from ..objectives.contrastive import PairTexts
from ..objectives.gradcache import (
    StepCache,
    cache_step,
    first_pass,
    graph_bytes_per_token,
    graphs_kept,
)
from ..objectives.mean import mean_over_step
from ..objectives.scored import pair_objective
from .eager import EagerPairForward


class PairTrainer(SteppedTrainer, Trainer):  # type: ignore[misc]  # transformers is untyped
    """Trains on `ce_weight × CE + weight × contrastive`, means over the optimizer step.

    CE is a mean over tokens, the contrastive part a mean over anchors. Anchors are compared within
    a micro-batch or, with GradCache, over the whole step. Shares are multiplied by the number of
    ranks, because DDP averages the gradients.
    """

    loss_is_scaled_for_ga = True

    def __init__(self, config: RunConfig, **kwargs: Any) -> None:
        self._contrastive = config.contrastive
        self._uses_gradcache = uses_gradcache(config)
        self._cache: StepCache | None = None
        self._ce: Tensor | None = None
        """Summed cross-entropy of the last forward pass; None if the pass did not compute it."""
        self._scale = 1.0
        """Factor from a sum over this rank's anchors to its share of their mean."""
        self._loss_scale = 1.0
        """Factor from a weighted sum of their losses to its share of the step's loss."""
        super().__init__(**kwargs)
        self.model_accepts_loss_kwargs = True
        self._require_shorter(config.contrastive.dimensions)
        self.objective = pair_objective(config.contrastive)
        self.objective.temperature.to(self.args.device)
        self._hidden = HiddenStates(self.model).attach()
        self._head = lm_head_of(self.model)

    def _require_shorter(self, dimensions: Sequence[int]) -> None:
        """Refuse lengths of cut vectors that are not shorter than the vectors.

        Raises:
            ConfigError: One of them is not.
        """
        width = self.model.config.get_text_config().hidden_size
        if long := [size for size in dimensions if size >= width]:
            raise ConfigError(
                f"contrastive.dimensions: got {long[0]}, but the vectors of this model have "
                f"{width} numbers, which are always compared; name smaller lengths only"
            )

    def eager_forward(self, fact: str) -> Forward:
        """Return the forward strategy without CUDA graphs."""
        return EagerPairForward(self.model, fact, hidden=self._hidden)

    def create_optimizer(self, model: Any = None) -> Any:
        """Return the optimizer; a learned temperature gets a group without weight decay.

        The temperature is clamped to its bounds after every update.
        """
        optimizer = super().create_optimizer(model)
        temperature = self.objective.temperature
        if temperature.log_scale is not None:
            ratio = self.recipe.lr_ratios.temperature
            group = {"params": [temperature.log_scale], "weight_decay": 0.0, SPARED: True}
            optimizer.add_param_group({**group, **rate_of(self.recipe.lr, ratio)})
            optimizer.register_step_post_hook(lambda *_: temperature.clamp())
        return optimizer

    @property
    def own_parameters(self) -> dict[str, torch.nn.Parameter]:
        """Trained parameters outside of the model; part of the exact state."""
        log_scale = self.objective.temperature.log_scale
        return {} if log_scale is None else {"contrastive.log_scale": log_scale}

    def prepare_step(self, batches: list[Any]) -> None:
        """Count the anchors of the step and clear the gradient of a learned temperature.

        The temperature is added to the step's metrics. With GradCache, the first pass over the step
        runs here.
        """
        own = sum(int(batch["pair_count"]) for batch in batches)
        ranks = self.accelerator.num_processes
        self._scale = self._loss_scale = ranks / max(sum(gather_sizes(own)), 1)
        if self.weighted:
            weight = total_weight([(batch, int(batch["pair_count"])) for batch in batches])
            self._loss_scale = ranks / weight if weight else 0.0
        self._cache = None
        for parameter in self.own_parameters.values():
            parameter.grad = None
        temperature = self.objective.temperature.now()
        if not isinstance(temperature, Tensor):  # created on the device: a copy would wait for it
            temperature = torch.full((), temperature, device=self.args.device)
        self.step_loop.tally.add_parts(temperature=temperature)
        if self._uses_gradcache:
            with self.step_loop.tally.time("compute"):
                self._cache = self._first_pass(batches)

    def nothing_to_learn(self, batches: list[Any]) -> bool:
        """Return whether all pairs of the step have the weight 0."""
        compares = self._contrastive.weight > 0 and self._loss_scale > 0
        return not compares and (self.no_items or self._contrastive.ce_weight == 0)

    def _first_pass(self, batches: list[Any]) -> StepCache | None:
        """Embed all texts of the step and cache their gradients; None if the step is dropped."""
        self.model.train()
        for number, batch in enumerate(batches):
            batch["number"] = number

        def embed(number: int) -> tuple[Tensor, PairTexts]:
            inputs = self._prepare_inputs(batches[number])
            with self.compute_loss_context_manager():
                hidden = self._forward(self.model, inputs)
                return hidden, self.objective.pool(hidden, inputs)

        may_go_on, keep = self.step_loop.may_continue, self._graphs_kept(batches)
        seen = first_pass(len(batches), embed, self.args.device, may_go_on, keep)
        if seen is None:
            return None
        cache = cache_step(seen, self.objective, self._loss_scale)
        self._publish(cache.result)
        return cache

    def _graphs_kept(self, batches: list[Any]) -> int:
        """Return how many micro-batches keep their autograd graph until the backward pass.

        With DDP the last one runs again, because DDP averages the gradients of its own pass. CUDA
        graphs keep none, because all micro-batches use the same memory.
        """
        if self.forward.uses_graphs:
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
        """Return this micro-batch's share of the step's loss, and add its parts to the metrics."""
        hidden = self._hidden_states(model, inputs)
        contrastive = self._contrastive_share(self.objective.pool(hidden, inputs), inputs)
        joint: Tensor = self._contrastive.weight * contrastive
        if self._contrastive.ce_weight > 0:
            ce_sum, ranks = self._ce_sum(hidden, inputs), self.accelerator.num_processes
            ce = mean_over_step(ce_sum, num_items_in_batch, ranks)
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
        ce_sum, self._ce = self._ce, None
        if ce_sum is None:
            ce_sum, _ = selected_cross_entropy(
                hidden,
                inputs["labels"],
                self._head,
                smoothing=self.recipe.label_smoothing,
                focal=self.recipe.focal,
                weights=token_weights(inputs),
            )
        return ce_sum

    def _forward(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """Return the last hidden states [2B + N, T, H] of [anchors; positives; negatives].

        It is a single pass through the wrapped model, so that DDP prepares its hooks once.
        """
        with_ce = torch.is_grad_enabled() and self._contrastive.ce_weight > 0
        found = self.forward(model, inputs, *(("hidden", "ce") if with_ce else ("hidden",)))
        self._ce = found.get("ce")
        return found["hidden"]

    def _contrastive_share(self, texts: PairTexts, inputs: dict[str, Any]) -> Tensor:
        if self._cache is not None:
            return self._cache.share(inputs["number"], texts, self.objective.temperature.log_scale)
        result = self.objective.compare(*self.objective.spread(texts))
        self._publish(result)
        return result.loss_sum * self._loss_scale

    def _publish(self, result: ContrastiveResult) -> None:
        """Add loss and figures to the step's metrics, as means over all its anchors."""
        shares = {name: total * self._scale for name, total in result.sums.items()}
        self.step_loop.tally.add_parts(contrastive=result.loss_sum * self._loss_scale, **shares)

    def average_own_gradients(self) -> None:
        """Average the gradient of a learned temperature, which is outside of DDP, over all ranks.

        What GradCache keeps of the step is freed.
        """
        self._cache = None
        for parameter in self.own_parameters.values():
            if parameter.grad is not None:
                parameter.grad = self.accelerator.reduce(parameter.grad, reduction="mean")
