"""Checks of `train.strategy: fsdp` and `hybrid`: what sharded runs do not support yet, by name."""

from __future__ import annotations

from collections.abc import Iterator

from ..schema import RunConfig
from ..sections.optimizers import OPTIMIZERS
from .problem import Problem

_KEEP = "or train.strategy: ddp"


def check_sharding(config: RunConfig) -> Iterator[Problem]:
    """Yield the settings that cannot be combined with `train.strategy: fsdp`."""
    if not config.train.shards:
        return
    yield from _ranks(config)
    yield from _model(config)
    yield from _adapter(config)
    yield from _optimizer(config)
    yield from _memory(config)


def sharded_experts(config: RunConfig) -> Iterator[Problem]:
    """Yield a problem if a mixture of experts would be sharded."""
    if config.train.shards:
        yield Problem(
            "train.strategy",
            f"got {config.train.strategy}, but the model is a mixture of experts, whose ranks may "
            "use different experts in a step; set train.strategy: ddp",
        )


def sharded_vision(config: RunConfig) -> Iterator[Problem]:
    """Yield a problem if a vision-language model would be sharded."""
    if config.train.shards:
        yield Problem(
            "train.strategy",
            f"got {config.train.strategy}, which does not support vision-language models yet; set "
            "train.strategy: ddp",
        )


def _ranks(config: RunConfig) -> Iterator[Problem]:
    train = config.train
    if train.strategy == "hybrid" and min(train.nodes, train.devices) == 1:
        yield Problem(
            "train.strategy",
            "got hybrid, which splits the model within a node and copies it to other nodes, but "
            f"train.nodes is {train.nodes} and train.devices is {train.devices}; both must be at "
            "least 2, or set fsdp",
        )
    elif train.ranks == 1:
        yield Problem(
            "train.strategy",
            "got fsdp, which splits the model over several processes, but there is one; set "
            "train.devices, or remove train.strategy",
        )
    if config.task != "sft":
        yield Problem(
            "train.strategy",
            f"got {train.strategy}, which supports task sft so far, but the task is "
            f"{config.task}; set train.strategy: ddp",
        )


def _model(config: RunConfig) -> Iterator[Problem]:
    model = config.model
    if model.quantize == "int8":
        yield Problem(
            "model.quantize",
            "got int8, whose weights train.strategy: fsdp cannot split; set model.quantize: nf4, "
            f"fp4 or none, {_KEEP}",
        )
    if model.precision == "fp16":
        yield Problem(
            "model.precision",
            "got fp16, whose loss scale each rank would find by its own part of the gradients; set "
            f"bf16 or auto, {_KEEP}",
        )
    if model.attention == "flash_attention_2":
        yield Problem(
            "model.attention",
            "got flash_attention_2, but with train.strategy: fsdp a model is loaded and tested in "
            f"host memory; set sdpa or auto, {_KEEP}",
        )
    for key in config.keys_of_added_tokens[:1]:
        yield Problem(
            key,
            f"adds rows to the embedding, which train.strategy: fsdp cannot split; remove it, "
            f"{_KEEP}",
        )


def _adapter(config: RunConfig) -> Iterator[Problem]:
    adapter = config.adapter
    if adapter.modules_to_save:
        yield Problem(
            "adapter.modules_to_save",
            f"got {', '.join(adapter.modules_to_save)}, of which train.strategy: fsdp cannot split "
            f"the trained copies; set an empty list, {_KEEP}",
        )
    if adapter.init == "eva":
        yield Problem(
            "adapter.init",
            "got eva, which runs the whole model before it is split; set another value, " + _KEEP,
        )
    if adapter.dora:
        yield Problem(
            "adapter.dora",
            "got true, which needs the norms of whole rows of weights; set false, " + _KEEP,
        )


def _optimizer(config: RunConfig) -> Iterator[Problem]:
    train = config.train
    if OPTIMIZERS[train.optimizer].copies:
        yield Problem(
            "train.optimizer",
            f"got {train.optimizer}, whose second pass needs whole weights and gradients on each "
            f"rank; set train.optimizer: adamw, {_KEEP}",
        )
    elif not OPTIMIZERS[train.optimizer].elementwise:
        known = ", ".join(name for name, kind in OPTIMIZERS.items() if kind.elementwise)
        yield Problem(
            "train.optimizer",
            f"got {train.optimizer}, but with train.strategy: fsdp each rank updates its part of a "
            f"weight by itself; choose from {known}, {_KEEP}",
        )
    for key in ("clip_value", "clip_adaptive"):
        if value := getattr(train, key):
            yield Problem(
                f"train.{key}",
                f"got {value:g}, but train.strategy: fsdp clips by the norm of the whole gradient "
                f"only; set 0, {_KEEP}",
            )


def _memory(config: RunConfig) -> Iterator[Problem]:
    train = config.train
    if train.lean and not train.streams:
        yield Problem(
            "train.memory",
            f"got {train.memory}, which train.strategy: {train.strategy} does not need for "
            f"embedding and head, because it splits them; set plain or streamed, {_KEEP}",
        )
