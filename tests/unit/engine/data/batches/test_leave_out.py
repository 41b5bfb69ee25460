"""Samples are left out by id, and every other sample keeps its place."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fttui.engine.data.batches.batch_source import InMemoryBatches
from fttui.engine.data.batches.leave_out import LeaveOut, kept_in, sample_ids
from fttui.engine.data.batches.sampler import BatchStream, Mix
from fttui.engine.data.tokens.examples import (
    Example,
    PackedExample,
    RatedExample,
    TextExample,
)
from fttui.engine.data.tokens.preference import Rating, with_mismatched


def text(name: str, length: int = 2) -> TextExample:
    return TextExample(name, list(range(length)), [-100, *range(1, length)])


@st.composite
def orders(draw: st.DrawFn) -> tuple[int, int, int, int, Mix | None, frozenset[int]]:
    """Number of records, batch, ranks, seed, mix, and records to leave out of each source."""
    counts = draw(st.lists(st.integers(2, 12), min_size=1, max_size=3))
    total = sum(counts)
    batch, ranks = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    if batch * ranks > total:
        batch = ranks = 1
    weights = [draw(st.integers(1, 3)) for _ in counts] if len(counts) > 1 else None
    mix = Mix.of(counts, weights) if weights else None
    out: set[int] = set()
    start = 0
    for count in counts:
        some = st.lists(st.integers(start, start + count - 1), unique=True, max_size=count - 1)
        out |= set(draw(some))
        start += count
    return total, batch, ranks, draw(st.integers(0, 9)), mix, frozenset(out)


@given(orders(), st.integers(0, 40))
def test_the_order_depends_on_seed_position_and_quarantine_alone(
    made: tuple[int, int, int, int, Mix | None, frozenset[int]], position: int
) -> None:
    total, batch, ranks, seed, mix, out = made
    for rank in range(ranks):
        stream = BatchStream(total, batch, 1, rank, ranks, seed, mix)
        plain = stream.indices(position)
        kept = stream.indices(position, out)
        again = BatchStream(total, batch, 1, rank, ranks, seed, mix)
        assert again.indices(position, out) == kept
        assert out.isdisjoint(kept)
        assert [k for k, p in zip(kept, plain, strict=True) if p not in out] == [
            p for p in plain if p not in out
        ]
        for before, now in zip(plain, kept, strict=True):
            source = next(one for one in stream.sources if before in one)
            assert now in source


@given(orders(), st.integers(0, 40))
def test_a_place_is_filled_with_an_unused_sample_if_there_is_one(
    made: tuple[int, int, int, int, Mix | None, frozenset[int]], position: int
) -> None:
    total, batch, ranks, seed, _, out = made
    stream = BatchStream(total, batch, 1, 0, ranks, seed)
    if total - len(out) >= batch:
        kept = stream.indices(position, out)
        assert len(set(kept)) == len(kept)


def batches(examples: Sequence[Example], batch: int = 2) -> InMemoryBatches:
    return InMemoryBatches(examples, BatchStream(len(examples), batch))


def test_a_document_is_taken_out_of_its_row_and_an_empty_row_is_replaced() -> None:
    rows = [
        PackedExample((text("a"), text("b", 3))),
        PackedExample((text("c"),)),
        PackedExample((text("d"), text("e"))),
    ]
    found = batches(rows, 3).take(0, frozenset({"a", "c"}))
    assert sorted(sample_ids(one) for one in found) in (
        [["b"], ["b"], ["d", "e"]],
        [["b"], ["d", "e"], ["d", "e"]],
    )
    assert sorted(sample_ids(one) for one in batches(rows, 3).take(0)) == [
        ["a", "b"],
        ["c"],
        ["d", "e"],
    ]


def test_a_completion_in_quarantine_is_no_mismatched_one_of_another_prompt() -> None:
    rated = list(with_mismatched([Rating(text(name, 3), True) for name in "abcd"], 8))
    assert [one.mismatched.id for one in rated] == ["b", "c", "d", "a"]
    for position in range(2):
        for one in batches(rated).take(position, frozenset({"b"})):
            assert isinstance(one, RatedExample)
            assert "b" not in (one.id, one.mismatched.id)


def test_records_with_the_same_id_are_left_out_together() -> None:
    found = batches([text("a"), text("b"), text("a"), text("c")]).take(0, frozenset({"a"}))
    assert {one.id for one in found} == {"b", "c"}


def test_what_cannot_be_left_out_says_why() -> None:
    out = LeaveOut([text("a"), text("b"), text("c")], [range(1), range(1, 3)])
    assert out.why_not(["b"]) == ""
    assert "no training sample has the id 'x' and 1 more" in out.why_not(["x", "b", "y"])
    assert "all training samples of a source" in out.why_not(["b", "c"])
    assert out.unknown(["x", "b"]) == ["x"]


@pytest.mark.parametrize("ids", [(), ("a",), ("a", "b")])
def test_kept_in_leaves_examples_out_whole(ids: tuple[str, ...]) -> None:
    row = PackedExample((text("a"), text("b")))
    kept = kept_in([row, text("b"), text("c")], ids)
    assert (row in kept) == (ids != ("a", "b"))
    assert (text("b") in kept) == ("b" not in ids)
