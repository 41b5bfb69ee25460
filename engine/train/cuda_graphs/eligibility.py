"""Eligibility: decides whether a run can use CUDA graphs, and builds its graph forward."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from accelerate.utils import AutocastKwargs

from ...config.fast_mode import (
    MIXTURE_OF_EXPERTS,
    WEIGHTED_TOKENS,
    fast_fact,
    refusal,
    why_not_fast,
)
from ...config.memory.architecture import EXPERTS
from ...config.memory.estimate import sequences_per_micro_batch
from ...config.schema import RunConfig
from ...errors import ConfigError
from ...model.hidden import backbone_of, base_model_of
from ..patches import without_own_noise
from .graph_forward import GraphForward
from .pointwise import Kernels, kernels_for
from .static_forward import StaticForward
from .trial import why_different


def fast_path(
    config: RunConfig, trainer: Any, pad_id: int, log: Callable[[str, str], None]
) -> tuple[GraphForward | None, str]:
    """Return the graph forward of a run, or None without CUDA graphs, and a text with the reason.

    With a graph forward, layers of the model are replaced (see `fusion`) and NEFTune's noise is
    added by the graph forward instead of transformers.

    Raises:
        ConfigError: `train.fast` is on, but the run cannot use CUDA graphs.
        torch.OutOfMemoryError: the trial of static shapes does not fit into the memory.
    """
    mode = config.train.fast
    device = trainer.args.device
    reason = why_not(config, trainer.model, device) or _of_weights(config, trainer)
    if reason is not None:
        if mode == "on":
            raise ConfigError(f"train.fast: {refusal(reason)}")
        return None, fast_fact(config, reason)
    reason = _try_static_shapes(config, trainer, pad_id, device)
    if reason is not None:
        if mode == "on":
            raise ConfigError(f"train.fast: {refusal(reason)}")
        log("warning", f"fast mode is off: {reason}")
        return None, fast_fact(config, reason)
    kernels, failed = kernels_for(device)
    if failed:
        log("info", f"fast mode: the compiler failed, so layers run some percent slower: {failed}")
    program = _program(config, trainer, kernels)
    path = GraphForward(
        program,
        device,
        longest=config.data.max_length,
        rows=sequences_per_micro_batch(config),
        pad_id=pad_id,
        capture=mode != "static",
        log=log,
    )
    without_own_noise(trainer)
    return path, fast_fact(config, None)


def _try_static_shapes(
    config: RunConfig, trainer: Any, pad_id: int, device: torch.device
) -> str | None:
    """Try static shapes with uncompiled kernels; return why they fail, None if they work.

    Raises:
        torch.OutOfMemoryError: the trial does not fit into the memory.
    """
    program = _program(config, trainer, Kernels())
    try:
        return why_different(program, trainer.model, device, pad_id)
    finally:
        program.restore_layers()


def _program(config: RunConfig, trainer: Any, kernels: Kernels) -> StaticForward:
    no_cache = AutocastKwargs(enabled=True, cache_enabled=False)
    return StaticForward(
        trainer.model,
        functools.partial(trainer.accelerator.autocast, no_cache),
        smoothing=config.train.label_smoothing,
        focal=config.train.focal,
        noise=config.train.neftune,
        kernels=kernels,
    )


def why_not(config: RunConfig, model: torch.nn.Module, device: torch.device) -> str | None:
    """Return why configuration, device or model rule out static shapes or CUDA graphs, or None.

    None does not promise that they work: a trial decides (see `why_different`).
    """
    return why_not_fast(config, device.type) or _of_model(model, device)


def _of_weights(config: RunConfig, trainer: Any) -> str | None:
    """Return why weights of records rule out CUDA graphs, whose loss ignores them; or None."""
    return WEIGHTED_TOKENS if trainer.weighted and config.learns_next_token else None


def _of_model(model: torch.nn.Module, device: torch.device) -> str | None:
    """Return the property of the model that rules out CUDA graphs; None without one."""
    base: Any = base_model_of(model)
    settings = base.config.get_text_config()
    if any((getattr(settings, name, None) or 0) > 1 for name in EXPERTS):
        return MIXTURE_OF_EXPERTS
    if any(parameter.device.type != device.type for parameter in model.parameters()):
        return "a part of the model is not on the device"
    try:
        backbone_of(model)
    except (AttributeError, TypeError) as error:
        return str(error)
    return None
