"""Tensors of batches in host memory, copied without making the device wait for the host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

_MOST_BATCHES, _MOST_BYTES = 16, 8 * 2**20
"""Batches and bytes of copies that may wait on the devices; together they cost one transfer."""


@dataclass(slots=True)
class HeldTensor:
    """A copy of a tensor, and the device that it came from.

    A copy from a GPU to the host would wait for all work that was queued before it. So the copy is
    first made on the GPU, in its turn, and moved to the host later, when it has long been made.
    """

    tensor: Tensor
    device: torch.device

    @classmethod
    def of(cls, tensor: Tensor) -> Self:
        """Return a copy of a tensor."""
        own = tensor.detach() if tensor.requires_grad else tensor
        copied = own.clone() if own.is_cuda or own.is_cpu else own.to("cpu", copy=True)
        return cls(copied, tensor.device)

    def back(self) -> Tensor:
        """Return a copy on the device that the tensor came from."""
        return self.tensor.to(self.device, copy=True)


class DeviceCopies:
    """Held tensors whose copies are still on a GPU, until they are moved to the host together."""

    def __init__(self) -> None:
        self._waiting: dict[torch.device, list[HeldTensor]] = {}
        self._made: dict[torch.device, Any] = {}
        """The event after the newest copy of each device."""
        self._streams: dict[torch.device, Any] = {}
        """A stream of each device for copies to the host, so that they wait for nothing else."""
        self._batches = self._bytes = 0

    def add(self, batch: Iterable[HeldTensor]) -> None:
        """Take the tensors of a batch that are on a GPU; the others are on the host already."""
        ours = [held for held in batch if held.tensor.is_cuda]
        if not ours:
            return
        for held in ours:
            self._waiting.setdefault(held.device, []).append(held)
            self._bytes += held.tensor.nbytes
        for device in {held.device for held in ours}:
            self._made[device] = torch.cuda.current_stream(device).record_event()
        self._batches += 1

    @property
    def due(self) -> bool:
        """Whether enough copies wait to be moved."""
        return self._batches >= _MOST_BATCHES or self._bytes >= _MOST_BYTES

    def move(self) -> None:
        """Move everything to the host on separate streams, and wait only for the copies."""
        for device, held in self._waiting.items():
            if device not in self._streams:
                self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # of torch
            stream = self._streams[device]
            stream.wait_event(self._made[device])
            with torch.cuda.stream(stream):
                moved = together_on_host([one.tensor for one in held])
            for one, tensor in zip(held, moved, strict=True):
                one.tensor = tensor
        self._waiting.clear()
        self._batches = self._bytes = 0


def together_on_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors on the host, with one transfer for all of the same type."""
    found = list(tensors)
    for dtype in {tensor.dtype for tensor in tensors}:
        places = [place for place, tensor in enumerate(tensors) if tensor.dtype is dtype]
        flat = torch.cat([tensors[place].reshape(-1) for place in places]).to("cpu")
        parts = torch.split(flat, [tensors[place].numel() for place in places])
        for place, part in zip(places, parts, strict=True):
            found[place] = part.reshape(tensors[place].shape)
    return found
