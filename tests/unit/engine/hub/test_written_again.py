"""A hub that starts in the folder of a live run that was removed, beside the hub of that run."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import pytest

from fttui.engine.hub.__main__ import _await_control_journal
from fttui.engine.protocol.commands import AddNote
from fttui.engine.protocol.events import CommandApplied
from fttui.engine.run.control_log import ControlEntry, ControlWriter, find_decision
from tests.support.engine_double import EngineDouble, make_run


@pytest.fixture
def engine(tmp_path: Path) -> EngineDouble:
    engine = EngineDouble(make_run(tmp_path))
    engine.start()
    return engine


def test_decisions_that_only_the_other_hub_holds_are_not_lost(engine: EngineDouble) -> None:
    run = engine.run
    other = ControlWriter(run)
    other.append(ControlEntry(seq=1, time=1.0, id="c1", command=AddNote(text="a"), issuer="ann"))
    engine.emit(CommandApplied(id="c1", command="note a", issuer="ann"))
    shutil.rmtree(run.path)
    run.path.mkdir()
    engine.journal.keep_in_place()
    engine.mark()

    def notice() -> None:
        time.sleep(0.2)
        other.keep_in_place()

    noticing = threading.Thread(target=notice)
    noticing.start()
    _await_control_journal(run)
    found = find_decision(run, "c1")
    noticing.join()
    other.close()
    assert found is not None


def test_a_hub_of_a_run_without_decisions_does_not_wait(
    engine: EngineDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it waits"))
    _await_control_journal(engine.run)
