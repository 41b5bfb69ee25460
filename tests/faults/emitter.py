"""An engine's journal side without training: the real publisher, fed at a steady rate."""

from __future__ import annotations

import time

from fttui.engine.hub.launch import launch_hub
from fttui.engine.protocol.events import RunStarted, StateChanged
from fttui.engine.protocol.states import RunState
from fttui.engine.run.control_log import Doorbell
from fttui.engine.run.journal_summary import summarize_journal
from fttui.engine.run.processes.marks import EngineMark, ProcessMark, write_mark
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.journal_writer import JournalWriter
from tests.support.engine_double import step_event


def begin(run: RunDirectory, *, hub: bool) -> tuple[JournalWriter, int]:
    """Mark this process as the engine and start a publisher; with the last step on disk."""
    journal_writer = JournalWriter(run, launch_hub if hub else lambda _run: None)
    history = summarize_journal(journal_writer.recovered)
    me = ProcessMark.current()
    incarnation = history.status.incarnation + 1
    write_mark(run.engine, EngineMark(pid=me.pid, started=me.started, incarnation=incarnation))
    started = RunStarted(
        name=run.id,
        incarnation=incarnation,
        pid=me.pid,
        host="here",
        world_size=1,
        task="sft",
        model="none",
        total_steps=0,
        micro_batch_size=1,
        accumulation=1,
    )
    for event in (started, StateChanged(state=RunState.RUNNING)):
        journal_writer.emit(event, step=history.step, timeline=1)
    return journal_writer, history.step


def handed_over(run: RunDirectory) -> Doorbell:
    """Counts the steps handed to the publisher, readable after its process was killed."""
    return Doorbell(run.path / "handed-over")


def publish_steps(run: RunDirectory, per_s: float, hub: bool = False) -> None:
    """Be an engine that steps at a rate for ever."""
    journal_writer, step = begin(run, hub=hub)
    count = handed_over(run)
    due = time.monotonic()
    while True:
        step += 1
        journal_writer.emit(step_event(step), step=step, timeline=1)
        count.ring(step)
        due += 1.0 / per_s
        time.sleep(max(0.0, due - time.monotonic()))
