"""Optimizer with a learning rate per group of trained weights, and the learning rate schedule."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from ...config.schema import TrainConfig
from ...config.sections.optimizers import kind_of
from ...core.schedules import Factor, own_factor
from ...errors import ConfigError
from .optimizer_kinds import OWN, build_own, moments

if TYPE_CHECKING:
    from ..distributed.sharding import ShardedModel  # slow to import


SPARED = "spared"
"""Key of a group of weights: whether they have no weight decay whatever the setting is."""


class OwnOptimizer:
    """Mixin in front of `transformers.Trainer` that makes the configured optimizer and schedule."""

    recipe: TrainConfig
    lr_factor: Factor | None
    """Replaces the configured schedule; None keeps it."""
    sharded: ShardedModel | None = None
    """The parts of the model on this rank, which are optimized; None trains whole weights."""

    def create_optimizer(self, model: Any = None) -> Any:
        """Return the configured optimizer over the parameter groups of the model.

        It is made at the first call and kept in the trainer.

        Raises:
            ConfigError: The package of `train.optimizer` is not installed.
        """
        trainer: Any = self
        if trainer.optimizer is None:
            trained = model if model is not None else trainer.model
            decayed = set(trainer.get_decay_parameter_names(trained))
            groups = parameter_groups(trained, self.recipe, decayed)
            if self.sharded is not None:
                for group in groups:
                    group["params"] = [self.sharded.part_of(one) for one in group["params"]]
            if self.recipe.base_optimizer in OWN:
                trainer.optimizer = build_own(self.recipe.base_optimizer, groups, self.recipe)
            else:
                kind, options = trainer.get_optimizer_cls_and_kwargs(trainer.args, trainer.model)
                trainer.optimizer = kind(groups, **{**options, **moments(self.recipe)})
        return trainer.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Return the configured schedule, or the one of `lr_factor` if that is set.

        It is made at the first call and kept in the trainer.
        """
        trainer: Any = self
        factor = self.lr_factor
        if factor is None:
            warmup = trainer.args.get_warmup_steps(num_training_steps)
            factor = own_factor(self.recipe, num_training_steps, warmup)
        if factor is None:
            return super().create_scheduler(num_training_steps, optimizer)  # type: ignore[misc]  # of the trainer
        if trainer.lr_scheduler is None:
            trainer.lr_scheduler = LambdaLR(optimizer or trainer.optimizer, factor)
            trainer._created_lr_scheduler = True
        return trainer.lr_scheduler


def rate_of(lr: float, ratio: float) -> dict[str, float]:
    """Return a group's learning rate and its ratio to that of the run."""
    return {"lr": lr * ratio, "lr_ratio": ratio}


def lr_ratio(optimizer: Any) -> float:
    """Return the ratio of the first group, whose learning rate the schedule reports."""
    return float(optimizer.param_groups[0]["lr_ratio"])


def set_lr(optimizer: Any, lr: float) -> None:
    """Set the learning rate of the next update; each group gets its own ratio of it."""
    for group in optimizer.param_groups:
        group.update(rate_of(lr, group["lr_ratio"]))


def set_weight_decay(optimizer: Any, value: float) -> None:
    """Set the weight decay of the next updates, except of the weights that are spared."""
    for group in optimizer.param_groups:
        group["weight_decay"] = 0.0 if group[SPARED] else value


def parameter_groups(
    model: nn.Module, recipe: TrainConfig, decayed: set[str]
) -> list[dict[str, Any]]:
    """Return the trained parameters in groups of one learning rate and weight decay each.

    Without `layer_decay` and `patterns` the groups depend on the model alone, so that a checkpoint
    fits a run with other ratios; with them each group has a checksum of the names of its weights.

    Args:
        model: model with adapters; parameters that require a gradient are trained.
        recipe: learning rates and weight decay.
        decayed: names of the parameters with weight decay.

    Raises:
        ConfigError: no trained weight has one of the configured ratios.
    """
    places = _Places(model, recipe)
    parts: _Parts = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            place = places.of(name, parameter, spared=name not in decayed)
            parts.setdefault(place, {})[name] = parameter
    _require_effect(recipe, parts, places.layers)
    by_ratios = bool(recipe.lr_ratios.patterns) or recipe.lr_ratios.layer_decay != 1
    return [
        {
            "params": list(named.values()),
            "weight_decay": 0.0 if place.spared else recipe.weight_decay,
            SPARED: place.spared,
            **({"weights_id": _digest(named)} if by_ratios else {}),
            **({"matrices": place.matrices} if recipe.base_optimizer == "muon" else {}),
            **rate_of(recipe.lr, places.ratio(place)),
        }
        for place, named in sorted(parts.items(), key=lambda item: item[0])
    ]


def _require_effect(recipe: TrainConfig, parts: _Parts, layers: int) -> None:
    """Refuse ratios that no trained weight would have.

    Raises:
        ConfigError: there are such ratios.
    """
    known = [name for named in parts.values() for name in named]
    used = {place.pattern for place in parts}
    for number, pattern in enumerate(recipe.lr_ratios.patterns, 1):
        if number not in used:
            raise ConfigError(
                f"train.lr_ratios.patterns: {pattern} matches no trained weight, or only those "
                "that an earlier pattern matches; correct or remove it. The full name of a trained "
                f"weight is, for example, {known[0] if known else '(none is trained)'}"
            )
    decay = recipe.lr_ratios.layer_decay
    if decay != 1 and not layers:
        raise ConfigError(
            f"train.lr_ratios.layer_decay: got {decay:g}, but the names of this model's weights "
            "show no layers; remove it, or use train.lr_ratios.patterns"
        )


class _Place(NamedTuple):
    """What the weights of one group have in common."""

    part: int
    """2 for fully trained modules and rows, 1 for LoRA's B matrices, 0 for all others."""
    pattern: int
    """Number of the pattern of `lr_ratios.patterns` that matches, from 1 on; 0 for none."""
    depth: int
    """Layers between the weight and the top; 0 without `lr_ratios.layer_decay`."""
    spared: bool
    """Whether the weights have no weight decay."""
    matrices: bool
    """Whether they are matrices of layers; false unless the optimizer treats those apart."""


_Parts = dict[_Place, dict[str, nn.Parameter]]
"""The weights of each group by their full names."""


class _Places:
    """Finds the group of each trained weight, and the ratio of a group's learning rate."""

    def __init__(self, model: nn.Module, recipe: TrainConfig) -> None:
        self._ratios = recipe.lr_ratios
        self._patterns = [re.compile(pattern) for pattern in recipe.lr_ratios.patterns]
        self._apart = kind_of(recipe).matrices_only
        numbers = [_layer(name) for name, _ in model.named_parameters()]
        self.layers = 1 + max((n for n in numbers if n is not None), default=-1)
        self._ends = _weights_of_ends(model)

    def of(self, name: str, parameter: nn.Parameter, *, spared: bool) -> _Place:
        """Return the group of a weight."""
        matching = (i for i, pattern in enumerate(self._patterns, 1) if pattern.fullmatch(name))
        part = _part(name)
        at_end = part == 2 or id(parameter) in self._ends
        matrices = self._apart and parameter.ndim == 2 and not at_end
        return _Place(part, next(matching, 0), self._depth(name), spared, matrices)

    def ratio(self, place: _Place) -> float:
        """Return the learning rate of a group as a multiple of that of the run."""
        own = (1.0, self._ratios.lora_b, self._ratios.embeddings)[place.part]
        given = [1.0, *self._ratios.patterns.values()][place.pattern]
        return own * given * self._ratios.layer_decay**place.depth

    def _depth(self, name: str) -> int:
        if self._ratios.layer_decay == 1:
            return 0
        number = _layer(name)
        if number is not None:
            return self.layers - 1 - number
        return self.layers if any(word in name for word in _BELOW) else 0


_LAYER = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks|block)\.(\d+)\.")
_TOWERS = ("vision", "visual")
_BELOW = ("embed_tokens", "wte", "word_embeddings", *_TOWERS)
"""Parts of the names of weights that are below the first decoder layer."""


def _layer(name: str) -> int | None:
    """Return the number of the decoder layer of a weight; None if it is in no decoder layer."""
    found = None if any(word in name for word in _TOWERS) else _LAYER.search(name)
    return int(found[1]) if found else None


def _weights_of_ends(model: Any) -> set[int]:
    """Return the ids of all parameters inside the embedding and the output head."""
    asked = [getattr(model, f"get_{end}_embeddings", None) for end in ("input", "output")]
    ends = [ask() for ask in asked if ask is not None]
    return {id(p) for end in ends if end is not None for p in end.parameters()}


def _digest(names: Iterable[str]) -> str:
    """Return a short checksum of names in their order."""
    return hashlib.blake2b("\n".join(names).encode(), digest_size=8).hexdigest()


def _part(name: str) -> int:
    """Return 2 for fully trained modules and rows, 1 for LoRA's B matrices, 0 for all others."""
    if "modules_to_save" in name or "trainable_tokens" in name:
        return 2
    return int("lora_B" in name or "lora_embedding_B" in name)
