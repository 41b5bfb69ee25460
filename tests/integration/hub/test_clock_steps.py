"""Engine, hub and viewers as real processes while the clock of the day is set."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from fttui.engine.run.processes.marks import read_endpoint, read_engine
from fttui.engine.run.run_dir import RunDirectory
from tests.support.engine_double import make_run
from tests.support.waiting import until

LIBRARY = next(
    (p for p in Path("/usr/lib").glob("*/faketime/libfaketime.so.1") if p.is_file()), None
)
pytestmark = [
    pytest.mark.skipif(LIBRARY is None, reason="needs libfaketime, of the Debian package faketime"),
    pytest.mark.timeout(300),
]
STEPS_S = (-2, 3_600, -86_400)
MORE_STEPS_S = (1, -1, 2, 86_400)


_SLEEP = "import select, time\ntime.sleep = lambda s: select.select([], [], [], s) and None\n"
"""The library takes the absolute time until which Python sleeps for one of its own clock."""


class Clock:
    """The clock of the day of every process started here; others keep the true one."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._start = file.with_name(f"{file.name} start")
        self._start.mkdir()
        (self._start / "sitecustomize.py").write_text(_SLEEP)
        self.set(0)

    def set(self, offset_s: int) -> None:
        """Set it for all running processes at once, as an administrator or NTP does."""
        self._file.write_text(f"{offset_s:+d}\n")

    def environment(self, runs: Path) -> dict[str, str]:
        return {
            **os.environ,
            "LD_PRELOAD": str(LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "FTTUI_RUNS": str(runs),
            "PYTHONPATH": f"{self._start}:{os.environ.get('PYTHONPATH', '')}",
        }


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[tuple[Clock, RunDirectory, dict[str, str]]]:
    clock = Clock(tmp_path / "clock")
    run = make_run(tmp_path / "runs", idle_s=0.0)
    environment = clock.environment(run.path.parent)
    engine = subprocess.Popen(
        [sys.executable, "-m", "tests.support.engine_double", str(run.path)], env=environment
    )
    until(lambda: (found := read_endpoint(run)) is not None and found.alive, 60)
    yield clock, run, environment
    engine.kill()
    engine.wait()


def _fttui(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fttui.tui", *words]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("steps_s", [STEPS_S, pytest.param(MORE_STEPS_S, marks=pytest.mark.long)])
def test_no_step_of_the_clock_loses_a_run_or_a_command(
    scene: tuple[Clock, RunDirectory, dict[str, str]], steps_s: tuple[int, ...]
) -> None:
    clock, run, environment = scene
    before = read_endpoint(run)
    for offset_s in steps_s:
        clock.set(offset_s)
        listed = _fttui(environment, "ls", "--json")
        [row] = msgspec.json.decode(listed.stdout)
        assert row["state"] == "running", (offset_s, row)
        sent = _fttui(environment, "ctl", run.id, "note", f"offset {offset_s}")
        assert sent.returncode == 0, (offset_s, sent.stderr)
    assert read_endpoint(run) == before, "no second hub was started"
    assert (engine := read_engine(run)) is not None
    assert engine.alive


@pytest.mark.parametrize("offset_s", [-86_400, 86_400])
def test_a_viewer_with_another_clock_sends_no_expired_command(
    scene: tuple[Clock, RunDirectory, dict[str, str]], offset_s: int, tmp_path: Path
) -> None:
    _, run, _ = scene
    wrong = Clock(tmp_path / "clock of the viewer")
    wrong.set(offset_s)
    sent = _fttui(wrong.environment(run.path.parent), "ctl", run.id, "note", "x")
    assert sent.returncode == 0, sent.stderr
