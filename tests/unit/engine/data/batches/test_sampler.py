from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fttui.engine.data.batches.mixing import epoch_order, shares_of
from fttui.engine.data.batches.sampler import BatchStream, Mix, WholeSteps
from fttui.engine.errors import DataError


def test_order_is_pinned_across_versions_and_platforms():
    assert epoch_order(8, 0, 0).tolist() == [3, 2, 1, 6, 0, 7, 4, 5]
    assert epoch_order(8, 5, 3).tolist() == [4, 1, 5, 3, 2, 0, 6, 7]


@given(
    count=st.integers(1, 60),
    batch=st.integers(1, 4),
    world_size=st.integers(1, 3),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 3),
)
def test_ranks_share_an_epoch_without_overlap(count, batch, world_size, seed, epoch):
    if count < batch * world_size:
        with pytest.raises(DataError, match=f"{count} training records"):
            BatchStream(count, batch, world_size=world_size)
        return
    seen: list[int] = []
    for rank in range(world_size):
        stream = BatchStream(count, batch, 1, rank, world_size, seed)
        first = epoch * stream.micro_batches_per_epoch
        for position in range(first, first + stream.micro_batches_per_epoch):
            indices = stream.indices(position)
            assert len(indices) == batch
            seen += indices
    assert len(seen) == len(set(seen)) == count - count % (batch * world_size)
    assert set(seen) <= set(range(count))


def test_any_position_is_the_same_however_it_is_reached():
    walked = BatchStream(23, 2, seed=7)
    in_order = [walked.indices(position) for position in range(40)]
    jumped = BatchStream(23, 2, seed=7)
    assert [jumped.indices(position) for position in reversed(range(40))] == in_order[::-1]


def test_epochs_and_seeds_differ():
    stream = BatchStream(50, 1, seed=1)
    epochs = [[stream.indices(50 * epoch + k) for k in range(50)] for epoch in range(2)]
    assert epochs[0] != epochs[1]
    assert epochs[0] != [BatchStream(50, 1, seed=2).indices(k) for k in range(50)]


def test_epoch_counts_passes():
    stream = BatchStream(10, 2, accumulate=2, world_size=2)
    assert stream.micro_batches_per_epoch == 2
    assert stream.steps_per_epoch == 1
    assert stream.epoch(3) == 1.5


@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    weights=st.lists(st.floats(0.1, 10), min_size=4, max_size=4),
    seed=st.integers(0, 99),
)
def test_a_mix_uses_a_source_up_before_repeating_it(counts, weights, seed):
    mix = Mix.of(counts, weights[: len(counts)])
    assert sum(mix.shares) == max(sum(counts), len(counts))
    drawn = np.concatenate([mix.order(seed, epoch) for epoch in range(3)])
    start = 0
    for count, share in zip(mix.counts, mix.shares, strict=True):
        times = np.bincount(drawn, minlength=sum(counts))[start : start + count]
        assert times.sum() == 3 * share
        assert times.max() - times.min() <= 1
        start += count


def test_a_mix_without_weights_is_every_record_once():
    mix = Mix.of([5, 3], None)
    stream = BatchStream(8, 2, mix=mix, seed=3)
    epoch = [index for position in range(4) for index in stream.indices(position)]
    assert sorted(epoch) == list(range(8))
    assert epoch != [index for position in range(4, 8) for index in stream.indices(position)]


def test_shares_come_close_to_the_weights():
    assert shares_of(10, [1, 1, 1]) == (4, 3, 3)
    assert shares_of(100, [0.7, 0.3]) == (70, 30)
    assert shares_of(5, [1000, 1]) == (4, 1)


@given(
    count=st.integers(12, 60),
    ranks=st.sampled_from([1, 2]),
    batch=st.sampled_from([1, 2, 3, 6]),
    step=st.integers(0, 30),
    sorts=st.booleans(),
)
def test_whole_steps_have_the_same_records_whatever_the_micro_batch(
    count, ranks, batch, step, sorts
):
    lengths = [(7 * index) % 31 for index in range(count)] if sorts else None

    def records(batch: int) -> list[int]:
        each = 6 // batch
        streams = [
            BatchStream(count, batch, each, rank, ranks, seed=3, steps=WholeSteps(lengths))
            for rank in range(ranks)
        ]
        return sorted(
            index
            for stream in streams
            for position in range(step * each, (step + 1) * each)
            for index in stream.indices(position)
        )

    found = records(batch)
    assert len(found) == 6 * ranks
    assert found == records(1)


def test_micro_batches_of_a_step_hold_similar_lengths_the_longest_first():
    lengths = np.random.default_rng(0).permutation(48)
    streams = [
        BatchStream(48, 2, 3, rank, 2, seed=5, steps=WholeSteps(lengths.tolist()))
        for rank in range(2)
    ]
    for step in range(8):
        taken = [[sorted(lengths[stream.indices(3 * step + part)]) for stream in streams]
                 for part in range(3)]  # fmt: skip
        in_order = [length for part in taken for rank in part for length in rank[::-1]]
        assert in_order == sorted(in_order, reverse=True)


def test_one_micro_batch_of_a_step_keeps_the_order_of_its_records():
    plain = BatchStream(48, 6, 1, seed=5)
    divided = BatchStream(48, 6, 1, seed=5, steps=WholeSteps(range(48)))
    assert [divided.indices(n) for n in range(8)] == [plain.indices(n) for n in range(8)]


def test_a_record_left_out_of_a_divided_step_is_replaced_where_it_stands():
    def stream() -> BatchStream:
        return BatchStream(48, 2, 3, seed=5, steps=WholeSteps(range(48)))

    for position in range(6):
        before = stream().indices(position)
        after = stream().indices(position, frozenset({before[0]}))
        assert after[1] == before[1]
        assert after[0] not in before
