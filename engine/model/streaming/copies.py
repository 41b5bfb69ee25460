"""Copies from host memory to slots on the device, and page-locked host memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from ...errors import ModelError

PAGE_BYTES = 4096
Fill = Callable[[Tensor], None]


class Copies(Protocol):
    """Copies of bytes to the slots of a ring."""

    def begin(self, slot: int, into: Tensor, fill: Fill) -> None:
        """Begin to fill a slot, once all computations so far are done with it.

        Args:
            slot: Number of the slot.
            into: The bytes of the slot that are filled.
            fill: Copies to these bytes on the current stream.
        """

    def wait(self, slot: int) -> None:
        """Let all later computations begin after the last copy to this slot."""


class DirectCopies:
    """Copies that are done at once, as on a CPU."""

    def begin(self, slot: int, into: Tensor, fill: Fill) -> None:
        """Fill the slot."""
        fill(into)

    def wait(self, slot: int) -> None:
        """Return at once: every copy is done."""


class StreamCopies:
    """Copies on a CUDA stream of their own, beside the computation."""

    def __init__(self, device: torch.device, slots: int) -> None:
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # of torch
        self._arrived: list[Any] = [torch.cuda.Event() for _ in range(slots)]  # type: ignore[no-untyped-call]  # of torch

    def begin(self, slot: int, into: Tensor, fill: Fill) -> None:
        """Begin to fill a slot, once all computations so far are done with it."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            fill(into)
            self._arrived[slot].record(self._stream)

    def wait(self, slot: int) -> None:
        """Let all later computations begin after the last copy to this slot."""
        torch.cuda.current_stream(self._device).wait_event(self._arrived[slot])


def copies_to(device: torch.device, slots: int) -> Copies:
    """Return the copies for a device: beside the computation on CUDA, otherwise at once."""
    return StreamCopies(device, slots) if device.type == "cuda" else DirectCopies()


class HostBuffer:
    """Bytes in host memory, page-locked if they are copied to a CUDA device.

    Ordinary memory is allocated and then locked, because torch's allocator of page-locked memory
    rounds every size up to a power of two, which would nearly double some layers.

    Raises:
        ModelError: The driver cannot lock that much memory.
    """

    def __init__(self, size_bytes: int, device: torch.device) -> None:
        whole = torch.empty(size_bytes + PAGE_BYTES, dtype=torch.uint8)
        start = -whole.data_ptr() % PAGE_BYTES
        self.bytes = whole[start : start + size_bytes]
        if device.type == "cuda":
            self._lock()

    def _lock(self) -> None:
        """Lock the pages until this object is freed."""
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # of torch
        address, size_bytes = self.bytes.data_ptr(), self.bytes.numel()
        error = int(runtime.cudaHostRegister(address, size_bytes, 0))
        if error:
            raise ModelError(
                f"train.memory: streamed keeps weights in page-locked host memory, but the driver "
                f"refused to lock {size_bytes / 2**20:,.0f} MiB more (CUDA error {error}). Free "
                f"host memory, raise the limit of the container, or set train.memory: lean."
            )
        weakref.finalize(self, runtime.cudaHostUnregister, address).atexit = False
