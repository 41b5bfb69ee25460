"""Whether a run trains in fast mode, and why not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from accelerate.utils import AutocastKwargs

from ...config.memory import sequences_per_micro_batch
from ...config.schema import RunConfig
from ...errors import ConfigError
from ...model.hidden import backbone_of, base_model_of
from .path import FastPath
from .program import Program

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


def fast_path(
    config: RunConfig, trainer: Any, pad_id: int, log: Callable[[str, str], None]
) -> tuple[FastPath | None, str]:
    """The fast path of a run, or None, and what to say about it.

    Raises:
        ConfigError: `train.fast: on`, and it is impossible here.
    """
    mode = config.train.fast
    device = trainer.args.device
    reason = "train.fast is off" if mode == "off" else why_not(config, trainer.model, device)
    if reason is not None:
        if mode == "on":
            raise ConfigError(
                f"train.fast: on is not possible: {reason}. Set train.fast: auto, which trains "
                "the ordinary way where it has to"
            )
        return None, f"off: {reason}"
    no_cache = AutocastKwargs(enabled=True, cache_enabled=False)
    precision = functools.partial(trainer.accelerator.autocast, no_cache)
    path = FastPath(
        Program(
            trainer.model,
            precision,
            smoothing=config.train.label_smoothing,
            noise=config.train.neftune,
        ),
        device,
        longest=config.data.max_length,
        rows=sequences_per_micro_batch(config),
        pad_id=pad_id,
        capture=mode != "static",
        log=log,
    )
    # The trainer's own noise would be made for rows as long as the buffers.
    trainer.neftune_noise_alpha = None
    return path, "static shapes" if mode == "static" else "CUDA graphs"


def why_not(config: RunConfig, model: torch.nn.Module, device: torch.device) -> str | None:
    """What stands against static shapes, or on a CUDA device against graphs; None is nothing."""
    reasons = _of_config(config, device), _of_model(model, device)
    return next((reason for reason in reasons if reason), None)


def _of_config(config: RunConfig, device: torch.device) -> str | None:
    train, attention = config.train, config.model.attention
    reasons = {
        f"there are CUDA graphs on CUDA devices only, and this is {device.type}": (
            train.fast != "static" and device.type != "cuda"
        ),
        "train.activations are on the host": train.activations == "host",
        f"model.attention {attention} depends on the data; auto does not": (
            attention not in ("auto", "sdpa")
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _of_model(model: torch.nn.Module, device: torch.device) -> str | None:
    base: Any = base_model_of(model)
    settings = base.config.get_text_config()
    if any((getattr(settings, name, None) or 0) > 1 for name in _EXPERTS):
        return "the model chooses experts by the data"
    if any(parameter.device.type != device.type for parameter in model.parameters()):
        return "a part of the model is not on the device"
    try:
        backbone_of(model)
    except (AttributeError, TypeError) as error:
        return str(error)
    return None
