"""The real command with a real engine: to the end, interrupted, killed, steered, on two ranks."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from fttui.engine.run.endpoint import EngineMark
from tests.support.cli import events, fttui, only_run, start
from tests.support.training import write_config
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
PATIENCE_S = 150.0


def _config(tmp_path: Path, **overrides: Any) -> list[str]:
    path, sets = write_config(tmp_path, **overrides)
    return [str(path), *(word for item in sets for word in ("--set", item))]


def _steps(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in found if event["type"] == "StepFinished"]


def _is_running(runs: Path, step: int = 1) -> bool:
    journals = list(runs.glob("*/journal.log"))
    return bool(journals) and any(e["step"] >= step for e in _steps(events(only_run(runs), runs)))


def test_a_headless_run_trains_to_its_end(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    result = fttui("run", *_config(tmp_path), "--headless", runs=runs)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "step 8/8" in result.stdout
    found = events(only_run(runs), runs)
    assert [event["seq"] for event in found] == list(range(1, len(found) + 1))
    assert [event["step"] for event in _steps(found)] == list(range(1, 9))
    assert found[-1]["type"] == "RunEnded"
    listed = fttui("ls", "--json", runs=runs)
    assert '"finished"' in listed.stdout


def test_a_bad_key_ends_before_anything_starts(tmp_path: Path) -> None:
    result = fttui(
        "run", *_config(tmp_path), "--set", "train.lrr=1", "--headless", runs=tmp_path / "r"
    )
    assert result.returncode == 2
    assert "did you mean" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "r").exists()


def test_ctrl_c_saves_and_stops_and_the_run_can_go_on(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    process = start("run", *_config(tmp_path, train__steps=100_000), "--headless", runs=runs)
    until(lambda: _is_running(runs, 3), PATIENCE_S)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, output
    run = only_run(runs)
    stopped = _steps(events(run, runs))[-1]["step"]
    names = [path.name for path in (runs / run / "checkpoints").iterdir()]
    assert f"step-{stopped:06d}" in names
    again = fttui("run", "--resume", run, "--headless", "--max-steps", str(stopped + 3), runs=runs)
    assert again.returncode == 0, again.stdout + again.stderr
    assert [e["step"] for e in _steps(events(run, runs))] == list(range(1, stopped + 4))


def test_a_killed_engine_is_named_and_resumed(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    process = start("run", *_config(tmp_path, train__steps=100_000), "--headless", runs=runs)
    until(lambda: _is_running(runs, 5), PATIENCE_S)
    run = only_run(runs)
    mark = msgspec.json.decode((runs / run / "engine.json").read_bytes(), type=EngineMark)
    os.kill(mark.pid, signal.SIGKILL)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 6, output
    assert "--resume" in output
    assert "lost" in fttui("ls", runs=runs).stdout
    last = _steps(events(run, runs))[-1]["step"]
    again = fttui("run", "--resume", run, "--headless", "--max-steps", str(last + 2), runs=runs)
    assert again.returncode == 0, again.stdout + again.stderr
    found = events(run, runs)
    resumed_at = [e["start_step"] for e in found if e["type"] == "RunStarted"][-1]
    assert _steps(found)[-1]["timeline"] == (2 if resumed_at < last else 1)


def test_the_crash_of_an_engine_tells_its_error_and_exit_code(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    result = fttui("run", *_config(tmp_path, model__id="no-such/model"), "--headless", runs=runs)
    assert result.returncode == 8, result.stdout + result.stderr
    assert "no-such/model" in result.stdout + result.stderr
    assert "Traceback" not in result.stdout + result.stderr


@pytest.mark.parametrize("devices", [1, 2])
def test_commands_are_applied_by_all_ranks_at_one_step(tmp_path: Path, devices: int) -> None:
    runs = tmp_path / "runs"
    sets = _config(tmp_path, train__steps=100_000, train__batch=2, train__devices=devices)
    process = start("run", *sets, "--headless", runs=runs)
    until(lambda: _is_running(runs, 5), PATIENCE_S)
    run = only_run(runs)

    def ctl(*words: str, code: int = 0) -> str:
        result = fttui("ctl", run, *words, runs=runs)
        assert result.returncode == code, result.stdout + result.stderr
        return result.stdout + result.stderr

    assert "0.5" in ctl("lr", "scale", "0.5")
    ctl("pause")
    assert "step-" in ctl("checkpoint", "pin", "before the change")
    ctl("clip", "0.25")
    assert "no complete checkpoint" in ctl("rollback", "999999", code=7)
    ctl("rollback", "4", "skip=1")
    ctl("eval")
    ctl("run", "3")
    until(lambda: _paused_at(run, runs, 7), PATIENCE_S)
    assert "stopped at step 7" in ctl("stop")
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, output
    found = events(run, runs)
    assert {e["world_size"] for e in found if e["type"] == "RunStarted"} == {devices}
    last = _steps(found)[-1]
    assert (last["step"], last["timeline"], last["lr_scale"], last["clip"]) == (7, 2, 0.5, 0.25)
    again = fttui("run", "--resume", run, "--headless", "--max-steps", "9", runs=runs)
    assert again.returncode == 0, again.stdout + again.stderr
    assert _steps(events(run, runs))[-1]["step"] == 9


def _paused_at(run: str, runs: Path, step: int) -> bool:
    states = [e for e in events(run, runs) if e["type"] == "StateChanged"]
    return (states[-1]["state"], states[-1]["step"]) == ("paused", step)


def _rank_pid(run: str, rank: int) -> int:
    """The process of a rank of this run, from its command line and environment."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        with suppress(psutil.Error):
            mine = any(word.endswith(run) for word in words) and "fttui.engine" in words
            if mine and process.environ().get("RANK") == str(rank):
                return process.pid
    raise LookupError(f"rank {rank} of {run} is not running")


def test_a_lost_rank_is_named_and_a_restart_goes_on_as_it_was_asked(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    sets = _config(
        tmp_path, train__steps=100_000, train__batch=2, train__devices=2, train__restarts=1
    )
    process = start("run", *sets, "--headless", runs=runs)
    until(lambda: _is_running(runs, 5), PATIENCE_S)
    run = only_run(runs)
    assert fttui("ctl", run, "lr", "scale", "0.5", runs=runs).returncode == 0
    assert fttui("ctl", run, "pause", runs=runs).returncode == 0
    os.kill(_rank_pid(run, 1), signal.SIGKILL)
    until(lambda: _newest(run, runs) == (2, "paused"), PATIENCE_S)
    assert fttui("ctl", run, "run", "2", runs=runs).returncode == 0
    until(lambda: _trained(run, runs) == 2 and _newest(run, runs) == (2, "paused"), PATIENCE_S)
    found = events(run, runs)
    assert [e["seq"] for e in found] == list(range(1, len(found) + 1))
    assert _steps(found)[-1]["lr_scale"] == 0.5
    assert [e["incarnation"] for e in found if e["type"] == "RunStarted"][-1] == 2
    assert any("rank 1" in e.get("text", "") and "restart 1 of 1" in e["text"] for e in found)
    os.kill(_rank_pid(run, 1), signal.SIGKILL)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 11, output
    assert "rank 1" in output
    assert "--resume" in output


def _since_start(run: str, runs: Path) -> list[dict[str, Any]]:
    """Events of the newest incarnation."""
    found = events(run, runs)
    return found[max(i for i, e in enumerate(found) if e["type"] == "RunStarted") :]


def _newest(run: str, runs: Path) -> tuple[int, str]:
    """The newest incarnation and the state it said it is in."""
    found = _since_start(run, runs)
    states = [e["state"] for e in found if e["type"] == "StateChanged"]
    return found[0]["incarnation"], states[-1] if states else ""


def _trained(run: str, runs: Path) -> int:
    return len(_steps(_since_start(run, runs)))
