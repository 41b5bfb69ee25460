"""The learning rate that a command is compared with, from the journal and over ssh."""

from __future__ import annotations

from typing import Any

from fttui.engine.protocol.events import AnyEvent, CommandApplied, Record, StepFinished
from fttui.engine.protocol.settings import LearningRate, RunSettings
from fttui.engine.protocol.ssh_protocol import Opened
from fttui.engine.protocol.states import RunState
from fttui.engine.run.journal_summary import summarize_records
from fttui.tui.connection.ssh.bridge_stream import RemoteRun


def _rate(*events: AnyEvent) -> LearningRate:
    records = [
        Record(seq=seq, time=float(seq), step=seq, timeline=1, event=event)
        for seq, event in enumerate(events, 1)
    ]
    return summarize_records(records).learning_rate


def test_the_newest_step_has_the_rate_and_a_command_after_it_the_factor() -> None:
    step = StepFinished(loss=1.0, lr=1e-3, lr_schedule=2e-3, lr_scale=0.5)
    changed = CommandApplied(id="1", command="lr scale 2", settings=RunSettings(lr_scale=2.0))
    assert _rate() == LearningRate(None, 1.0)
    assert _rate(step) == LearningRate(2e-3, 0.5)
    assert _rate(step, changed) == LearningRate(2e-3, 2.0)
    assert _rate(changed) == LearningRate(None, 2.0)


def test_a_journal_of_an_older_version_has_the_rate_alone() -> None:
    assert _rate(StepFinished(loss=1.0, lr=1e-3, lr_scale=0.5)) == LearningRate(2e-3, 0.5)
    assert _rate(StepFinished(loss=1.0, lr=0.0, lr_scale=0.0)) == LearningRate(0.0, 0.0)


def _opened(**rate: Any) -> LearningRate:
    run = RemoteRun(name=None)
    opened = Opened(
        run="r", incarnation=1, timeline=1, from_seq=0, last_seq=0, state=RunState.RUNNING,
        engine_alive=True, time=0.0, **rate,
    )  # fmt: skip
    run.opened(opened, 0.0)
    return run.learning_rate


def test_a_bridge_sends_the_rate_and_an_older_one_does_not() -> None:
    assert _opened(lr_schedule=1e-3, lr_scale=0.5) == LearningRate(1e-3, 0.5)
    assert _opened() == LearningRate(None, 1.0)
