"""What a new incarnation reads from the journal of the ones before."""

from __future__ import annotations

from fttui.engine.protocol.codec import encode
from fttui.engine.protocol.events import (
    AnyEvent,
    CommandFailed,
    Record,
    RunEnded,
    RunStarted,
    StepFinished,
)
from fttui.engine.protocol.states import RunState
from fttui.engine.train.distributed.elastic import LaunchAttempt
from fttui.engine.train.run_history import read_history
from tests.contract.examples import example

ENDED = RunEnded(state=RunState.STOPPED, exit_code=130)


def journal(*events: tuple[int, int, AnyEvent]) -> list[bytes]:
    """Records of (step, timeline, event)."""
    return [
        encode(Record(seq=seq, time=0.0, step=step, timeline=timeline, event=event))
        for seq, (step, timeline, event) in enumerate(events, start=1)
    ]


def test_an_empty_journal() -> None:
    history = read_history([])
    assert (history.incarnations, history.step, history.exit_code) == (0, 0, None)


def test_the_newest_timeline_counts() -> None:
    finished = StepFinished(loss=1.0)
    history = read_history(journal((9, 1, finished), (4, 2, finished), (5, 2, finished)))
    assert (history.timeline, history.step) == (2, 5)


def test_answers_are_remembered() -> None:
    failed = CommandFailed(id="a", command="eval", reason="", issuer="me")
    assert read_history(journal((1, 1, failed))).answered == {"a"}


def test_an_end_counts_until_the_next_start() -> None:
    assert read_history(journal((0, 1, example(RunStarted)), (1, 1, ENDED))).exit_code == 130
    again = journal((0, 1, example(RunStarted)), (1, 1, ENDED), (1, 1, example(RunStarted)))
    assert read_history(again).exit_code is None


def test_attempts_as_torchrun_tells_them() -> None:
    assert not LaunchAttempt.of({}).repeated
    assert not LaunchAttempt.of({}).may_repeat
    first = {"TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "1"}
    assert LaunchAttempt.of(first).may_repeat
    last = LaunchAttempt.of(first | {"TORCHELASTIC_RESTART_COUNT": "1"})
    assert last.repeated
    assert not last.may_repeat
