from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fttui.engine.run.processes.marks import read_endpoint
from fttui.engine.run.run_dir import RunDirectory
from tests.support import engine_double
from tests.support.engine_double import make_run
from tests.support.forks import Forked, fork_server
from tests.support.waiting import until

StartRun = Callable[..., tuple[RunDirectory, Forked]]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of runs with sockets in a short private folder; no hub outlives the test."""
    sockets = tempfile.mkdtemp(prefix="ft-", dir="/tmp")
    root = tmp_path / "runs"
    monkeypatch.setenv("XDG_RUNTIME_DIR", sockets)
    monkeypatch.setenv("FTTUI_RUNS", str(root))
    yield root
    for file in root.glob("*/run.json"):
        kill_hub(RunDirectory(file.parent), signal.SIGKILL)
    shutil.rmtree(sockets)


@pytest.fixture
def start_run(runs: Path) -> Iterator[StartRun]:
    """Starts an engine double as a process, with a hub unless told otherwise."""
    processes: list[Forked] = []

    def start(*options: str, run: RunDirectory | None = None, idle_s: float = 600.0) -> object:
        run = run or make_run(runs, idle_s=idle_s)
        with open(run.engine_log, "ab") as log:
            process = fork_server().start(
                engine_double.__name__,
                [str(run.path), *options],
                stdout=log.fileno(),
                stderr=log.fileno(),
                own_session=True,
            )
        processes.append(process)
        served = (lambda: run.engine.exists()) if "--no-hub" in options else lambda: hub_up(run)
        until(served)
        return run, process

    yield start  # type: ignore[misc]  # the keyword arguments have no place in a Callable
    for process in processes:
        process.kill()
        process.wait()


def hub_up(run: RunDirectory) -> bool:
    endpoint = read_endpoint(run)
    return endpoint is not None and endpoint.alive


def kill_hub(run: RunDirectory, number: int) -> int | None:
    """Signal the run's hub; returns its pid."""
    endpoint = read_endpoint(run)
    if endpoint is None or not endpoint.alive:
        return None
    with contextlib.suppress(ProcessLookupError):
        os.kill(endpoint.pid, number)
    return endpoint.pid
