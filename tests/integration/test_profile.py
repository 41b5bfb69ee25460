"""Profiles of real steps: on request while training, or of a run that is nothing else."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from fttui.engine.protocol.events import CheckpointSaved, CommandApplied, StepsProfiled
from fttui.engine.protocol.states import RunState
from tests.support.training import Script, new_run, play


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


def test_a_run_that_is_only_profiled_leaves_nothing_but_its_profile(tmp_path: Path) -> None:
    run = new_run(tmp_path, "sft", checkpoint__every=0, checkpoint__at_start="false")
    played = play(run, profile_steps=2)
    assert [step for step, _ in played.at(StepsProfiled)] == [5]
    assert played.outcome.state is RunState.STOPPED
    assert played.events(CheckpointSaved) == []
