from __future__ import annotations

import msgspec
import pytest

from fttui.engine.hub import live_status
from fttui.engine.hub.live_status import LiveStatus
from fttui.engine.protocol.codec import encode
from fttui.engine.protocol.events import AnyEvent, LogEmitted, Record, RunEnded, RunStarted
from fttui.engine.protocol.events import StateChanged as Moved
from fttui.engine.protocol.states import RunState
from fttui.engine.run.run_status import EngineStatus


def started(incarnation: int = 1) -> RunStarted:
    return RunStarted(
        name="r",
        incarnation=incarnation,
        pid=1,
        host="h",
        world_size=1,
        task="sft",
        model="m",
        total_steps=9,
        micro_batch_size=1,
        accumulation=1,
    )


def add(status: LiveStatus, *events: AnyEvent) -> None:
    for event in events:
        status.add(encode(Record(seq=1, time=0.0, step=0, timeline=1, event=event)))


def engine(incarnation: int | None = 1, *, alive: bool = True) -> EngineStatus:
    if incarnation is None:
        return EngineStatus()
    return EngineStatus(pid=77, incarnation=incarnation, alive=alive)


FAILED = RunEnded(state=RunState.FAILED, exit_code=8)
RUNNING, HALTED = Moved(state=RunState.RUNNING), Moved(state=RunState.HALTED)


@pytest.mark.parametrize(
    ("events", "incarnation", "alive", "state"),
    [
        ([], None, False, RunState.STARTING),
        ([], 1, True, RunState.STARTING),
        ([], 1, False, RunState.LOST),
        ([started(), RUNNING], None, False, RunState.LOST),
        ([started(), RUNNING], 1, True, RunState.RUNNING),
        ([started(), RUNNING], 1, False, RunState.LOST),
        ([started(), HALTED], 1, False, RunState.LOST),
        ([started(), RUNNING, FAILED], 1, True, RunState.FAILED),
        ([started(), RUNNING, FAILED], 1, False, RunState.FAILED),
        ([started(), RUNNING, FAILED], 2, True, RunState.STARTING),
        ([started(), RUNNING, FAILED], 2, False, RunState.LOST),
        ([started(), RUNNING, FAILED, started(2)], 2, True, RunState.STARTING),
        ([started(), FAILED, started(2), RUNNING], 2, True, RunState.RUNNING),
    ],
)
def test_the_state_follows_journal_and_process(
    events: list[AnyEvent], incarnation: int | None, alive: bool, state: RunState
) -> None:
    status = LiveStatus()
    add(status, *events)
    status.update_engine(engine(incarnation, alive=alive))
    assert status.state is state
    assert status.engine.alive is alive


def test_a_log_line_that_names_an_event_is_no_event() -> None:
    status = LiveStatus()
    add(status, started(), RUNNING, LogEmitted(level="info", text="RunEnded StateChanged"))
    status.add(b"RunEnded garbage")
    status.update_engine(engine())
    assert status.state is RunState.RUNNING


def test_only_lifecycle_events_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []

    def decode(payload: bytes) -> None:
        decoded.append(payload)

    monkeypatch.setattr(live_status, "decode_readable", decode)
    status = LiveStatus()
    add(status, LogEmitted(level="info", text="x"), RUNNING)
    assert len(decoded) == 1
    assert b"StateChanged" in decoded[0]


def test_the_newest_start_says_what_the_trainer_cannot_do() -> None:
    status = LiveStatus()
    add(status, started())
    assert status.refused == {}
    add(status, msgspec.structs.replace(started(), refused={"sample": "no tokenizer"}))
    assert status.refused == {"sample": "no tokenizer"}
