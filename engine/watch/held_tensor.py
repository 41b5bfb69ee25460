"""A tensor of a batch in host memory, copied without making the device wait for the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

_streams: dict[torch.device, Any] = {}
"""A stream of every device for copies to the host, so that they wait for nothing else."""


@dataclass
class HeldTensor:
    """A copy of a tensor, and the device that it came from.

    A copy from a GPU to the host would wait for all work that was queued before it. So the copy is
    first made on the GPU, in its turn, and moved to the host later, when it has long been made.
    """

    tensor: Tensor
    device: torch.device
    made: Any = None
    """The event after the copy on the device; None once the copy is on the host."""

    @classmethod
    def of(cls, value: Any) -> Self | Any:
        """Return a copy of a tensor; anything else as it is."""
        if not isinstance(value, Tensor):
            return value
        device = value.device
        if device.type != "cuda":
            return cls(value.detach().to("cpu", copy=True), device)
        return cls.made_by_device(value.detach().clone())

    @classmethod
    def made_by_device(cls, tensor: Tensor) -> Self:
        """Return a held tensor around one that nobody else uses, without copying it."""
        device = tensor.device
        made = torch.cuda.current_stream(device).record_event() if tensor.is_cuda else None
        return cls(tensor, device, made)

    def settle(self) -> None:
        """Move the copy to the host, on a stream of its own; waits for the copy alone."""
        if self.made is None:
            return
        if self.device not in _streams:
            _streams[self.device] = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]  # of torch
        stream = _streams[self.device]
        stream.wait_event(self.made)
        with torch.cuda.stream(stream):
            self.tensor, self.made = self.tensor.to("cpu"), None

    @staticmethod
    def back(value: Any) -> Any:
        """Return a copy of a held tensor on its own device; anything else as it is."""
        if not isinstance(value, HeldTensor):
            return value
        return value.tensor.to(value.device, copy=True)
