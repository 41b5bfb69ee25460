from __future__ import annotations

from pathlib import Path

import pytest

from fttui.engine.hub.unknown_names import why_unknown
from fttui.engine.protocol.command_args import existing
from fttui.engine.protocol.commands import (
    AnyCommand,
    AverageCheckpoints,
    FindCulprits,
    Pause,
    Recover,
    Rollback,
)
from fttui.engine.run.checkpoint_store import CheckpointStore, Manifest, checkpoint_name
from fttui.engine.run.run_dir import RunDirectory

SPIKES = ("spike-41", "grad_explosion-41", "spike-64-t2")


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    run = RunDirectory(tmp_path)
    run.checkpoints.mkdir()
    found = CheckpointStore(run)
    for step in range(10, 200, 10):
        name = checkpoint_name(step, 1)
        found.path(name).mkdir()
        found.commit(
            Manifest(
                name=name, step=step, timeline=1, time=step, world_size=1, incarnation=1, files={}
            )
        )
    return found


@pytest.mark.parametrize(
    "command",
    [
        Rollback(checkpoint="20"),
        Rollback(checkpoint="last"),
        Rollback(checkpoint=checkpoint_name(190, 1)),
        Recover(),
        Recover(anomaly="spike-41"),
        FindCulprits(),
        FindCulprits(anomaly="spike-64-t2"),
        AverageCheckpoints(last=30),
        AverageCheckpoints(checkpoints=("20", checkpoint_name(190, 1))),
        Pause(),
    ],
)
def test_a_command_that_names_what_the_run_has_is_not_refused(
    store: CheckpointStore, command: AnyCommand
) -> None:
    assert why_unknown(command, store, SPIKES) is None


def test_a_checkpoint_that_the_run_lacks_is_refused_with_the_nearest(
    store: CheckpointStore,
) -> None:
    reason = why_unknown(Rollback(checkpoint="97"), store, SPIKES) or ""
    assert "no complete checkpoint '97'; nearest of 19 checkpoints: " in reason
    near = [checkpoint_name(step, 1) for step in (80, 90, 100, 110)]
    assert reason.endswith(", ".join(near))
    assert why_unknown(AverageCheckpoints(checkpoints=("20", "97")), store, SPIKES) == reason


@pytest.mark.parametrize("command", [Recover(anomaly="spike-64"), FindCulprits(anomaly="spke-64")])
def test_an_anomaly_that_the_run_lacks_is_refused_with_the_existing(
    store: CheckpointStore, command: Recover
) -> None:
    reason = why_unknown(command, store, SPIKES) or ""
    assert reason.startswith(f"no anomaly '{command.anomaly}'; existing anomalies: spike-41, ")


def test_without_any_checkpoint_none_is_listed(tmp_path: Path) -> None:
    reason = why_unknown(Rollback(checkpoint="last"), CheckpointStore(RunDirectory(tmp_path)), ())
    assert reason == "no complete checkpoint 'last'; existing checkpoints: none yet"


def test_of_many_names_without_numbers_the_most_similar_are_listed() -> None:
    names = ["best", "final", "before-the-change", "after", "keep", "warm", "cold", "first", "bset"]
    found = existing("before-change", names, "checkpoints")
    assert "nearest of 9 checkpoints: " in found
    assert "before-the-change" in found
