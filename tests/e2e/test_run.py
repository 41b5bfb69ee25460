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

from fttui.engine.run.processes.marks import EngineMark
from tests.support.cli import events, fttui, only_run, start
from tests.support.matrix import in_part
from tests.support.training import write_config
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
PATIENCE_S = 150.0


def _config(tmp_path: Path, **overrides: Any) -> list[str]:
    """A run that keeps every checkpoint, so that a slow machine still finds the first ones."""
    path, sets = write_config(tmp_path, checkpoint__keep=100_000, **overrides)
    return [str(path), *(word for item in sets for word in ("--set", item))]


def _steps(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in found if event["type"] == "StepFinished"]


def _is_running(runs: Path, step: int = 1) -> bool:
    journals = list(runs.glob("*/journal.log"))
    return bool(journals) and any(e["step"] >= step for e in _steps(events(only_run(runs), runs)))


def test_a_bad_key_ends_before_anything_starts(tmp_path: Path) -> None:
    result = fttui(
        "run", *_config(tmp_path), "--set", "train.lrr=1", "--headless", runs=tmp_path / "r"
    )
    assert result.returncode == 2
    assert "did you mean" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "r").exists()


def test_bad_data_end_it_before_a_model_is_loaded(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"anchor": "a", "positive": "b"}\n' * 40 + '{"anchor": "a"\n')
    sets = _config(tmp_path, data__train=str(bad), data__accept="[]", model__id="no-such/model")
    result = fttui("run", *sets, "--headless", runs=tmp_path / "r")
    assert result.returncode == 9, result.stdout + result.stderr
    assert f"{bad}:41" in result.stderr
    assert not (tmp_path / "r").exists()


# `make test` has this error of a forked engine in test_short, and the command's exit code in
# test_headless.
@pytest.mark.long
def test_the_crash_of_an_engine_tells_its_error_and_exit_code(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    result = fttui("run", *_config(tmp_path, model__id="no-such/model"), "--headless", runs=runs)
    assert result.returncode == 8, result.stdout + result.stderr
    assert "no-such/model" in result.stdout + result.stderr
    assert "Traceback" not in result.stdout + result.stderr


# `make test` has a signal while an engine loads in F36, and Ctrl-C at the command in test_headless.
@pytest.mark.long
def test_ctrl_c_while_it_loads_saves_nothing_and_the_run_can_begin_again(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    process = start("run", *_config(tmp_path, train__steps=2), "--headless", runs=runs)
    until(lambda: any(e["type"] == "RunStarted" for e in _so_far(runs)), PATIENCE_S)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, output
    run = only_run(runs)
    assert not _steps(events(run, runs))
    assert not _saved(runs, run)
    ended = events(run, runs)[-1]
    assert (ended["state"], ended["exit_code"], ended["checkpoint"]) == ("stopped", 0, None)
    again = fttui("run", "--resume", run, "--headless", runs=runs)
    assert again.returncode == 0, again.stdout + again.stderr
    assert [e["step"] for e in _steps(_since_start(run, runs))] == [1, 2]
    assert _newest(run, runs)[0] == 2


def _so_far(runs: Path) -> list[dict[str, Any]]:
    return events(only_run(runs), runs) if list(runs.glob("*/journal.log")) else []


# `make test` has a killed engine that is resumed in test_exact_paths, and the words of the command
# after it in test_terminal and test_headless.
@pytest.mark.parametrize("killed", in_part([False, True], [False]))
def test_a_run_steered_interrupted_and_resumed_trains_to_its_end(
    tmp_path: Path, killed: bool
) -> None:
    runs = tmp_path / "runs"
    process = start("run", *_config(tmp_path, train__steps=100_000), "--headless", runs=runs)
    until(lambda: _is_running(runs, 5), PATIENCE_S)
    run = only_run(runs)
    _steer(run, runs)
    assert _ctl(run, runs, "resume")
    until(lambda: _trained(run, runs) > 12, PATIENCE_S)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, output
    last = _steps(events(run, runs))[-1]["step"]
    assert any(p.name.startswith(f"step-{last:06d}") for p in _saved(runs, run))
    if killed:
        last = _resume_and_kill(run, runs, last)
    again = fttui("run", "--resume", run, "--headless", "--max-steps", str(last + 2), runs=runs)
    assert again.returncode == 0, again.stdout + again.stderr
    assert f"step {last + 2}/{last + 2}" in again.stdout
    found = events(run, runs)
    assert [event["seq"] for event in found] == list(range(1, len(found) + 1))
    assert found[-1]["type"] == "RunEnded"
    resumed_at = [e["start_step"] for e in found if e["type"] == "RunStarted"][-1]
    assert resumed_at == last or killed
    assert _steps(found)[-1]["timeline"] == (3 if resumed_at < last else 2)
    newest = _since_start(run, runs)
    assert [e["step"] for e in _steps(newest)] == list(range(resumed_at + 1, last + 3))
    assert {(e["lr_scale"], e["clip"]) for e in _steps(newest)} == {(0.5, 0.25)}
    assert '"finished"' in fttui("ls", "--json", runs=runs).stdout


def _resume_and_kill(run: str, runs: Path, stopped: int) -> int:
    """Resume the run after this step and kill its engine; return the last step before that."""
    process = start("run", "--resume", run, "--headless", runs=runs)
    until(lambda: _newest(run, runs)[0] == 2 and _trained(run, runs) > 4, PATIENCE_S)
    assert _steps(_since_start(run, runs))[0]["step"] == stopped + 1
    mark = msgspec.json.decode((runs / run / "engine.json").read_bytes(), type=EngineMark)
    os.kill(mark.pid, signal.SIGKILL)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 6, output
    assert "--resume" in output
    assert "lost" in fttui("ls", runs=runs).stdout
    return int(_steps(events(run, runs))[-1]["step"])


def _saved(runs: Path, run: str) -> list[Path]:
    return list((runs / run / "checkpoints").iterdir())


def _ctl(run: str, runs: Path, *words: str, code: int = 0) -> str:
    result = fttui("ctl", run, *words, runs=runs)
    assert result.returncode == code, result.stdout + result.stderr
    return result.stdout + result.stderr


def _steer(run: str, runs: Path) -> None:
    """A little of everything; it leaves the run paused at step 7 of timeline 2."""
    assert "0.5" in _ctl(run, runs, "lr", "scale", "0.5")
    _ctl(run, runs, "pause")
    assert "step-" in _ctl(run, runs, "checkpoint", "pin", "before the change")
    _ctl(run, runs, "clip", "0.25")
    assert "no complete checkpoint" in _ctl(run, runs, "rollback", "999999", code=7)
    _ctl(run, runs, "rollback", "4", "skip=1")
    _ctl(run, runs, "eval")
    _ctl(run, runs, "run", "3")
    until(lambda: _paused_at(run, runs, 7), PATIENCE_S)
    last = _steps(events(run, runs))[-1]
    assert (last["step"], last["timeline"], last["lr_scale"], last["clip"]) == (7, 2, 0.5, 0.25)


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


# `make test` starts ranks again in F23B, resumes two in test_exact_paths, and by the command one
# rank in the test above.
@pytest.mark.parametrize(
    ("restarts", "resumed"),
    in_part([(0, False), (1, False), (1, True)], [(0, False)]),
    ids=["lost", "started again", "resumed"],
)
def test_two_ranks_act_as_one_and_a_lost_one_is_named_and_started_again(
    tmp_path: Path, restarts: int, resumed: bool
) -> None:
    runs = tmp_path / "runs"
    shape = {"train__steps": 100_000, "train__batch": 2, "train__devices": 2}
    sets = _config(tmp_path, **shape, train__restarts=restarts)
    process = start("run", *sets, "--headless", runs=runs)
    until(lambda: _is_running(runs, 5), PATIENCE_S)
    run = only_run(runs)
    if restarts:  # F16, F17 and F19 steer two ranks, too
        _steer(run, runs)
    assert {e["world_size"] for e in events(run, runs) if e["type"] == "RunStarted"} == {2}
    if restarts:
        os.kill(_rank_pid(run, 1), signal.SIGKILL)
        _went_on(run, runs)
    os.kill(_rank_pid(run, 1), signal.SIGKILL)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 11, output
    assert "rank 1" in output
    assert "--resume" in output
    if resumed:
        _resume_and_stop(run, runs)


def _went_on(run: str, runs: Path) -> None:
    """The ranks were started again, with the settings of the run, and the journal goes on."""
    until(lambda: _newest(run, runs) == (2, "paused"), PATIENCE_S)
    _ctl(run, runs, "run", "2")
    until(lambda: _trained(run, runs) == 2 and _newest(run, runs) == (2, "paused"), PATIENCE_S)
    found = events(run, runs)
    assert [e["seq"] for e in found] == list(range(1, len(found) + 1))
    assert (_steps(found)[-1]["lr_scale"], _steps(found)[-1]["clip"]) == (0.5, 0.25)
    assert [e["incarnation"] for e in found if e["type"] == "RunStarted"][-1] == 2
    assert any("rank 1" in e.get("text", "") and "restart 1 of 1" in e["text"] for e in found)


def _resume_and_stop(run: str, runs: Path) -> None:
    process = start("run", "--resume", run, "--headless", runs=runs)
    until(lambda: _newest(run, runs)[0] == 3 and _trained(run, runs) > 1, PATIENCE_S)
    assert "stopped at step" in _ctl(run, runs, "stop")
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, output


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
