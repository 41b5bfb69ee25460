"""The app in a real terminal over a real engine: keys in, effects out, training unharmed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pexpect
import pytest

from fttui.tui.preferences import note_seen
from tests.support.cli import events, fttui, only_run
from tests.support.training import write_config
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
PATIENCE_S = 120


@pytest.fixture(autouse=True)
def _no_greeting() -> None:
    """The screen of the first time would take the first key."""
    note_seen()


def _spawn(arguments: list[str], runs: Path) -> Any:
    return pexpect.spawn(
        sys.executable,
        ["-m", "fttui.tui", *arguments],
        dimensions=(40, 120),
        encoding="utf-8",
        timeout=PATIENCE_S,
        env={**os.environ, "FTTUI_RUNS": str(runs), "TERM": "xterm-256color", "LANG": "C.UTF-8"},
    )


def _close_terminal(app: Any) -> None:
    """As closing a window does; the app ends by itself, however long a busy machine takes."""
    app.ptyproc.fileobj.close()
    until(lambda: not app.ptyproc.isalive(), PATIENCE_S)
    app.close()


def _steps_on(run: str, runs: Path) -> bool:
    """Wait until the run has moved on from where it is now."""
    left_at = events(run, runs)[-1]["step"]
    until(lambda: events(run, runs)[-1]["step"] > left_at, PATIENCE_S)
    return True


def test_keys_change_the_run_and_nothing_the_terminal_does_ends_it(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    path, sets = write_config(tmp_path, train__steps="100000")
    app = _spawn(["run", str(path), *(w for item in sets for w in ("--set", item))], runs)
    app.expect("RUNNING")
    app.send("l")
    app.expect("schedule")
    app.send("x0.5\r")
    app.expect("applied")
    app.send(" ")
    app.expect("PAUSED")
    app.send("s")
    app.expect("step-")
    app.send(" ")
    app.expect("RUNNING")
    app.send("q")
    app.expect("fttui attach")
    app.expect(pexpect.EOF)
    app.close()
    assert app.exitstatus == 0
    run = only_run(runs)
    applied = [e["command"] for e in events(run, runs) if e["type"] == "CommandApplied"]
    assert applied == ["lr scale 0.5", "pause", "checkpoint", "resume"]
    assert _steps_on(run, runs), "leaving does not end it"

    closed = _spawn(["attach", run], runs)
    closed.expect("RUNNING")
    _close_terminal(closed)
    assert _steps_on(run, runs), "nor does a terminal that is closed"

    app = _spawn(["attach", run], runs)
    app.expect("RUNNING")
    os.kill(next(e["pid"] for e in events(run, runs) if e["type"] == "RunStarted"), 9)
    app.expect("--resume")
    app.send("q")
    app.expect(pexpect.EOF)
    app.close()
    assert "lost" in fttui("ls", runs=runs).stdout
