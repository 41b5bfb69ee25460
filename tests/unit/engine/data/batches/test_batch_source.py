from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from typing import Any

import pytest

from fttui.engine.data.batches.batch_source import BatchSource
from fttui.engine.data.tokens.examples import Example, TextExample
from fttui.engine.errors import DataError


class Counted:
    """Micro-batch n holds one example with n as its only token; there are five."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def take(
        self, position: int, left_out: Set[str] = frozenset(), changes: object = ()
    ) -> list[Example]:
        self.taken.append(position)
        if position >= 5:
            raise DataError("no more")
        return [TextExample(id=str(position), input_ids=[position], labels=[position])]

    def epoch(self, position: int) -> float:
        return position / 5

    def why_not_kept_out(self, ids: Collection[str]) -> str:
        return ""

    def why_not_replaced(self, ids: Collection[str]) -> str:
        return ""

    def unknown(self, ids: Collection[str]) -> list[str]:
        return []


def collate(examples: Sequence[Any]) -> dict[str, Any]:
    return {"tokens": [example.input_ids[0] for example in examples], "ids": ["x"]}


def tokens(batches: list[dict[str, Any]]) -> list[int]:
    return [batch["tokens"][0] for batch in batches]


def test_what_was_prepared_is_what_would_have_been_fetched() -> None:
    counted = Counted()
    source = BatchSource(counted, collate)
    assert tokens(source.fetch(2)) == [0, 1]
    source.prepare(2)
    assert (source.position, [e.id for e in source.current]) == (2, ["0", "1"])
    assert tokens(source.fetch(2)) == [2, 3]
    assert counted.taken == [0, 1, 2, 3]
    assert (source.position, [e.id for e in source.previous]) == (4, ["0", "1"])


def test_going_elsewhere_forgets_what_was_prepared() -> None:
    source = BatchSource(Counted(), collate)
    source.fetch(2)
    source.prepare(2)
    source.position = 1
    assert tokens(source.fetch(2)) == [1, 2]
    source.prepare(2)
    assert tokens(source.fetch(1)) == [3]


def test_whatever_goes_wrong_beforehand_is_met_again_when_it_is_fetched() -> None:
    class Unplugged(Counted):
        def take(
            self, position: int, left_out: Set[str] = frozenset(), changes: object = ()
        ) -> list[Example]:
            if position >= 2:
                raise ConnectionError("the network is gone")
            return super().take(position, left_out)

    source = BatchSource(Unplugged(), collate)
    source.fetch(2)
    source.prepare(2)
    with pytest.raises(ConnectionError, match="gone"):
        source.fetch(2)


def test_data_that_end_are_heard_of_when_they_are_needed() -> None:
    source = BatchSource(Counted(), collate, position=4)
    source.prepare(2)
    assert tokens(source.fetch(1)) == [4]


def test_what_was_prepared_with_a_sample_is_made_again_without_it() -> None:
    class Replacing(Counted):
        def take(
            self, position: int, left_out: Set[str] = frozenset(), changes: object = ()
        ) -> list[Example]:
            found = super().take(position)
            other = TextExample(id="other", input_ids=[99], labels=[99])
            return [other if one.id in left_out else one for one in found]

    left_out: list[str] = []
    source = BatchSource(Replacing(), collate, left_out=lambda: left_out)
    source.prepare(2)
    left_out.append("1")
    assert tokens(source.fetch(2)) == [0, 99]
    source.prepare(1)
    assert tokens(source.fetch(1)) == [2]
