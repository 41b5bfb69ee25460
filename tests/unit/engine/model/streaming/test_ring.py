"""Every part is in its slot when it is entered, and the next one is on its way."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fttui.engine.model.streaming.copies import HostBuffer, copies_to
from fttui.engine.model.streaming.ring import Held, Ring

from .late import LateCopies

CPU = torch.device("cpu")


@dataclass
class Weights:
    """Two tensors of one part."""

    packed: Tensor
    scales: Tensor


def ring_of(count: int, slots: int) -> tuple[Ring, list[Weights], LateCopies]:
    parts = [
        Weights(torch.full((3 + n, 5), n, dtype=torch.uint8), torch.full((n + 1,), n / 8))
        for n in range(count)
    ]
    made: list[LateCopies] = []

    def late(device: torch.device, number: int) -> LateCopies:
        made.append(LateCopies(device, number))
        return made[0]

    held = [[Held(part, "packed"), Held(part, "scales")] for part in parts]
    return Ring(held, CPU, late, slots), parts, made[0]


@given(st.integers(1, 6), st.integers(2, 4), st.data())
def test_a_part_has_its_own_bytes_when_it_is_entered(
    count: int, slots: int, data: st.DataObject
) -> None:
    ring, parts, _ = ring_of(count, slots)
    for number in data.draw(st.lists(st.integers(0, count - 1), max_size=20)):
        ring.enter(number)
        assert torch.equal(
            parts[number].packed, torch.full((3 + number, 5), number, dtype=torch.uint8)
        )
        assert torch.equal(parts[number].scales, torch.full((number + 1,), number / 8))


@pytest.mark.parametrize("slots", [2, 3])
def test_a_pass_there_and_back_copies_ahead_and_spares_the_turns(slots: int) -> None:
    count = 6
    ring, _, copies = ring_of(count, slots)
    passes = [*range(count), *reversed(range(count))]
    for number in passes:
        ring.enter(number)
    first = len(copies.begun)
    assert first == count + (count - slots), "the last parts are still there on the way back"
    before = len(copies.begun)
    late = []
    for number in passes:
        before = len(copies.begun)
        ring.enter(number)
        ahead = copies.begun[before:]
        late += [number for slot in ahead if slot == number % slots]
    assert late == [], "whatever is entered was begun one part before"
    assert len(copies.begun) - first == 2 * (count - slots)


def test_entering_the_same_part_again_copies_nothing() -> None:
    ring, _, copies = ring_of(4, 2)
    ring.enter(2)
    begun = len(copies.begun)
    ring.enter(2)
    assert len(copies.begun) == begun


def test_tensors_of_a_part_are_aligned_views_of_one_slot() -> None:
    ring, parts, _ = ring_of(4, 2)
    for one, other in pairwise(parts[::2]):
        assert one.packed.data_ptr() == other.packed.data_ptr()
    assert parts[0].packed.data_ptr() != parts[1].packed.data_ptr()
    assert (parts[0].scales.data_ptr() - parts[0].packed.data_ptr()) % 512 == 0
    assert ring.slot_bytes == 2 * 1024
    assert ring.host_bytes == 4 * 1024


def test_host_memory_begins_at_a_page() -> None:
    buffer = HostBuffer(5000, CPU)
    assert buffer.bytes.data_ptr() % 4096 == 0
    assert buffer.bytes.numel() == 5000


@dataclass
class Ranks:
    """Ranks of one process, which find each other's shares; parts are told apart by their size."""

    rank: int
    ranks: int
    rings: list[Ring]

    def gather(self, whole: Tensor, own: Tensor) -> None:
        size = own.numel()
        shares = [ring._share_bytes(n, self.ranks) for ring in self.rings[:1] for n in range(3)]
        part = shares.index(size)
        assert torch.equal(own, self.rings[self.rank]._host[part].bytes[:size])
        for rank, ring in enumerate(self.rings):
            whole[rank * size : (rank + 1) * size].copy_(ring._host[part].bytes[:size])


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_that_share_the_parts_find_whole_ones_in_their_slots(ranks: int) -> None:
    sizes = [(9000, 500), (40099, 513), (1700, 90)]
    parts = [
        [
            Weights(torch.full((a,), n, dtype=torch.uint8), torch.full((b,), n / 8))
            for n, (a, b) in enumerate(sizes)
        ]
        for _ in range(ranks)
    ]
    rings = [
        Ring([[Held(w, "packed"), Held(w, "scales")] for w in own], CPU, copies_to, 2)
        for own in parts
    ]
    whole = rings[0].host_bytes
    for rank, ring in enumerate(rings):
        ring.share(Ranks(rank, ranks, rings))
        assert whole / ranks <= ring.host_bytes < whole / ranks + len(sizes) * ranks * 512
    for rank, ring in enumerate(rings):
        for number in (0, 1, 2, 1, 0):
            ring.enter(number)
            assert (parts[rank][number].packed == number).all()
            assert (parts[rank][number].scales == number / 8).all()
