"""Static gradients: gradient buffers at fixed addresses, to which every graph replay adds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn


class StaticGradients:
    """One flat buffer per dtype; each trained parameter's `.grad` is a view into one.

    Other code may treat gradients as usual. In particular, `zero_grad` may set them to None: a
    gradient that is None at the next micro-batch counts as zero.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._flats: list[Tensor] = []
        self._views: list[Tensor] = []

    def allocate(self) -> None:
        """Allocate the buffers, unless they are already allocated."""
        if not self._views:
            self._allocate()

    def attach(self) -> None:
        """Make every `.grad` its view of a buffer, with the same value; None becomes zero."""
        self.allocate()
        pairs = zip(self.parameters, self._views, strict=True)
        strangers = [(p, view) for p, view in pairs if p.grad is not view]
        if len(strangers) == len(self._views) and all(p.grad is None for p, _ in strangers):
            for flat in self._flats:
                flat.zero_()
        else:
            for parameter, view in strangers:
                view.zero_() if parameter.grad is None else view.copy_(parameter.grad)
        for parameter, view in strangers:
            parameter.grad = view

    def add(self, gradients: Sequence[Tensor | None]) -> None:
        """Add the gradients of a micro-batch to the buffers.

        Args:
            gradients: one for each of `parameters`; None if the loss does not use the parameter.
        """
        found = [(v, g) for v, g in zip(self._views, gradients, strict=True) if g is not None]
        if found:
            views, values = zip(*found, strict=True)
            torch._foreach_add_(list(views), list(values))

    def share_weights(self) -> None:
        """Copy the trained parameters of rank 0 to every rank, as DDP does at its start."""
        if dist.is_initialized() and dist.get_world_size() > 1:
            for parameter in self.parameters:
                dist.broadcast(parameter.data, src=0)

    def average_over_ranks(self) -> None:
        """Average over all ranks in place, by one collective per dtype instead of DDP's buckets.

        On a GPU the call only queues the collective, between the backward pass and later work.
        """
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return
        self.attach()
        averages = dist.get_backend() == "nccl"
        for flat in self._flats:
            dist.all_reduce(flat, op=dist.ReduceOp.AVG if averages else dist.ReduceOp.SUM)
            if not averages:
                flat /= dist.get_world_size()

    def release(self) -> None:
        """Free the buffers and drop all gradients; the next `attach` allocates them again."""
        for parameter in self.parameters:
            parameter.grad = None
        self._flats, self._views = [], []

    def _allocate(self) -> None:
        views: dict[int, Tensor] = {}
        for dtype in dict.fromkeys(parameter.dtype for parameter in self.parameters):
            own = [p for p in self.parameters if p.dtype == dtype]
            flat = torch.zeros(sum(p.numel() for p in own), dtype=dtype, device=own[0].device)
            parts = torch.split(flat, [p.numel() for p in own])
            views |= {id(p): part.view_as(p) for p, part in zip(own, parts, strict=True)}
            self._flats.append(flat)
        self._views = [views[id(parameter)] for parameter in self.parameters]
