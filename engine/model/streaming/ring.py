"""A ring of slots on the device, through which the weights of many parts pass one after another.

Each part, such as a decoder layer, always uses the same slot, so that its tensors are views of the
slot forever and only the bytes change. A part is copied to its slot before it computes, and while
it computes, the part that comes next in the direction of the pass is copied to another slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from .copies import Copies, HostBuffer

ALIGNED_BYTES = 512
"""Multiple of the offsets of tensors in a part, as of CUDA allocations."""


@dataclass(frozen=True)
class Held:
    """A tensor of a part: the attribute of an object, which becomes a view of a slot."""

    owner: Any
    name: str

    @property
    def tensor(self) -> Tensor:
        """The tensor as it is now."""
        found: Tensor = getattr(self.owner, self.name)
        return found

    def become(self, tensor: Tensor) -> None:
        """Put another tensor in its place."""
        setattr(self.owner, self.name, tensor)


class Sharing(Protocol):
    """Ranks that share the bytes of all parts: each has a share of them in host memory."""

    @property
    def rank(self) -> int:
        """The number of this rank."""

    @property
    def ranks(self) -> int:
        """The number of ranks."""

    def gather(self, whole: Tensor, own: Tensor) -> None:
        """Fill `whole` with the shares of all ranks, in order; `own` is the view of this one's."""


class Ring:
    """Parts in host memory and the slots on the device that they are copied to.

    Args:
        parts: The tensors of each part, in the order of a forward pass. Their bytes are moved to
            host memory, and they become views of a slot.
        device: Device of the slots.
        copies: Makes the copies for a number of slots.
        slots: Number of slots, at least 2; a ring never has more slots than parts.

    Raises:
        ModelError: Host memory cannot be page-locked.
    """

    def __init__(
        self,
        parts: Sequence[Sequence[Held]],
        device: torch.device,
        copies: Callable[[torch.device, int], Copies],
        slots: int,
    ) -> None:
        count = min(slots, len(parts))
        largest = max(_size(part) for part in parts)
        self._slots = [torch.empty(largest, dtype=torch.uint8, device=device) for _ in range(count)]
        self._copies = copies(device, count)
        self._sharing: Sharing | None = None
        self._sizes = [_size(part) for part in parts]
        self._host = [self._moved(part, number, device) for number, part in enumerate(parts)]
        self._holds: list[int | None] = [None] * count
        """The part whose bytes each slot has, or gets by a copy that has begun."""
        self._current: int | None = None
        self._step = 1

    @property
    def host_bytes(self) -> int:
        """Bytes of all parts in host memory."""
        return sum(buffer.bytes.numel() for buffer in self._host)

    @property
    def slot_bytes(self) -> int:
        """Bytes of all slots on the device."""
        return sum(slot.numel() for slot in self._slots)

    def share(self, sharing: Sharing) -> None:
        """Keep only this rank's share of each part; all ranks enter parts in the same order then.

        Raises:
            ModelError: Host memory cannot be page-locked.
        """
        device = self._slots[0].device
        for number, whole in enumerate(self._host):
            share = self._share_bytes(number, sharing.ranks)
            kept = (
                whole.bytes[sharing.rank * share : (sharing.rank + 1) * share],
                whole.bytes[sharing.ranks * share :],
            )
            self._host[number] = HostBuffer(sum(one.numel() for one in kept), device)
            torch.cat(kept, out=self._host[number].bytes)
        self._sharing = sharing
        self._holds = [None] * len(self._slots)
        self._current = None

    def _share_bytes(self, number: int, ranks: int) -> int:
        """Return the bytes of a share; the up to `ranks` × 512 that remain are on every rank."""
        return self._sizes[number] // ranks // ALIGNED_BYTES * ALIGNED_BYTES

    def enter(self, number: int) -> None:
        """Let all later computations find the weights of a part in its slot.

        Calls for the part that was entered last do nothing. Computations that were begun before,
        with other parts, are not disturbed.
        """
        if number == self._current:
            return
        self._fetch(number)
        self._copies.wait(self._slot_of(number))
        self._step = self._direction(number)
        self._current = number
        ahead = number + self._step
        if 0 <= ahead < len(self._host) and self._slot_of(ahead) != self._slot_of(number):
            self._fetch(ahead)

    def _direction(self, number: int) -> int:
        """Return 1 if the part after this one is likely to be next, -1 if the one before it is."""
        if number in (0, len(self._host) - 1):
            return 1 if number == 0 else -1
        return self._step if self._current is None else (1 if number > self._current else -1)

    def _slot_of(self, number: int) -> int:
        return number % len(self._slots)

    def _fetch(self, number: int) -> None:
        slot = self._slot_of(number)
        if self._holds[slot] == number:
            return
        self._holds[slot] = number
        into = self._slots[slot][: self._sizes[number]]
        with torch.no_grad():
            self._copies.begin(slot, into, partial(self._fill, number))

    def _fill(self, number: int, whole: Tensor) -> None:
        """Copy the bytes of a part into its slot, or this rank's share, and gather the others."""
        source = self._host[number].bytes
        if self._sharing is None:
            whole.copy_(source, non_blocking=True)
            return
        rank, ranks = self._sharing.rank, self._sharing.ranks
        share = self._share_bytes(number, ranks)
        own = whole[rank * share : (rank + 1) * share]
        own.copy_(source[:share], non_blocking=True)
        whole[ranks * share :].copy_(source[share:], non_blocking=True)
        self._sharing.gather(whole[: ranks * share], own)

    def _moved(self, part: Sequence[Held], number: int, device: torch.device) -> HostBuffer:
        """Move the tensors of a part to host memory, and make them views of its slot."""
        buffer = HostBuffer(_size(part), device)
        slot = self._slots[self._slot_of(number)]
        for held, offset in _placed(part):
            tensor = held.tensor.detach()
            _view(buffer.bytes, offset, tensor).copy_(tensor)
            held.become(_view(slot, offset, tensor))
        return buffer


def _placed(part: Sequence[Held]) -> Iterator[tuple[Held, int]]:
    """Yield each tensor of a part with its offset in bytes."""
    offset = 0
    for held in part:
        yield held, offset
        offset += _aligned(held.tensor.nbytes)


def _size(part: Sequence[Held]) -> int:
    return sum(_aligned(held.tensor.nbytes) for held in part)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNED_BYTES) * ALIGNED_BYTES


def _view(memory: Tensor, offset: int, like: Tensor) -> Tensor:
    """Return the bytes from an offset on as a tensor of the shape and dtype of another one."""
    return memory[offset : offset + like.nbytes].view(like.dtype).view(like.shape)
