"""Optimizer with a learning rate per group of trained weights, and the learning rate schedule."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from ...config.schema import TrainConfig
from ...errors import ConfigError

ONE_CYCLE_START = 1 / 25
"""Share of the learning rate at which one_cycle begins.

Source: Smith, Topin 2018, with the value of fast.ai.
"""

Factor = Callable[[int], float]
"""Function from finished optimizer steps to the factor on the learning rate."""


class OwnOptimizer:
    """Mixin in front of `transformers.Trainer` that makes the configured optimizer and schedule."""

    recipe: TrainConfig
    lr_factor: Factor | None
    """Replaces the configured schedule; None keeps it."""

    def create_optimizer(self, model: Any = None) -> Any:
        """Return the configured optimizer over the parameter groups of the model.

        It is made at the first call and kept in the trainer.

        Raises:
            ConfigError: `train.optimizer` is lamb, whose package is not installed.
        """
        trainer: Any = self
        if trainer.optimizer is None:
            trained = model if model is not None else trainer.model
            kind, options = _kind(trainer, self.recipe.optimizer)
            options |= moments(self.recipe)
            decayed = set(trainer.get_decay_parameter_names(trained))
            trainer.optimizer = kind(parameter_groups(trained, self.recipe, decayed), **options)
        return trainer.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Return the configured schedule, or the one of `lr_factor` if that is set.

        It is made at the first call and kept in the trainer.
        """
        trainer: Any = self
        factor = self.lr_factor
        if factor is None and self.recipe.schedule == "one_cycle":
            warmup = trainer.args.get_warmup_steps(num_training_steps)
            factor = partial(
                one_cycle, steps=num_training_steps, warmup=warmup, floor=self.recipe.lr_floor
            )
        if factor is None:
            return super().create_scheduler(num_training_steps, optimizer)  # type: ignore[misc]  # of the trainer
        if trainer.lr_scheduler is None:
            trainer.lr_scheduler = LambdaLR(optimizer or trainer.optimizer, factor)
            trainer._created_lr_scheduler = True
        return trainer.lr_scheduler


def _kind(trainer: Any, name: str) -> tuple[Any, dict[str, Any]]:
    if name != "lamb":
        kind, options = trainer.get_optimizer_cls_and_kwargs(trainer.args, trainer.model)
        return kind, dict(options)
    if find_spec("pytorch_optimizer") is None:
        raise ConfigError(
            "train.optimizer: lamb is in the package pytorch-optimizer, which is not installed; "
            "pip install pytorch-optimizer, or choose adamw"
        )
    # The LAMB of bitsandbytes has a trust ratio of zero for a zero matrix, which LoRA's B is at the
    # start, so that B would never change.
    from pytorch_optimizer import Lamb

    return Lamb, {"lr": trainer.args.learning_rate}


def moments(recipe: TrainConfig) -> dict[str, Any]:
    """Return the configured betas and epsilon as arguments of the optimizer; None is left out."""
    given = {"betas": recipe.betas, "eps": recipe.epsilon}
    return {name: value for name, value in given.items() if value is not None}


def rate_of(lr: float, ratio: float) -> dict[str, float]:
    """Return a group's learning rate and its ratio to that of the run."""
    return {"lr": lr * ratio, "lr_ratio": ratio}


def set_lr(optimizer: Any, lr: float) -> None:
    """Set the learning rate of the next update; each group gets its own ratio of it."""
    for group in optimizer.param_groups:
        group.update(rate_of(lr, group["lr_ratio"]))


def parameter_groups(
    model: nn.Module, recipe: TrainConfig, decayed: set[str]
) -> list[dict[str, Any]]:
    """Return the trained parameters in groups of one learning rate and weight decay each.

    The groups depend on the model alone, so that a checkpoint fits a run with other ratios. The
    first group has the learning rate of the run.

    Args:
        model: model with adapters; parameters that require a gradient are trained.
        recipe: learning rates and weight decay.
        decayed: names of the parameters with weight decay.
    """
    parts: dict[tuple[int, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parts.setdefault((_part(name), name not in decayed), []).append(parameter)
    ratios = (1.0, recipe.lr_ratios.lora_b, recipe.lr_ratios.embeddings)
    return [
        {
            "params": parameters,
            "weight_decay": 0.0 if spared else recipe.weight_decay,
            **rate_of(recipe.lr, ratios[part]),
        }
        for (part, spared), parameters in sorted(parts.items(), key=lambda item: item[0])
    ]


def _part(name: str) -> int:
    """Return 2 for fully trained modules and rows, 1 for LoRA's B matrices, 0 for all others."""
    if "modules_to_save" in name or "trainable_tokens" in name:
        return 2
    return int("lora_B" in name or "lora_embedding_B" in name)


def one_cycle(step: int, *, steps: int, warmup: int, floor: float) -> float:
    """Return the one_cycle factor on the learning rate after `step` steps.

    It rises from `ONE_CYCLE_START` to 1 during the warm-up, then falls to `floor`, by cosines.
    """
    if step < warmup:
        return _between(ONE_CYCLE_START, 1.0, step / warmup)
    return _between(1.0, floor, min(1.0, (step - warmup) / max(1, steps - warmup)))


def _between(start: float, end: float, share: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2
