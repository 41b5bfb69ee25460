"""The modules of a model that get an adapter."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from peft.utils import transformers_weight_conversion as weight_conversion
from torch import nn
from transformers.pytorch_utils import Conv1D

from ...config.adapter.files import last_parts
from ...config.schema import AdapterConfig
from ...errors import ModelError
from ..experts import router_layers
from ..vision import beside_language_model, never_runs_on_text, sees_images
from .score_head import SCORE

_FUSED_IN_MAMBA = frozenset({"out_proj", "conv1d"})
"""Layers of state-space models whose weights their kernels read directly, past an adapter."""
_MAMBA = frozenset({"falcon_h1", "mamba", "mamba2", "falcon_mamba", "nemotron_h"})
"""Model types in which peft refuses adapters on such layers.

Source: peft, `tuners_utils._check_lora_target_modules_mamba`.
"""


_WITH_ADAPTER = (nn.Linear, Conv1D, nn.Embedding)
"""Kinds of modules on which fttui puts adapters."""


def untargeted(base: nn.Module) -> list[str]:
    """Return the last parts of the names of the linear layers that `all-linear` leaves out."""
    routers = {name.rpartition(".")[2] for name in router_layers(base)}
    head = {SCORE} if isinstance(getattr(base, SCORE, None), nn.Linear) else set()
    return sorted(routers | head | (_fused(base) & linear_names(base)))


def targeted_by_all_linear(base: nn.Module) -> set[str]:
    """Return the names of the layers of a model on which `all-linear` puts an adapter."""
    excluded = set(untargeted(base)) | _moved_to_experts(base)
    head: Any = getattr(base, "get_output_embeddings", lambda: None)()
    return {
        name
        for name, module in _trainable_modules(base)
        if isinstance(module, nn.Linear | Conv1D)
        and module is not head
        and name.rpartition(".")[2] not in excluded
    }


def _moved_to_experts(base: Any) -> set[str]:
    """Return the parts of names that peft takes for stacked experts or routers of this model.

    It reads them as names of earlier versions of transformers, in which experts were linear layers.
    """
    kind = getattr(getattr(base, "config", None), "model_type", None)
    pattern = weight_conversion._MODEL_TO_CONVERSION_PATTERN.get(kind)
    return set(weight_conversion._MOE_TARGET_MODULE_MAPPING.get(pattern) or {})


def _trainable_modules(base: Any) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules by name; of a vision-language model those that training on text reaches."""
    if not _sees_images(base):
        yield from base.named_modules()
        return
    outside = tuple(f"{name}." for name in beside_language_model(base))
    for name, module in base.named_modules():
        if not f"{name}.".startswith(outside) and not never_runs_on_text(base, name):
            yield name, module


def _sees_images(base: Any) -> bool:
    return sees_images(getattr(base, "config", None))


def _fused(base: nn.Module) -> frozenset[str]:
    kind = getattr(getattr(base, "config", None), "model_type", "")
    return _FUSED_IN_MAMBA if kind in _MAMBA else frozenset()


def pattern_of(names: list[str]) -> str:
    """Return a regular expression for modules whose names end with one of these parts."""
    return rf"(.*\.)?({'|'.join(map(re.escape, names))})"


def checked_targets(base: Any, adapter: AdapterConfig) -> str | list[str]:
    """Return the targets for peft: `all-linear`, ends of names, or full names.

    Full names are returned for a pattern, for a vision-language model, and for `all-linear` if peft
    would take a name for stacked experts.

    Raises:
        ModelError: A target does not exist, or cannot have an adapter in this model.
    """
    if adapter.targets == "all-linear":
        chosen = targeted_by_all_linear(base)
        _require_patterns_used(chosen, adapter)
        full = _sees_images(base) or bool(_moved_to_experts(base))
        return sorted(chosen) if full else "all-linear"
    chosen = _chosen(base, adapter.targets)
    moved = sorted(_moved_to_experts(base).intersection(last_parts(chosen)))
    if moved:
        raise ModelError(
            f"adapter.targets: {', '.join(moved)} cannot have an adapter in this model, because "
            f"peft takes these names for its stacked experts. Leave them out, or set all-linear."
        )
    fused = sorted(_fused(base).intersection(last_parts(chosen)))
    if fused:
        raise ModelError(
            f"adapter.targets: {', '.join(fused)} cannot have an adapter in this model, because "
            f"its kernels read the weights directly. Leave it out, or set all-linear."
        )
    _require_untied(base, chosen)
    _require_patterns_used(chosen, adapter)
    full = isinstance(adapter.targets, str) or _sees_images(base)
    return sorted(chosen) if full else list(adapter.targets)


def _chosen(base: nn.Module, targets: str | list[str]) -> set[str]:
    """Return the full names of the modules that the targets name.

    Raises:
        ModelError: A target names no module.
    """
    modules = {n for n, one in _trainable_modules(base) if isinstance(one, _WITH_ADAPTER)}
    if isinstance(targets, str):
        found = {name for name in modules if re.fullmatch(targets, name)}
        if not found:
            raise ModelError(
                f"adapter.targets: no full name of a module matches {targets!r}; one is "
                f"{max(modules, key=len)}. Correct the pattern; to name modules by the end of "
                f"their names, write a list such as [{targets}]."
            )
        return found
    by_target = {one: {n for n in modules if n == one or n.endswith(f".{one}")} for one in targets}
    missing = [one for one, names in by_target.items() if not names]
    if missing:
        raise ModelError(
            f"adapter.targets: this model has no linear layer named {', '.join(missing)}. "
            f"It has {', '.join(last_parts(modules))}. Name some of these, or set all-linear."
        )
    return set().union(*by_target.values())


def _require_untied(base: Any, chosen: set[str]) -> None:
    """Refuse an adapter on one of two tied matrices, which no merge could keep equal.

    Raises:
        ModelError: Embedding and output head are tied, and one of them is chosen.
    """
    ends = {"input": base.get_input_embeddings(), "output": base.get_output_embeddings()}
    matrices = [getattr(end, "weight", None) for end in ends.values()]  # a lean head has none
    if matrices[0] is None or matrices[0] is not matrices[1]:
        return
    names = {name for name, module in base.named_modules() if module in ends.values()}
    tied = sorted(names & chosen)
    if tied:
        raise ModelError(
            f"adapter.targets: {', '.join(tied)} cannot have an adapter, because embedding and "
            f"output head of this model are one tied matrix. Leave it out, or train the whole "
            f"matrix: adapter.modules_to_save: [{last_parts(names)[0]}]."
        )


def _require_patterns_used(chosen: set[str], adapter: AdapterConfig) -> None:
    """Refuse a rank or alpha for a module that gets no adapter.

    Raises:
        ModelError: A pattern matches no chosen module.
    """
    for key in ("rank_pattern", "alpha_pattern"):
        for pattern in getattr(adapter, key):
            if not any(re.match(rf"(.*\.)?({pattern})$", name) for name in chosen):
                raise ModelError(
                    f"adapter.{key}: no module with an adapter matches {pattern!r}; they are "
                    f"{', '.join(last_parts(chosen))}. Correct it, or remove it."
                )


def linear_names(model: nn.Module) -> set[str]:
    """Return the names of all linear layers, also in 4 bits, without path, such as `q_proj`."""
    return {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    }
