"""The recipe of a run repeats its surviving timeline bit for bit, without a person."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fttui.engine.config.load import load_config
from fttui.engine.protocol.events import CommandApplied
from fttui.engine.protocol.settings import RunSettings
from fttui.engine.run.checkpoint_store import CheckpointStore
from fttui.engine.run.records.record_feed import read_whole
from fttui.engine.run.run_dir import RunDirectory, create_run
from fttui.tui.cli.experiments.recipe import (
    fresh_settings,
    readable_config,
    recipe_text,
)
from fttui.tui.view_model.history.surviving import SurvivingTimeline, surviving_timeline
from tests.support.training import Script, new_run, play

pytestmark = pytest.mark.timeout(300)
STEPS = {"train__steps": 12, "checkpoint__every": 2}
INTERVENED = Script(
    commands={
        2: ["lr scale 0.3333333333333333", "quarantine texts:5 texts:8"],
        5: ["clip 0.01", "skip 2"],
        7: ["rollback 4 lr=0.7 skip=1"],
        8: ["clip p50", "eval", "lr set 0.001"],
        9: ["quarantine lift texts:5"],
    }
)


def timeline_of(run: RunDirectory) -> SurvivingTimeline:
    fresh = fresh_settings(readable_config(run))
    return surviving_timeline(read_whole(run)[0], fresh)


def replayed(run: RunDirectory, folder: Path, script: Script | None = None) -> RunDirectory:
    """Repeat a run by its recipe, in a folder of its own."""
    recipe = folder / "recipe.yaml"
    config = readable_config(run)
    recipe.write_text(recipe_text(run, config, read_whole(run)[0], timeline_of(run)))
    loaded = load_config(recipe)
    again = create_run(
        folder, name="again", config=recipe, source=loaded.source, resolved=loaded.resolved,
        overrides=[], version="0",
    )  # fmt: skip
    play(again, script)
    return again


def weights(run: RunDirectory) -> dict[str, str]:
    files = CheckpointStore(run).all()[-1].files
    return {n: f.sha256 for n, f in files.items() if n not in ("state.msgpack",)}


def losses(run: RunDirectory) -> dict[int, float]:
    return {step: event.loss_or_nan for step, event in timeline_of(run).steps.items()}


@pytest.fixture(scope="module")
def intervened(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run that was rolled back and changed in every way that changes the training."""
    run = new_run(tmp_path_factory.mktemp("first"), "sft", **STEPS)
    commands: dict[int, Any] = dict(INTERVENED.commands)
    play(run, Script(commands=commands))
    return run


def test_a_recipe_repeats_a_run_bit_for_bit(intervened: RunDirectory, tmp_path: Path) -> None:
    timeline = timeline_of(intervened)
    assert timeline.abandoned_steps == 3
    assert timeline.unexplained == ()
    assert {change.command.split()[0] for change in timeline.changes} == {
        "lr", "clip", "quarantine", "skip",
    }  # fmt: skip
    again = replayed(intervened, tmp_path)
    assert losses(again) == losses(intervened)
    assert sorted(losses(again)) == list(range(1, 13))
    assert weights(again) == weights(intervened)
    assert timeline_of(again).changes == timeline.changes
    applied = [r.event for r in read_whole(again)[0] if isinstance(r.event, CommandApplied)]
    assert {event.issuer for event in applied} == {"configuration"}
    assert applied[0].reason == "planned for step 2"
    assert applied[0].settings == RunSettings(lr_scale=1 / 3, clip=1.0, autopilot="off")
    assert len({event.id for event in applied}) == len(timeline.changes)


@pytest.mark.long
def test_a_repeated_run_that_was_rolled_back_and_resumed_ends_the_same(
    intervened: RunDirectory, tmp_path: Path
) -> None:
    again = replayed(intervened, tmp_path, Script(commands={6: ["rollback 4"], 9: ["stop"]}))
    play(again, resume="4")
    assert losses(again) == losses(intervened)
    assert weights(again) == weights(intervened)
