"""`run --headless`: what a script sees, and what Ctrl-C and a closed terminal do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fttui.engine.run.processes.marks import read_engine
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.run.run_index import find_run
from tests.support.waiting import until

ROOT = Path(__file__).parents[3]
LIMIT_S = 60


class Headless:
    """A started command and its run."""

    def __init__(self, root: Path, **environ: str) -> None:
        self.root = root
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.headless", "tests.support.engine_double"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **environ},
        )

    def run(self) -> RunDirectory:
        until(lambda: list(self.root.glob("*/engine.json")))
        return find_run(self.root, None)

    def wait_for(self, words: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if words in line:
                return
        raise AssertionError(f"ended without saying {words!r}")

    def rest(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, out, err


@pytest.fixture
def started(runs: Path) -> Iterator[list[Headless]]:
    every: list[Headless] = []
    yield every
    for one in every:
        one.process.kill()
        one.process.communicate()
        for file in runs.glob("*/engine.json"):
            mark = read_engine(RunDirectory(file.parent))
            if mark is not None and mark.alive:
                os.kill(mark.pid, signal.SIGKILL)


def start(started: list[Headless], runs: Path, **environ: str) -> Headless:
    headless = Headless(runs, **environ)
    started.append(headless)
    return headless


def test_a_run_is_followed_to_its_end(started: list[Headless], runs: Path) -> None:
    code, out, _ = start(started, runs, DOUBLE_STEPS="80").rest()
    lines = out.splitlines()
    assert code == 0
    assert lines[0] == "run double: sft on none, 80 steps, cpu"
    assert lines[1] == "state running"
    steps = [line for line in lines if line.startswith("step ")]
    assert steps[-1].startswith("step 80/80  loss ")
    assert len(steps) < 10
    assert lines[-1] == "finished at step 80"


def test_ctrl_c_reaches_the_engine_and_the_end_is_still_told(
    started: list[Headless], runs: Path
) -> None:
    headless = start(started, runs)
    headless.wait_for("state running")
    headless.process.send_signal(signal.SIGINT)
    code, out, _ = headless.rest()
    assert code == 0
    assert "saving and stopping; Ctrl-C again stops now" in out
    assert out.splitlines()[-1].startswith("stopped at step ")


def test_a_hangup_ends_the_command_but_not_the_run(started: list[Headless], runs: Path) -> None:
    headless = start(started, runs)
    headless.wait_for("step ")
    headless.process.send_signal(signal.SIGHUP)
    headless.process.wait(LIMIT_S)
    engine = read_engine(headless.run())
    assert engine is not None
    assert engine.alive


def test_an_engine_killed_without_a_word_is_an_error_with_the_way_on(
    started: list[Headless], runs: Path
) -> None:
    headless = start(started, runs)
    headless.wait_for("state running")
    engine = read_engine(headless.run())
    assert engine is not None
    os.kill(engine.pid, signal.SIGKILL)
    code, _, err = headless.rest()
    assert code == 6
    assert "exit code -9" in err
    assert "fttui run --resume double-" in err
