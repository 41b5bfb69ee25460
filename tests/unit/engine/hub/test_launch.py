"""Starting the hub of a run: once, again when it does not come up, and not for ever."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fttui.engine.errors import FttuiError
from fttui.engine.hub import launch
from fttui.engine.run.processes.marks import Endpoint, ProcessMark, write_mark
from fttui.engine.run.run_dir import RunDirectory
from tests.support.engine_double import make_run


class Clock:
    """Time that passes only in `sleep`, and the hubs started meanwhile."""

    def __init__(self, run: RunDirectory, comes_up_at: float | None) -> None:
        self.now = 100.0
        self.launched: list[float] = []
        self._run = run
        self._comes_up_at = comes_up_at

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self._comes_up_at is not None and self.now >= 100 + self._comes_up_at:
            announce(self._run)

    def launch(self, run: RunDirectory) -> None:
        self.launched.append(round(self.now - 100, 1))


def announce(run: RunDirectory, *, alive: bool = True) -> Endpoint:
    me = ProcessMark.current()
    started = me.started if alive else me.started - 100
    endpoint = Endpoint(pid=me.pid, started=started, folder="/tmp/none")
    write_mark(run.endpoint, endpoint)
    return endpoint


def clocked(monkeypatch: pytest.MonkeyPatch, run: RunDirectory, comes_up_at: float | None) -> Clock:
    clock = Clock(run, comes_up_at)
    monkeypatch.setattr(time, "monotonic", clock.monotonic)
    monkeypatch.setattr(time, "sleep", clock.sleep)
    monkeypatch.setattr(launch, "launch_hub", clock.launch)
    return clock


def test_a_hub_that_serves_the_run_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path)
    clock = clocked(monkeypatch, run, None)
    endpoint = announce(run)
    assert launch.ensure_hub(run, 5).started == endpoint.started
    assert (clock.launched, clock.now) == ([], 100.0)


def test_the_mark_of_a_dead_hub_starts_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path)
    announce(run, alive=False)
    clock = clocked(monkeypatch, run, 0.5)
    assert launch.ensure_hub(run, 5).alive
    assert clock.launched == [0.0]


def test_a_hub_that_does_not_come_up_is_started_again_every_two_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path)
    clock = clocked(monkeypatch, run, 4.5)
    assert launch.ensure_hub(run, 20).alive
    assert clock.launched == [0.0, 2.0, 4.0]


def test_a_hub_that_never_comes_up_is_an_error_with_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path)
    run.logs.mkdir(exist_ok=True)
    (run.logs / "hub.log").write_text("".join(f"line {n}\n" for n in range(9)))
    clock = clocked(monkeypatch, run, None)
    with pytest.raises(FttuiError, match=r"did not start within 3 s(?s:.*)line 4\n") as raised:
        launch.ensure_hub(run, 3)
    assert "line 3" not in str(raised.value)
    assert clock.launched == [0.0, 2.0]
    assert clock.now == pytest.approx(103, abs=0.05)
