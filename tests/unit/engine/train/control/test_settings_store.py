"""What a new process starts with: what was asked last, under what the configuration changed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fttui.engine.config.load import parse_resolved
from fttui.engine.config.schema import RunConfig
from fttui.engine.protocol.settings import RestOfSchedule, RunSettings
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.control.settings_store import load_desired, store_desired

ASKED = RunSettings(lr_scale=0.5, clip=0.3, nonfinite="halt")


def config(**train: object) -> RunConfig:
    """A configuration with a clip of 1 and a learning rate of 2e-4."""
    plain = msgspec.json.encode(
        {"task": "sft", "model": {"id": "m"}, "data": {"train": "d"}, "train": {"steps": 4} | train}
    )
    return parse_resolved(plain.decode())


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


def test_nothing_asked_is_the_configuration(run: RunDirectory) -> None:
    wanted = load_desired(run, config(clip=0))
    assert wanted.desired == RunSettings(clip=None)
    assert wanted.overridden == []


def test_what_was_asked_holds(run: RunDirectory) -> None:
    store_desired(run, ASKED, config())
    assert load_desired(run, config()).desired == ASKED


@pytest.mark.parametrize(
    ("train", "changed", "word"),
    [
        ({"lr": 1e-5}, {"lr_scale": 1.0}, "train.lr"),
        ({"clip": 2.0}, {"clip": 2.0}, "train.clip"),
    ],
)
def test_a_changed_configuration_counts_more_and_is_told(
    run: RunDirectory, train: dict[str, object], changed: dict[str, object], word: str
) -> None:
    store_desired(run, ASKED, config())
    wanted = load_desired(run, config(**train))
    assert wanted.desired == msgspec.structs.replace(ASKED, **changed)
    assert len(wanted.overridden) == 1
    assert word in wanted.overridden[0]


def test_a_changed_recipe_counts_more_than_a_command(run: RunDirectory) -> None:
    rest = RestOfSchedule(shape="cosine", start=2, lr=1e-4)
    asked = RunSettings(clip=1.0, weight_decay=0.1, dropout=0.0, schedule=rest)
    store_desired(run, asked, config())
    assert load_desired(run, config()).desired == asked
    wanted = load_desired(run, config(weight_decay=0.2, schedule="linear"))
    assert wanted.desired == RunSettings(clip=1.0, dropout=0.0)
    assert wanted.overridden == [
        "weight_decay as configured (0.1 was set before train.weight_decay changed)",
        "schedule as configured (cosine from 0.0001 at step 2 was set before train.schedule or "
        "train.lr changed)",
    ]


def test_a_changed_value_nobody_touched_is_taken_without_a_word(run: RunDirectory) -> None:
    store_desired(run, RunSettings(clip=1.0, lr_scale=0.5), config())
    wanted = load_desired(run, config(clip=2.0))
    assert wanted.desired.clip == 2.0
    assert wanted.desired.lr_scale == 0.5
    assert wanted.overridden == []


def test_a_pause_is_kept_by_a_restart_only(run: RunDirectory) -> None:
    asked = RunSettings(paused=True, release=True, clip=1.0)
    store_desired(run, asked, config())
    assert load_desired(run, config(), restarted=True).desired == asked
    assert load_desired(run, config()).desired == RunSettings(clip=1.0)


def test_a_run_that_is_started_paused_is_paused_and_else_as_it_was(run: RunDirectory) -> None:
    assert load_desired(run, config(), paused=True).desired.paused
    store_desired(run, ASKED, config())
    wanted = load_desired(run, config(), paused=True).desired
    assert wanted == msgspec.structs.replace(ASKED, paused=True)
    assert not load_desired(run, config()).desired.paused
