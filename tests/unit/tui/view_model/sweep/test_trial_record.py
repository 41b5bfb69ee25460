"""What a sweep reads from the journal of a trial."""

from __future__ import annotations

import math
from itertools import count

import pytest

from fttui.engine.protocol.commands import Stop
from fttui.engine.protocol.events import (
    AnyEvent,
    CommandApplied,
    EvalFinished,
    Record,
    RolledBack,
    RunEnded,
    RunStarted,
    StateChanged,
    StepFinished,
)
from fttui.engine.protocol.states import RunState
from fttui.tui.view_model.sweep.trial_record import TrialRecord


def read(record: TrialRecord, *events: tuple[int, AnyEvent]) -> list[int]:
    """Add events; return the steps at which the metric had a new value."""
    seq = count(1)
    made = [
        Record(seq=next(seq), time=100.0 + step, step=step, timeline=1, event=event)
        for step, event in events
    ]
    return [one.step for one in made if record.take(one)]


def started(step: int = 0, incarnation: int = 1) -> RunStarted:
    return RunStarted(
        name="a", incarnation=incarnation, pid=1, host="h", world_size=1, task="sft", model="m",
        total_steps=9, micro_batch_size=1, accumulation=1, start_step=step,
    )  # fmt: skip


def test_evaluations_are_values_of_the_metric_and_the_last_one_is_the_score() -> None:
    record = TrialRecord("eval.accuracy", 2)
    found = read(
        record,
        (0, started()),
        (1, StepFinished(loss=3.0)),
        (2, StepFinished(loss=math.nan)),
        (2, EvalFinished(metrics={"loss": 2.0, "accuracy": 0.5})),
        (3, StepFinished(loss=2.0)),
        (3, EvalFinished(metrics={"loss": 2.0, "accuracy": math.nan})),
    )
    assert found == [2]
    assert record.score is None
    assert record.not_finite == 1
    read(record, (4, StepFinished(loss=1)), (4, EvalFinished(metrics={"accuracy": 0.7})))
    assert record.score == 0.7


def test_training_losses_are_averaged() -> None:
    record = TrialRecord("loss", 2)
    steps = [(n, StepFinished(loss=float(n))) for n in range(1, 6)]
    assert read(record, *steps) == [2, 4]
    assert record.values == {2: 1.5, 4: 3.5}
    assert record.score == 4.0


def test_a_rollback_and_a_resume_take_back_what_was_trained_after_their_step() -> None:
    record = TrialRecord("loss", 1)
    read(record, *((n, StepFinished(loss=1.0)) for n in range(1, 6)))
    read(record, (5, StateChanged(state=RunState.HALTED, detail="nan")))
    read(record, (5, StateChanged(state=RunState.STOPPING)))
    assert record.halted == "halted after step 5: nan"
    back = RolledBack(checkpoint="c", from_step=5, to_step=3, old_timeline=1, new_timeline=2)
    read(record, (3, back))
    assert (record.step, sorted(record.losses), record.halted) == (3, [1, 2, 3], "")
    read(record, (3, RunEnded(state=RunState.STOPPED, exit_code=0)), (2, started(2)))
    assert record.ended is None
    assert sorted(record.values) == [1, 2]


def test_the_time_between_an_interruption_and_the_next_start_does_not_count() -> None:
    record = TrialRecord("loss", 1)
    read(record, (0, started()), (7, StepFinished(loss=1.0)))
    read(record, (500, started(7, incarnation=2)), (503, StepFinished(loss=1.0)))
    assert record.seconds == 10


@pytest.mark.parametrize("issuer", ["ada", "early stop"])
def test_who_has_stopped_the_run_is_known(issuer: str) -> None:
    record = TrialRecord("loss", 1)
    read(record, (3, CommandApplied(id="1", command="stop", issuer=issuer, applied=Stop())))
    assert record.stopped_by == issuer
