"""Faults of the run folder itself: files of a live run are removed, or the folder is."""

from __future__ import annotations

import shutil
import time

from fttui.engine.protocol.commands import AddNote
from fttui.engine.protocol.events import LogEmitted
from fttui.engine.run.checkpoint_store import CheckpointStore
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.run.run_index import summarize
from fttui.tui.connection.command_outcome import send_command
from fttui.tui.connection.local import LocalSession
from tests.support.waiting import until

from .book import Box, Figures, fault
from .invariants import check_checkpoints, check_journal, control_entries, require

_HEARTBEATS_S = 3.0
_FILES = (
    "journal.log",
    "control.log",
    "control.seq",
    "engine.json",
    "journal.lock",
    "endpoint.json",
)


@fault(
    "F35",
    "rm of each file of a live run, of its checkpoints, and of the whole run folder",
    "reported and written again within 3 s with nothing lost, training saved, commands obeyed",
    "an open file without a name: every later line goes into nothing",
)
def remove_files(box: Box) -> Figures:
    run = box.stage.new_run(train__steps=100_000, train__devices=1, checkpoint__every=0)
    waits = []
    sent: list[str] = []
    with box.stage.start(run, ranks=1, hub=True) as engine:
        engine.until_step(3)
        sent.append(_note(run))
        for name in (*_FILES, "checkpoints", ""):
            waits.append(_remove(run, name))
            sent.append(_note(run))
        require(CheckpointStore(run).all(), "nothing was saved after the checkpoints were removed")
        engine.signal(15, 0)
        require(engine.join() == [0], "the engine failed")
    records = check_journal(run)
    events = [r.event for r in records]
    logged = [e.text for e in events if isinstance(e, LogEmitted) and e.level == "error"]
    for name in ("journal.log", "control.log", "engine.json", "checkpoints", "run.json"):
        require(any(name in text for text in logged), f"{name} was removed without a word")
    told = [
        getattr(r.event, "id", None) for r in records if type(r.event).__name__ == "CommandApplied"
    ]
    require([id_ for id_ in told if id_ in sent] == sent, "a command was lost")
    require({entry.id for entry in control_entries(run)} >= set(sent), "a decision was lost")
    check_checkpoints(run)
    ours = f"{len(waits)} removals: there again after at most {max(waits):.1f} s, lost 0"
    return Figures(ours, ok=max(waits) < _HEARTBEATS_S)


def _remove(run: RunDirectory, name: str) -> float:
    victim = run.path / name if name else run.path
    step, started = summarize(run).step, time.monotonic()
    if victim.is_dir():
        shutil.rmtree(victim, ignore_errors=True)
    else:
        victim.unlink()
    mark = victim if name else victim / "run.json"
    until(mark.exists, _HEARTBEATS_S * 5)
    waited = time.monotonic() - started
    # From the journal: what a rank tells the stage lies in the folder that is removed.
    until(lambda: summarize(run).step > step + 1, 30.0)
    if victim.is_dir():
        until(lambda: CheckpointStore(run).all(), 30.0)
    return waited


def _note(run: RunDirectory) -> str:
    """Send a command as `ctl` does; return its id."""
    outcome = send_command(
        LocalSession(run, one_shot=True), AddNote(text="here"), reason="", timeout_s=30.0
    )
    require(outcome.status == "applied", f"{outcome.status}: {outcome.reason}")
    return outcome.id
