from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fttui.engine.watch.batch_tape import BatchTape
from fttui.engine.watch.held_tensor import together_on_host

SIZE, ACCUMULATE = 7, 2


def drawing(epoch: int) -> Iterator[dict[str, Any]]:
    """An epoch whose every batch takes a random number from two generators."""
    for number in range(SIZE):
        ids = torch.full((2, 3), epoch * 100 + number)
        yield {"input_ids": ids, "drawn": torch.rand(1), "also": random.random()}


def tape(**options: Any) -> BatchTape:
    return BatchTape(ACCUMULATE, log=lambda level, text: None, **options)


def read(made: BatchTape, count: int = ACCUMULATE) -> list[Any]:
    made.load(count)
    return [one["batch"] for one in made.fetch(count)]


def shown(batches: list[Any]) -> list[tuple[int, float, float]]:
    return [(int(b["input_ids"][0, 0]), float(b["drawn"]), b["also"]) for b in batches]


def test_batches_are_repeated_with_the_random_numbers_after_them() -> None:
    made = tape()
    made.open(0, drawing(0), SIZE)
    first = [(shown(read(made)), float(torch.rand(1)), random.random()) for _ in range(3)]
    made.return_to(0)
    again = [(shown(read(made)), float(torch.rand(1)), random.random()) for _ in range(3)]
    assert again == first
    assert shown(read(made))[0][0] == 6


@pytest.fixture
def numpy_of_another_kind() -> Iterator[None]:
    bits = np.random.mtrand.get_bit_generator()
    np.random.mtrand.set_bit_generator(np.random.PCG64(5))
    yield
    np.random.mtrand.set_bit_generator(bits)


def test_batches_are_repeated_with_a_generator_that_is_read_whole(
    numpy_of_another_kind: None,
) -> None:
    def masked() -> Iterator[dict[str, Any]]:
        for number in range(SIZE):
            yield {"input_ids": torch.full((2, 3), number), "mask": np.random.rand(2).tolist()}

    made = tape()
    made.open(0, masked(), SIZE)
    first = [([one["mask"] for one in read(made)], float(np.random.randn())) for _ in range(3)]
    made.return_to(0)
    again = [([one["mask"] for one in read(made)], float(np.random.randn())) for _ in range(3)]
    assert again == first
    assert len({drawn for _, drawn in first}) == 3


def test_an_epoch_ends_with_the_batches_that_are_left() -> None:
    made = tape()
    made.open(0, drawing(0), SIZE)
    assert [len(read(made)) for _ in range(5)] == [2, 2, 2, 1, 0]
    assert made.epoch == 1.0
    made.open(1, drawing(1), SIZE)
    assert shown(read(made))[0][0] == 100
    made.return_to(6)
    assert made.serving == 0
    assert [len(read(made)) for _ in range(2)] == [1, 0]
    made.serving = 1
    assert shown(read(made))[0][0] == 100


def test_a_changed_batch_does_not_change_its_repetition() -> None:
    made = tape()
    made.open(0, drawing(0), SIZE)
    (batch,) = read(made, 1)
    batch["input_ids"].zero_()
    batch["labels"] = 1
    made.return_to(0)
    (again,) = read(made, 1)
    assert "labels" not in again
    assert again["input_ids"].tolist() == [[0] * 3] * 2
    made.return_to(0)
    assert read(made, 1)[0]["input_ids"] is not again["input_ids"]


def test_whole_steps_are_skipped_up_to_the_end_of_the_epoch() -> None:
    made = tape()
    made.open(0, drawing(0), SIZE)
    read(made)
    made.skip(2 * ACCUMULATE)
    assert made.position == 6
    made.skip(3 * ACCUMULATE)
    assert (made.position, made.skipped) == (7, True)


def test_the_limit_frees_the_oldest_batches_but_never_those_of_the_step() -> None:
    made = tape(limit_bytes=1)
    made.open(0, drawing(0), SIZE)
    read(made)
    assert made.oldest == 0
    read(made)
    assert made.oldest == 2
    made.rewind_to(2)
    assert shown(read(made))[0][0] == 2


@given(st.lists(st.integers(0, 3), max_size=12))
def test_a_position_always_has_the_same_batch(moves: list[int]) -> None:
    made, found = tape(), dict[int, list[tuple[int, float, float]]]()
    made.open(0, drawing(0), SIZE)
    for steps_back in moves:
        at = made.position
        batches = shown(read(made))
        assert found.setdefault(at, batches) == batches
        made.return_to(max(0, made.position - steps_back * ACCUMULATE))


def test_tokens_and_rows_are_counted() -> None:
    made = tape()
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    pairs = {"anchor_input_ids": mask, "anchor_attention_mask": mask, "label": None}
    made.open(0, iter([{"input_ids": mask}, pairs, [{"prompt": "text"}]]), 3)
    made.load(3)
    counts = [(one["token_count"], one["document_count"]) for one in made.fetch(3)]
    assert counts == [(6, 2), (3, 2), (0, 1)]


def test_rows_of_a_step_are_named_for_reports() -> None:
    made = tape()
    made.open(0, drawing(0), SIZE)
    read(made)
    rows = made.seen.current
    assert len(rows) == 4
    assert rows[3].id == "epoch 0, batch 1, row 1"
    assert [row.length for row in rows[:2]] == [3, 3]


def test_tensors_that_are_moved_together_are_the_same_ones() -> None:
    drawn = [torch.rand(2, 3), torch.arange(4), torch.tensor(5), torch.rand(0), torch.rand(3, 1, 2)]
    drawn.append(torch.ones(2, 2, dtype=torch.bool))
    for before, after in zip(drawn, together_on_host(drawn), strict=True):
        assert before.dtype == after.dtype
        assert torch.equal(before, after)
