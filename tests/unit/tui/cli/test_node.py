"""How a node without the run ends: as its ranks recorded, not as torchrun did."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fttui.engine.errors import TrainingFailed
from fttui.engine.run.processes.node_end import record_node_end
from fttui.tui.cli.cluster.node import follow_node
from fttui.tui.connection.engine_process import StartedEngine
from fttui.tui.connection.nodes import NodeLaunch
from tests.support.engine_double import make_run

LAUNCH = NodeLaunch(1, 2, "10.0.0.1", 29500, "lo")


def _ended(tmp_path: Path, code: int, recorded: int | None) -> tuple[int, list[str]]:
    run = make_run(tmp_path)
    run.engine_log.write_text("the last words\n")
    if recorded is not None:
        record_node_end(run, recorded)
    process = subprocess.Popen([sys.executable, "-c", f"raise SystemExit({code})"])
    said: list[str] = []
    return follow_node(StartedEngine(run, process, None), LAUNCH, 2, said.append), said


@pytest.mark.parametrize(("code", "recorded"), [(0, None), (0, 0), (1, 0)])
def test_ranks_that_ended_in_order_end_the_command_in_order(
    tmp_path: Path, code: int, recorded: int | None
) -> None:
    found, said = _ended(tmp_path, code, recorded)
    assert found == 0
    assert said[0].startswith("node 1 of 2: ranks 2 to 3; logs in")
    assert said[1] == "the run itself is on 10.0.0.1: fttui attach 10.0.0.1:"


def test_ranks_that_a_signal_stopped_in_a_job_are_no_success(tmp_path: Path) -> None:
    assert _ended(tmp_path, 1, 143)[0] == 143


@pytest.mark.parametrize(("recorded", "expected"), [(None, 11), (2, 2), (13, 13)])
def test_ranks_that_failed_pass_their_exit_code_on(
    tmp_path: Path, recorded: int | None, expected: int
) -> None:
    with pytest.raises(TrainingFailed, match="the last words") as caught:
        _ended(tmp_path, 1, recorded)
    assert caught.value.exit_code == expected
