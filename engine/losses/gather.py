"""Gather rows and counts of all ranks; gradients flow back to the rank of each row."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def gather_counts(counts: Sequence[int]) -> list[list[int]]:
    """Return the counts of every rank in rank order; a collective on the hosts (gloo).

    Every rank passes the same number of counts. No device takes part, so it does not wait for work
    that is queued there.
    """
    if world_size() == 1:
        return [list(counts)]
    own = torch.tensor(counts, dtype=torch.int64)
    every = [torch.zeros_like(own) for _ in range(world_size())]
    dist.all_gather(every, own, group=_hosts(dist.group.WORLD))
    return [[int(count) for count in row] for row in torch.stack(every).tolist()]


def sums_over_ranks(values: Sequence[float]) -> list[float]:
    """Return the sums of values over the ranks in fp64; a collective on the hosts (gloo)."""
    if world_size() == 1:
        return [float(one) for one in values]
    own = torch.tensor(values, dtype=torch.float64)
    every = [torch.zeros_like(own) for _ in range(world_size())]
    dist.all_gather(every, own, group=_hosts(dist.group.WORLD))
    return [float(one) for one in torch.stack(every).sum(dim=0)]


@functools.lru_cache(maxsize=1)
def _hosts(world: dist.ProcessGroup) -> dist.ProcessGroup:
    """Return a gloo group of all ranks: `world` itself, or one that all ranks create together."""
    if dist.get_backend(world) == "gloo":
        return world
    group: dist.ProcessGroup = dist.new_group(backend="gloo")
    return group


def gather_sizes(rows: int) -> list[int]:
    """Return the number of rows of each rank in rank order; a collective on the hosts."""
    return [count for (count,) in gather_counts([rows])]


def gather_rows(tensor: Tensor, sizes: Sequence[int] | None = None) -> tuple[Tensor, int]:
    """Concatenate the rows of all ranks in rank order; a collective, also in the backward pass.

    The backward pass sums the gradients of all ranks' losses with respect to these rows. So local
    anchors against gathered candidates, averaged by DDP, give the gradient of one process with the
    whole batch, without a factor of the world size.

    Args:
        tensor: [n, …] of any dtype; only floating-point tensors have a gradient.
        sizes: Rows per rank from `gather_sizes`; None if all ranks have the same number.

    Returns:
        The rows [sum of n, …] and the index of this rank's first row.
    """
    world = world_size()
    if world == 1:
        return tensor, 0
    rank = own_rank()
    if sizes is None or len(set(sizes)) == 1:
        return _all_gather(tensor), rank * tensor.shape[0]
    longest = max(sizes)
    padding = tensor.new_zeros((longest - tensor.shape[0], *tensor.shape[1:]))
    blocks = _all_gather(torch.cat((tensor, padding)))
    kept = [blocks[r * longest : r * longest + size] for r, size in enumerate(sizes)]
    return torch.cat(kept), sum(sizes[:rank])


def world_size() -> int:
    """Return the number of ranks; 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def own_rank() -> int:
    """Return the number of this rank, or 0 without a process group."""
    return dist.get_rank() if world_size() > 1 else 0


def _all_gather(tensor: Tensor) -> Tensor:
    gather: Callable[[Tensor], Tensor] = _Gather.apply
    return gather(tensor)


class _Gather(torch.autograd.Function):
    """Concatenates tensors of one shape of all ranks; their gradients are summed over the ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        blocks = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(blocks, tensor.contiguous())
        return torch.cat(blocks)

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> Tensor:
        total = outputs[0].contiguous().clone()
        dist.all_reduce(total)
        rows = total.shape[0] // dist.get_world_size()
        return total[dist.get_rank() * rows :][:rows]
