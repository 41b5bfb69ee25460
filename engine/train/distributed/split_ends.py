"""Frozen weights of a sharded model that FSDP does not manage: a part on each rank.

Embedding and output head are whole while they are in use. FSDP would keep both whole from the
forward to the backward pass, although only the forward pass needs them: the loss computes the
gradient of the hidden states at once. Weights that stream are shared in host memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...model.hidden import base_model_of

# Torch 2.13 warns of the name that older versions know.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class SplitEnds:
    """The embedding and the output head, if they are plain frozen modules."""

    def __init__(self, model: nn.Module, device: torch.device, group: Any) -> None:
        """Split them in place; all ranks of the group call this together.

        Args:
            model: the model that is trained, on any device.
            device: the device of this rank.
            group: process group of the ranks that share a copy of the model.
        """
        base: Any = base_model_of(model)
        embedding, head = base.get_input_embeddings(), base.get_output_embeddings()
        modules = [one for one in (embedding, head) if _is_plain(one)]
        weights = {id(one.weight): one.weight for one in modules}
        self.parameters = set(weights.values())
        """The parameters, which FSDP does not manage."""
        self._split = {key: SplitWeight(one, device, group) for key, one in weights.items()}
        self._kept = False
        for module in modules:
            self._connect(module, self._split[id(module.weight)], stays=module is head)

    @property
    def parts(self) -> list[Tensor]:
        """This rank's parts."""
        return [one.part for one in self._split.values()]

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Let the head stay whole from its first use in this context to the end of the context.

        So it is gathered once, by every rank, however many chunks of logits a rank computes.
        """
        self._kept = True
        try:
            yield
        finally:
            self._kept = False
            for one in self._split.values():
                one.free()

    def _connect(self, module: nn.Module, weight: SplitWeight, *, stays: bool) -> None:
        def before(*_: Any) -> None:
            weight.gather()

        def after(*_: Any) -> None:
            if not (stays and self._kept):
                weight.free()

        module.register_forward_pre_hook(before)
        module.register_forward_hook(after, always_call=True)


class HostShares:
    """The ranks of a copy of the model, each of which has a share of the weights that stream."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self.rank = dist.get_rank(group)
        self.ranks = dist.get_world_size(group)

    def gather(self, whole: Tensor, own: Tensor) -> None:
        """Fill `whole` with the shares of all ranks, in order; a collective."""
        _all_gather(whole, own, group=self._group)


class SplitWeight:
    """A frozen weight whose rows are split over ranks; its memory is empty unless it is whole."""

    def __init__(self, parameter: nn.Parameter, device: torch.device, group: Any) -> None:
        source, self._group = parameter.detach(), group
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        rows = math.ceil(len(source) / ranks)
        own = source[rank * rows : (rank + 1) * rows]
        self.part = torch.zeros((rows, *source.shape[1:]), dtype=source.dtype, device=device)
        """The rows of this rank, filled up with zeros so that all ranks have as many."""
        self.part[: len(own)].copy_(own)
        self._whole = self.part.new_empty((rows * ranks, *source.shape[1:]))
        self._bytes = self._whole.untyped_storage().nbytes()
        parameter.data = self._whole[: len(source)]
        self.free()

    def gather(self) -> None:
        """Make the weight whole, if it is not; a collective."""
        storage = self._whole.untyped_storage()
        if storage.nbytes() == 0:
            storage.resize_(self._bytes)
            with torch.no_grad():
                _all_gather(self._whole, self.part, group=self._group)

    def free(self) -> None:
        """Free the memory of the whole weight."""
        self._whole.untyped_storage().resize_(0)


def _is_plain(module: Any) -> bool:
    """Return whether this is an embedding or a linear layer with nothing but a frozen weight."""
    if not isinstance(module, nn.Embedding | nn.Linear) or not module.weight.is_floating_point():
        return False
    parameters = list(module.parameters())
    return len(parameters) == 1 and not parameters[0].requires_grad
