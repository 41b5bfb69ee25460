"""Streamed mode: NF4 weights of decoder layers and output head pass through slots on the device.

Only bitsandbytes' 4-bit linear layers stream; norms, biases and adapters stay on the device. A
linear layer asks for its weights before it computes, and its output asks for them again before its
backward pass, which reads the weights without any other call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import bitsandbytes as bnb
import torch
from torch import Tensor, nn

from ...config.memory.limits import SLOTS
from ...errors import ModelError
from ..host_embedding import QuantizedHead
from .copies import Copies, copies_to
from .ring import Held, Ring, Sharing


@dataclass(frozen=True)
class Streams:
    """The rings of a model."""

    layers: Ring
    head: Ring

    @property
    def host_bytes(self) -> int:
        """Bytes in host memory."""
        return self.layers.host_bytes + self.head.host_bytes

    @property
    def slot_bytes(self) -> int:
        """Bytes of the slots on the device."""
        return self.layers.slot_bytes + self.head.slot_bytes

    def share(self, sharing: Sharing) -> None:
        """Keep only this rank's share of the layers; the head stays whole on every rank.

        Raises:
            ModelError: Host memory cannot be page-locked.
        """
        self.layers.share(sharing)

    @property
    def fact(self) -> str:
        """A text about the memory of the weights, shown when the run starts."""
        host, device = (size / 2**20 for size in (self.host_bytes, self.slot_bytes))
        return f"{host:,.0f} MiB of weights in host memory pass through {device:,.0f} MiB of slots"


def make_streamed(
    base: Any,
    layers: Sequence[nn.Module],
    device: torch.device,
    copies: Callable[[torch.device, int], Copies] = copies_to,
) -> Streams:
    """Move the 4-bit weights of a lean model to host memory and everything else to the device.

    Args:
        base: A model in lean form, on the device or in host memory.
        layers: Its decoder layers in the order of a forward pass.
        device: Device that computes.
        copies: Makes the copies to a number of slots.

    Raises:
        ModelError: A layer has no 4-bit weights or shares them with another one, or host memory
            cannot be page-locked.
    """
    linears = [_linears(layer) for layer in layers]
    _require_own(base, linears)
    ring = Ring([_held(part) for part in linears], device, copies, SLOTS)
    for number, part in enumerate(linears):
        for linear in part:
            _stream(linear, ring, number)
    head: QuantizedHead = base.get_output_embeddings()
    slices = [list(_tensors(packed)) for packed in head.packed]
    head.enter = (head_ring := Ring(slices, device, copies, SLOTS)).enter
    _to_device(base, device)
    streams = Streams(ring, head_ring)
    base.streams = streams
    return streams


def _linears(layer: nn.Module) -> list[bnb.nn.Linear4bit]:
    return [module for module in layer.modules() if isinstance(module, bnb.nn.Linear4bit)]


def _require_own(base: Any, linears: Sequence[Sequence[bnb.nn.Linear4bit]]) -> None:
    known = [id(linear.weight) for part in linears for linear in part]
    if not linears or not all(linears) or len(set(known)) < len(known):
        raise ModelError(
            f"train.memory: streamed needs decoder layers that each have 4-bit weights of their "
            f"own, but those of {type(base).__name__} have none or share them. "
            f"Set train.memory: lean."
        )


def _held(linears: Sequence[bnb.nn.Linear4bit]) -> list[Held]:
    return [held for linear in linears for held in _tensors(linear.weight)]


def _tensors(packed: Any) -> Iterator[Held]:
    """Yield the large tensors of a 4-bit weight: its numbers, and its scales of both levels."""
    yield Held(packed, "data")
    yield Held(packed.quant_state, "absmax")
    if packed.quant_state.nested:
        yield Held(packed.quant_state.state2, "absmax")


def _stream(linear: nn.Module, ring: Ring, number: int) -> None:
    """Let a linear layer ask for its weights before both of its passes."""

    def enter(*_: Any) -> None:
        ring.enter(number)

    def watch(module: nn.Module, inputs: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(enter)  # type: ignore[no-untyped-call]  # of torch

    linear.register_forward_pre_hook(enter)
    linear.register_forward_hook(watch)


def _to_device(base: nn.Module, device: torch.device) -> None:
    """Move what does not stream to the device, the small tables of 4-bit weights included."""
    for parameter in base.parameters():
        parameter.data = parameter.data.to(device)
        state: Any = getattr(parameter, "quant_state", None)
        if state is not None:
            state.to(device)
    for module in base.modules():
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = buffer.to(device)
