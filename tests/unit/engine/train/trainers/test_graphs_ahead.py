from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec

from fttui.engine.config.schema import RunConfig
from fttui.engine.train.trainers.graphs_ahead import MOST_S, make_graphs_ahead

CONFIG = msgspec.convert(
    {
        "model": {"id": "m"},
        "data": {"train": "t.jsonl", "max_length": 1024},
        "train": {"steps": 10, "batch": 2, "accumulate": 4},
    },
    RunConfig,
)
RECORDS = [SimpleNamespace(row_length=length) for length in (30, 60, 300, 900)]


class Trainer:
    """A trainer whose graphs take 10 s each, and whose step loop is interrupted at some call."""

    def __init__(self, *, calls: int = 99, graphs: bool = True) -> None:
        self.now = 0.0
        self.made: list[int] = []
        self._calls, self._graphs = calls, graphs
        self.forward = self.step_loop = self

    def make_ahead(self, lengths: Sequence[int], may_go_on: Callable[[], bool]) -> tuple[int, int]:
        wanted = lengths if self._graphs else ()
        for length in wanted:
            if not may_go_on():
                break
            self.made.append(length)
            self.now += 10.0
        return len(self.made), len(wanted) - len(self.made)

    def may_continue(self) -> bool:
        self._calls -= 1
        return self._calls >= 0


def facts(trainer: Trainer, records: Sequence[Any] = RECORDS) -> dict[str, str]:
    return make_graphs_ahead(CONFIG, trainer, records, 10, clock=lambda: trainer.now)


def test_the_lengths_of_the_data_are_made_and_shown() -> None:
    trainer = Trainer()
    assert facts(trainer) == {"graphs": "3 more made before the first step in 30.0 s"}
    assert trainer.made == [1024, 512, 64]


def test_none_is_begun_after_the_time_is_over() -> None:
    trainer = Trainer()
    many = [SimpleNamespace(row_length=length) for length in (60, 100, 200, 300, 600, 1000)]
    assert facts(trainer, many)["graphs"].endswith(" s; 3 are made when they are needed")
    assert len(trainer.made) == MOST_S // 10


def test_a_command_ends_it() -> None:
    trainer = Trainer(calls=1)
    facts(trainer)
    assert trainer.made == [1024]


def test_no_command_is_taken_before_a_checkpoint_is_restored() -> None:
    trainer = Trainer(calls=0)
    make_graphs_ahead(CONFIG, trainer, RECORDS, 10, asks=False, clock=lambda: trainer.now)
    assert trainer.made == [1024, 512, 64]


def test_without_graphs_nothing_is_said() -> None:
    assert facts(Trainer(graphs=False)) == {}
