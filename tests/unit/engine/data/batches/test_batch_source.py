from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fttui.engine.data.batches.batch_source import BatchSource
from fttui.engine.data.tokens.examples import Example, TextExample
from fttui.engine.errors import DataError


class Counted:
    """Micro-batch n holds one example with n as its only token; there are five."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def take(self, position: int) -> list[Example]:
        self.taken.append(position)
        if position >= 5:
            raise DataError("no more")
        return [TextExample(id=str(position), input_ids=[position], labels=[position])]

    def epoch(self, position: int) -> float:
        return position / 5


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
        def take(self, position: int) -> list[Example]:
            if position >= 2:
                raise ConnectionError("the network is gone")
            return super().take(position)

    source = BatchSource(Unplugged(), collate)
    source.fetch(2)
    source.prepare(2)
    with pytest.raises(ConnectionError, match="gone"):
        source.fetch(2)


def test_data_that_end_are_heard_of_when_they_are_needed() -> None:
    source = BatchSource(Counted(), collate, position=4)
    source.prepare(2)
    assert tokens(source.fetch(1)) == [4]
