"""The folders of side runs: what they share with the run, and that nothing of them is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from fttui.engine.config.load import load_config, parse_resolved
from fttui.engine.errors import CheckpointError
from fttui.engine.run.checkpoint_store import CheckpointStore, Manifest, seal_files
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.run.run_index import list_runs
from fttui.tui.connection.race.side_folder import (
    copy_checkpoint,
    make_side_run,
    remove_side_runs,
    side_config,
    side_run,
)
from tests.support.engine_double import make_run

CONFIG = """
name: mine
model: {id: m}
data: {train: a.jsonl, eval_fraction: 0.1}
train: {steps: 90, early_stop: {metric: loss}}
trackers: [tensorboard]
budget: {hours: 1}
eval: {every: 10}
"""


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = make_run(tmp_path)
    source = tmp_path / "mine.yaml"
    source.write_text(CONFIG)
    run.config.write_text(load_config(source).resolved)
    run.source_config.write_text(CONFIG)
    folder = CheckpointStore(run).make_folder("step-000004")
    (folder / "weights").write_bytes(b"w" * 100)
    CheckpointStore(run).commit(
        Manifest(name="step-000004", step=4, timeline=1, time=0.0, world_size=1, incarnation=1,
                 files=seal_files(folder))
    )  # fmt: skip
    return run


def test_a_side_run_begins_at_the_checkpoint_and_is_not_listed(run: RunDirectory) -> None:
    side = make_side_run(run, 2, "step-000004")
    store = CheckpointStore(side)
    assert store.verify(store.find("last")).name == "step-000004"
    assert side.is_side_run
    assert not run.is_side_run
    assert side_run(run, side.id) == side
    assert [one.id for one in list_runs(run.path.parent)] == [run.id]
    remove_side_runs(run)
    assert not run.side_runs.exists()
    own = CheckpointStore(run)
    assert own.verify(own.find("last")).name == "step-000004"
    remove_side_runs(run)


def test_a_side_run_only_trains_and_evaluates(run: RunDirectory) -> None:
    config = parse_resolved(side_config(run))
    assert config.trackers == []
    assert config.train.early_stop is None
    assert config.budget.hours is None
    assert set(config.alerts.mute) >= {"finished", "failed", "halted"}
    before = parse_resolved(run.config.read_text())
    assert (config.data, config.model, config.adapter) == (
        before.data,
        before.model,
        before.adapter,
    )
    assert config.eval == before.eval


def test_a_checkpoint_of_another_side_run_has_a_name_of_its_own(run: RunDirectory) -> None:
    one, two = (make_side_run(run, n, "step-000004") for n in (1, 2))
    name = f"{two.id}-step-000004"
    for _ in range(2):
        copy_checkpoint(two, "step-000004", one, name)
    store = CheckpointStore(one)
    assert store.verify(store.find(name)).name == name
    assert [manifest.name for manifest in store.all()] == ["step-000004"]


def test_a_damaged_checkpoint_starts_no_side_run(run: RunDirectory) -> None:
    (run.checkpoints / "step-000004" / "weights").write_bytes(b"x" * 100)
    with pytest.raises(CheckpointError, match="is damaged"):
        make_side_run(run, 1, "step-000004")
    assert not run.side_runs.exists()
