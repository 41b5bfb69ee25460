"""The command queue: what one look brings, on one rank and on several."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from fttui.engine.protocol.commands import parse_command
from fttui.engine.run.control_log import ControlEntry, ControlWriter
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.control.command_queue import CommandQueue
from fttui.engine.train.distributed.agreement import PendingResult, SingleRank
from fttui.engine.train.signals import StopSignals


class FirstOfTwo(SingleRank):
    """Rank 0 of two; the other rank knows of nothing. It notes the collectives."""

    world_size = 2
    alone = False

    def __init__(self) -> None:
        self.collectives: list[str] = []

    def start_max(self, values: list[int]) -> PendingResult[list[int]]:
        self.collectives.append("start")
        return PendingResult(lambda: values)

    def max(self, values: list[int]) -> list[int]:
        self.collectives.append("max")
        return values


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


@pytest.fixture
def writer(run: RunDirectory) -> Iterator[ControlWriter]:
    writer = ControlWriter(run)
    yield writer
    writer.close()


def entry(seq: int, text: str = "pause", *, rejected: str | None = None) -> ControlEntry:
    return ControlEntry(
        seq=seq, time=0.0, id=f"c{seq}", command=parse_command(text), issuer="me", rejected=rejected
    )


def test_a_look_brings_every_accepted_command_once_and_no_stop_without_a_signal(
    run: RunDirectory, writer: ControlWriter
) -> None:
    queue = CommandQueue(run, SingleRank(), StopSignals(launched=False))
    for given in (entry(1), entry(2, rejected="not now"), entry(3, "eval")):
        writer.append(given)
    first, second = queue.look(), queue.look()
    assert [one.id for one in first.entries] == ["c1", "c3"]
    assert (first.stop_signal, first.save) == (False, False)
    assert (second.entries, second.stop_signal, second.save) == ([], False, False)


@pytest.mark.parametrize("with_command", [False, True])
def test_a_signal_is_seen_with_and_without_new_commands(
    run: RunDirectory, writer: ControlWriter, with_command: bool
) -> None:
    signals = StopSignals(launched=False)
    queue = CommandQueue(run, SingleRank(), signals)
    assert not queue.look().stop_signal
    signals.receive(signal.SIGTERM, None)
    if with_command:
        writer.append(entry(1))
    found = queue.look()
    assert found.stop_signal
    assert len(found.entries) == with_command


def test_a_removed_checkpoint_asks_once_for_a_save(run: RunDirectory) -> None:
    lost = [0]
    queue = CommandQueue(run, SingleRank(), StopSignals(launched=False), lambda: lost[0])
    assert not queue.look().save
    lost[0] = 1
    assert [queue.look().save for _ in range(2)] == [True, False]


def test_several_ranks_agree_once_per_look_on_what_was_asked_for(
    run: RunDirectory, writer: ControlWriter
) -> None:
    ranks = FirstOfTwo()
    queue = CommandQueue(run, ranks, StopSignals(launched=False))
    writer.append(entry(1))
    queue.ask()
    queue.ask()
    writer.append(entry(2))
    assert [one.id for one in queue.look().entries] == ["c1"], "the second came after the question"
    assert ranks.collectives == ["start"]
    assert [one.id for one in queue.look().entries] == ["c2"]
    assert ranks.collectives == ["start", "max"]


def test_a_single_rank_starts_no_collective(run: RunDirectory, writer: ControlWriter) -> None:
    queue = CommandQueue(run, SingleRank(), StopSignals(launched=False))
    queue.ask()
    writer.append(entry(1))
    assert [one.id for one in queue.look().entries] == ["c1"], "nothing was asked before"


def test_commands_of_earlier_incarnations_come_back_unless_they_were_answered(
    run: RunDirectory, writer: ControlWriter
) -> None:
    for seq in (1, 2, 3):
        writer.append(entry(seq))
    queue = CommandQueue(run, SingleRank(), StopSignals(launched=False))
    assert [one.id for one in queue.left_over(2, {"c1"})] == ["c2"]
    assert [one.id for one in queue.look().entries] == ["c3"]
