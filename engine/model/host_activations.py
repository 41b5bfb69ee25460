"""Activation checkpointing that keeps the layer inputs in host memory.

A checkpointed layer keeps its input. This input is copied to the host while the layer computes, and
back to the device while the layer above is in its backward pass. Both copies run on a separate
stream, so they cost time only if a copy takes longer than a layer.
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
    """A checkpointing function for transformers that keeps layer inputs on the host."""

    def __init__(self) -> None:
        self._lanes: dict[torch.device, _Lane] = {}
        """Copies for each device of inputs: a pass before training may run on another one."""
        self._newest: weakref.ref[_Parked] | None = None

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a layer, keep only its input, and return its output.

        Floating point tensors of the input are kept on the host, others on the device.
        """
        with torch.autograd.graph.saved_tensors_hooks(self._park, self._fetch):
            return checkpoint(function, *args, use_reentrant=False, **kwargs)

    def begin(self) -> None:
        """Begin a forward pass; its backward pass does not prefetch inputs of the previous one."""
        self._newest = None

    def _park(self, tensor: Tensor) -> Tensor | _Parked:
        if not tensor.is_floating_point():
            return tensor
        lane = self._lanes.get(tensor.device)
        if lane is None:
            lane = self._lanes[tensor.device] = _Lane(tensor.device)
        parked = _Parked(lane, tensor.detach(), self._newest)
        self._newest = weakref.ref(parked)
        return parked

    def _fetch(self, saved: Tensor | _Parked) -> Tensor:
        if not isinstance(saved, _Parked):
            return saved
        tensor = saved.take()
        # The backward pass visits the layers in reverse: the layer below is next.
        before = saved.before() if saved.before is not None else None
        if before is not None:
            before.prefetch()
        return tensor


class _Parked:
    """One layer's input on the host."""

    def __init__(self, lane: _Lane, tensor: Tensor, before: weakref.ref[_Parked] | None) -> None:
        self.before = before
        """The input that was parked before this one, while it is alive."""
        self._lane = lane
        self._host = lane.to_host(tensor)
        self._arriving: Tensor | None = None

    def prefetch(self) -> None:
        """Start to copy the input back to the device."""
        if self._arriving is None:
            self._arriving = self._lane.to_device(self._host)

    def take(self) -> Tensor:
        """Return the input on the device, for computation after the copy has arrived."""
        self.prefetch()
        tensor, self._arriving = self._arriving, None
        assert tensor is not None, "prefetch() has just set it"
        self._lane.arrived()
        return tensor


class _Lane:
    """Copies between device and host on a separate stream; plain copies on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cuda = device.type == "cuda"
        self._stream: Any = torch.cuda.Stream(device) if self._cuda else None  # type: ignore[no-untyped-call]  # of torch
        self._leaving: Tensor | None = None

    def to_host(self, tensor: Tensor) -> Tensor:
        """Start to copy a tensor to the host and return the copy.

        The memory of the tensor on the device is held until the next copy begins.
        """
        host = torch.empty_like(tensor, device="cpu", pin_memory=self._cuda)
        self.arrived()
        with self._beside():
            host.copy_(tensor, non_blocking=True)
        self._leaving = tensor if self._cuda else None
        return host

    def to_device(self, host: Tensor) -> Tensor:
        """Start to copy a tensor to the device and return the copy, in memory of its own."""
        tensor = torch.empty_like(host, device=self._device)
        with self._beside():
            tensor.copy_(host, non_blocking=True)
        return tensor

    def arrived(self) -> None:
        """Make the computation wait for all started copies, and release the copied memory."""
        if self._cuda:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
        self._leaving = None

    def _beside(self) -> Any:
        if not self._cuda:
            return nullcontext()
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        return torch.cuda.stream(self._stream)
