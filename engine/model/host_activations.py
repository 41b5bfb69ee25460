"""Activation checkpoints that wait for the backward pass in host memory.

A checkpointed layer keeps its input. Here that input leaves the device while the layer computes
and comes back while the layer above is still in its backward pass, both on a stream of their own,
so that the copies cost time only where the link is slower than a layer.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


class HostActivations:
    """A checkpointing function, as transformers calls it, that keeps layer inputs on the host."""

    def __init__(self, device: torch.device) -> None:
        self._lane = _Lane(device)
        self._newest: weakref.ref[_Parked] | None = None

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a layer; only its input is kept, and that on the host."""
        with torch.autograd.graph.saved_tensors_hooks(self._park, self._fetch):
            return checkpoint(function, *args, use_reentrant=False, **kwargs)

    def begin(self) -> None:
        """A forward pass begins; what the one before parked is not below its layers."""
        self._newest = None

    def _park(self, tensor: Tensor) -> Tensor | _Parked:
        if not tensor.is_floating_point():
            return tensor
        parked = _Parked(self._lane, tensor.detach(), self._newest)
        self._newest = weakref.ref(parked)
        return parked

    def _fetch(self, saved: Tensor | _Parked) -> Tensor:
        if not isinstance(saved, _Parked):
            return saved
        tensor = saved.take()
        # The backward pass goes through the layers the other way round: the one below is next.
        before = saved.before() if saved.before is not None else None
        if before is not None:
            before.prefetch()
        return tensor


class _Parked:
    """One layer's input on the host."""

    def __init__(self, lane: _Lane, tensor: Tensor, before: weakref.ref[_Parked] | None) -> None:
        self.before = before
        """What was parked before it, while that is alive."""
        self._lane = lane
        self._host = lane.to_host(tensor)
        self._arriving: Tensor | None = None

    def prefetch(self) -> None:
        """Start bringing it back."""
        if self._arriving is None:
            self._arriving = self._lane.to_device(self._host)

    def take(self) -> Tensor:
        """It, on the device again."""
        self.prefetch()
        tensor, self._arriving = self._arriving, None
        assert tensor is not None, "prefetch() has just set it"
        self._lane.arrived()
        return tensor


class _Lane:
    """The way between device and host; on a CPU a plain copy."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cuda = device.type == "cuda"
        self._stream: Any = torch.cuda.Stream(device) if self._cuda else None  # type: ignore[no-untyped-call]  # of torch
        self._leaving: Tensor | None = None

    def to_host(self, tensor: Tensor) -> Tensor:
        """Start to copy; the tensor's memory is held until the next one leaves."""
        host = torch.empty_like(tensor, device="cpu", pin_memory=self._cuda)
        self.arrived()
        with self._beside():
            host.copy_(tensor, non_blocking=True)
        self._leaving = tensor if self._cuda else None
        return host

    def to_device(self, host: Tensor) -> Tensor:
        """Start to copy into memory that nothing queued so far still uses."""
        tensor = torch.empty_like(host, device=self._device)
        with self._beside():
            tensor.copy_(host, non_blocking=True)
        return tensor

    def arrived(self) -> None:
        """Let the computation wait for all copies begun, and free what has left."""
        if self._cuda:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
        self._leaving = None

    def _beside(self) -> Any:
        if not self._cuda:
            return nullcontext()
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        return torch.cuda.stream(self._stream)
