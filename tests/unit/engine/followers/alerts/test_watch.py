from __future__ import annotations

from typing import Any

import pytest

from fttui.engine.followers.alerts.messages import message_about
from fttui.engine.followers.alerts.watch import RunWatch
from fttui.engine.protocol.events import (
    AnomalyRaised,
    AnomalyResolved,
    AnyEvent,
    AutopilotDecided,
    LogEmitted,
    ProbationEnded,
    Record,
    RunEnded,
    RunStarted,
    StateChanged,
    StepFinished,
)
from fttui.engine.protocol.states import RunState

GIB = 2**30


class Scene:
    def __init__(self, told: set[str] | None = None) -> None:
        self.watch = RunWatch(20.0, 5 * GIB, set() if told is None else told)
        self.seq = 0

    def tell(self, event: AnyEvent, at: float = 0.0, step: int = 7) -> str | None:
        self.seq += 1
        record = Record(seq=self.seq, time=0.0, step=step, timeline=1, event=event)
        message = self.watch.record(record, at)
        return None if message is None else f"{message.kind}: {message.text}"

    def look(self, at: float, free_gib: float | None = 100) -> list[str]:
        free = None if free_gib is None else int(free_gib * GIB)
        return [f"{one.kind}: {one.text}" for one in self.watch.look(at, free)]

    def train(self, seconds: float, start: float = 0.0, steps: int = 6) -> float:
        self.tell(StateChanged(state=RunState.RUNNING), start)
        for number in range(1, steps + 1):
            self.tell(StepFinished(loss=1.0, step_s=seconds), start + number * seconds, number)
        return start + steps * seconds


def alarm(ident: str, incident: str = "", severity: str = "alarm") -> AnomalyRaised:
    return AnomalyRaised(
        id=ident, kind="grad_explosion", severity=severity, headline="×20",
        actions=["recover a"], incident=incident or ident,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (alarm("a"), "alarm: step 7: grad explosion: ×20; recommended: recover a"),
        (AnomalyResolved(id="a", verdict="not recovered"), "alarm: step 7: a has not recovered"),
        (
            AutopilotDecided(anomaly="a", decision="act", command="recover a", reason="loss 9"),
            "recovery: step 7: the autopilot sends `recover a` (loss 9)",
        ),
        (
            ProbationEnded(anomaly="a", checkpoint="c", passed=False, reason="loss 9"),
            "recovery: step 7: the recovery to c failed: loss 9",
        ),
        (StateChanged(state=RunState.HALTED, detail="NaN"), "halted: step 7: halted: NaN"),
        (RunEnded(state=RunState.FINISHED, exit_code=0), "finished: step 7: finished"),
        (RunEnded(state=RunState.STOPPED, exit_code=0), "finished: step 7: stopped"),
        (
            RunEnded(state=RunState.FAILED, exit_code=11, error="no memory"),
            "failed: step 7: failed: no memory",
        ),
        (RunEnded(state=RunState.UNSAVED, exit_code=13), "failed: step 7: unsaved"),
        (alarm("a", severity="watch"), None),
        (AnomalyResolved(id="a", verdict="recovered"), None),
        (StateChanged(state=RunState.PAUSED), None),
        (LogEmitted(level="error", text="x"), None),
    ],
)
def test_what_is_worth_a_message(event: AnyEvent, said: str | None) -> None:
    assert Scene().tell(event) == said
    if said is None:
        assert message_about(Record(seq=1, time=0, step=7, timeline=1, event=event)) is None


def test_alarms_of_one_incident_are_one_message() -> None:
    told: set[str] = set()
    scene = Scene(told)
    assert scene.tell(alarm("a")) is not None
    assert scene.tell(alarm("b", incident="a")) is None
    assert scene.tell(alarm("c")) is not None
    assert Scene(told).tell(alarm("a")) is None, "nor is it told again by the next process"


def test_a_stall_is_told_once_until_the_run_moves_again() -> None:
    scene = Scene()
    last = scene.train(10.0)
    assert scene.look(last + 199) == []
    assert scene.look(last + 201) == ["stalled: no step for 201 s after step 6; the median is 10 s"]
    assert scene.look(last + 900) == []
    again = scene.train(10.0, last + 1000)
    assert len(scene.look(again + 201)) == 1


def test_fast_steps_may_wait_two_minutes() -> None:
    scene = Scene()
    last = scene.train(0.1)
    assert scene.look(last + 119) == []
    assert len(scene.look(last + 121)) == 1


@pytest.mark.parametrize(
    "state", [RunState.PAUSED, RunState.EVALUATING, RunState.SAVING, RunState.HALTED]
)
def test_a_run_that_does_not_train_is_not_stalled(state: RunState) -> None:
    scene = Scene()
    last = scene.train(10.0)
    scene.tell(StateChanged(state=state), last)
    assert scene.look(last + 9000) == []


def test_a_first_step_may_take_long() -> None:
    scene = Scene()
    scene.train(10.0, steps=4)
    assert scene.look(9000) == []


def test_a_full_disk_is_told_once_until_it_is_free_again() -> None:
    scene = Scene()
    assert scene.look(0, 4.9) == [
        "disk: the disk is nearly full: 4.9 GiB are free where the run folder is"
    ]
    assert scene.look(0, 4.0) == []
    assert scene.look(0, 6.0) == []
    assert scene.look(0, 4.0) == [], "it hovers around the limit"
    assert scene.look(0, 8.0) == []
    assert scene.look(0, None) == []
    scene.tell(StepFinished(loss=1.0), 1.0, 9)
    assert len(scene.look(0, 4.0)) == 1


def test_an_engine_that_is_gone_without_a_word_is_told_once() -> None:
    scene = Scene()
    started: dict[str, Any] = {
        "name": "x", "incarnation": 2, "pid": 1, "host": "h", "world_size": 1, "task": "sft",
        "model": "m", "total_steps": 9, "micro_batch_size": 1, "accumulation": 1,
    }  # fmt: skip
    scene.tell(RunStarted(**started))
    assert not scene.watch.ended
    lost = scene.watch.lost()
    assert lost is not None
    assert "the training process is gone" in lost.text
    assert scene.watch.lost() is None
    scene.tell(RunEnded(state=RunState.FINISHED, exit_code=0))
    assert scene.watch.ended
