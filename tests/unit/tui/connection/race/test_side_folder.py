"""The folders of side runs: what they share with the run, and that nothing of them is left."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fttui.engine.config.load import load_config, parse_resolved
from fttui.engine.errors import CheckpointError, FttuiError
from fttui.engine.run.checkpoint_store import CheckpointStore, Manifest, seal_files
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.run.run_index import list_runs
from fttui.tui.connection.race.side_curves import curves_file, keep_curves, read_curves
from fttui.tui.connection.race.side_folder import (
    copy_checkpoint,
    make_side_run,
    remove_side_runs,
    side_config,
    side_run,
)
from fttui.tui.view_model.race import side_curve
from fttui.tui.view_model.race.race_state import RaceState, VariantState
from fttui.tui.view_model.race.side_curve import branch_of
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


def raced() -> RaceState:
    state = RaceState(words=["lr=1e-4,2e-4"], steps=3, by="eval.loss", base_step=4)
    state.variants = [
        VariantState(step=7, losses={5: 2.0, 6: 1.5, 7: 1.25}, evaluations={7: {"loss": 1.0}}),
        VariantState(step=7, losses={5: 2.0, 6: 1.75, 7: 1.5}),
    ]
    return state


def test_the_curves_of_the_others_are_kept(run: RunDirectory) -> None:
    assert read_curves(run) == []
    for _ in range(2):
        assert keep_curves(run, raced(), 1) == 0
    (curve,) = read_curves(run)
    assert (curve.label, curve.start) == ("lr 1e-4", 4)
    branch = branch_of(curve)
    assert branch.curves["loss"].ys.tolist() == [2.0, 1.5, 1.25]
    assert branch.curves["eval.loss"].last == (7.0, 1.0)
    assert branch.curves["loss~0.98"].xs.tolist() == [5, 6, 7]
    joined = branch_of(curve, lambda name, step: 4.0 if (name, step) == ("loss~0.9", 4) else None)
    assert joined.curves["loss~0.9"].ys[0] == pytest.approx(0.9 * 4.0 + 0.1 * 2.0)
    keep_curves(run, raced(), None)
    assert len(read_curves(run)) == 2


def test_the_oldest_curves_are_dropped_and_counted(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fttui.tui.connection.race.side_curves.MOST_CURVES", 1)
    assert side_curve.MOST_CURVES > 64  # those of one race fit
    assert keep_curves(run, raced(), None) == 1
    assert [one.label for one in read_curves(run)] == ["lr 2e-4"]


def test_a_damaged_file_of_curves_says_what_to_do(run: RunDirectory) -> None:
    run.write(curves_file(run), msgspec.json.encode({"a": 1}))
    with pytest.raises(FttuiError, match="remove the file to do without them"):
        read_curves(run)
