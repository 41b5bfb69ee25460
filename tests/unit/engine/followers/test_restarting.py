"""A follower that was killed is started again, with pauses, a bounded number of times."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from fttui.engine.followers.restarting import PAUSES_S, keep_running, main

COUNTING = """
import os, pathlib, sys
file = pathlib.Path(sys.argv[1])
starts = len(file.read_text()) + 1 if file.exists() else 1
file.write_text("x" * starts)
number = int(sys.argv[2]) if starts <= int(sys.argv[3]) else 0
os.kill(os.getpid(), number) if number else sys.exit(7)
"""


@pytest.mark.parametrize(
    ("number", "times", "starts", "code"),
    [
        (signal.SIGKILL, 2, 3, 7),
        (signal.SIGKILL, 99, len(PAUSES_S) + 1, -signal.SIGKILL),
        (signal.SIGTERM, 99, 1, -signal.SIGTERM),
        (signal.SIGSEGV, 0, 1, 7),
    ],
    ids=["twice killed", "killed again and again", "asked to end", "ends by itself"],
)
def test_what_is_killed_starts_again(
    tmp_path: Path, number: int, times: int, starts: int, code: int
) -> None:
    file, said, waited = tmp_path / "starts", list[str](), list[float]()
    command = [sys.executable, "-c", COUNTING, str(file), str(int(number)), str(times)]
    assert keep_running(command, said.append, waited.append) == code
    assert len(file.read_text()) == starts
    assert waited == list(PAUSES_S[: starts - 1])
    given_up = starts > len(PAUSES_S)
    assert len(said) == len(waited) + given_up
    assert all("killed by SIGKILL" in line for line in said)
    if given_up:
        assert "fttui sync" in said[-1]


def test_the_code_of_a_module_is_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["t", "fttui.engine.followers.trackers"]) == 2
    assert not capsys.readouterr().out
