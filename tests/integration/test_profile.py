"""Profiles of real steps: on request while training, or of a run that is nothing else."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fttui.engine.core.profile import ProfileContext
from fttui.engine.protocol.events import CheckpointSaved, CommandApplied, StepsProfiled
from fttui.engine.protocol.states import RunState
from fttui.engine.run.files import is_alive
from fttui.engine.train.monitoring import profiler
from tests.support.matrix import in_part
from tests.support.training import Script, new_run, play, write_config
from tests.support.waiting import until


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Where a plain run and a profiled one can live."""
    for name in ("plain", "profiled"):
        (tmp_path / name).mkdir()
    return tmp_path / "plain", tmp_path / "profiled"


def test_steps_are_profiled_on_request_and_nothing_else_changes(
    folders: tuple[Path, Path],
) -> None:
    plain = play(new_run(folders[0]))
    profiled = play(new_run(folders[1]), Script({3: ["profile 2"]}))
    assert profiled.losses() == plain.losses()
    ((step, found),) = profiled.at(StepsProfiled)
    assert (step, found.steps) == (5, 2)
    parts = {part.name: part.host_s for part in found.parts}
    assert sum(parts.values()) == pytest.approx(found.step_s)
    assert min(parts["forward"], parts["backward"], parts["update"]) > 0
    assert found.kinds["matrix products"] > 0
    assert found.idle is None
    assert found.mfu is not None
    assert 0 < found.mfu < 1
    with gzip.open(profiled.run.profiles / found.trace) as file:
        names = {event.get("name") for event in json.load(file)["traceEvents"]}
    assert {"fttui.step", "fttui.micro-batch", "fttui.backward", "fttui.update"} <= names


def test_a_dropped_step_does_not_count(tmp_path: Path) -> None:
    script = Script({3: ["profile 2"], 4: ["rollback 4", "note back"]})
    played = play(new_run(tmp_path), script)
    ((step, found),) = played.at(StepsProfiled)
    assert found.steps == 2
    assert step in (5, 6)
    assert played.events(CommandApplied)[0].command == "profile 2"


# `make test` has this by the command, below.
@pytest.mark.long
def test_a_run_that_is_only_profiled_leaves_nothing_but_its_profile(tmp_path: Path) -> None:
    run = new_run(tmp_path, "sft", checkpoint__every=0, checkpoint__at_start="false")
    played = play(run, profile_steps=2)
    assert [step for step, _ in played.at(StepsProfiled)] == [5]
    assert played.outcome.state is RunState.STOPPED
    assert played.events(CheckpointSaved) == []


@pytest.mark.parametrize(
    ("mode", "fast"), in_part([("static", True), ("off", False)], [("static", True)])
)
def test_the_advice_knows_whether_the_run_is_in_fast_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, fast: bool
) -> None:
    settings: list[ProfileContext] = []
    monkeypatch.setattr(profiler, "summarise", lambda _, setting, __: settings.append(setting))
    sets = {"train__fast": mode, "train__steps": 3, "checkpoint__every": 0}
    play(new_run(tmp_path, "sft", **sets), Script({1: ["profile 1"]}))
    assert [setting.fast for setting in settings] == [fast]


def command(folder: Path, *words: str) -> subprocess.Popen[str]:
    config, _ = write_config(folder, "sft")
    return subprocess.Popen(
        [sys.executable, "-m", "fttui.tui.cli.main", "profile", str(config), *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
        env={**os.environ, "TMPDIR": str(folder)},
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.slow
def test_the_command_keeps_the_trace_and_nothing_else(tmp_path: Path) -> None:
    done = command(tmp_path, "--steps", "1", "--json")
    output, errors = done.communicate(timeout=110)
    assert done.returncode == 0, output + errors
    found = json.loads(output)
    assert found["steps"] == 1
    assert (tmp_path / found["trace"]).parent == tmp_path / "profiles"
    assert (tmp_path / found["trace"]).stat().st_size > 1000
    assert not (tmp_path / "runs").exists()
    assert not list(tmp_path.glob("fttui-probe-*"))


@pytest.mark.slow
def test_a_probe_that_is_ended_takes_its_engine_along(tmp_path: Path) -> None:
    probing = command(tmp_path)
    marks = lambda: list(tmp_path.glob("fttui-probe-*/*/engine.json"))  # noqa: E731 -- used twice
    until(lambda: bool(marks()))
    engine = json.loads(marks()[0].read_text())
    probing.send_signal(signal.SIGTERM)
    probing.communicate(timeout=60)
    assert probing.returncode == 128 + signal.SIGTERM
    assert not is_alive(engine["pid"], engine["started"])
    assert not list(tmp_path.glob("fttui-probe-*"))
