"""Watched trainers of real libraries: untouched without commands, exact after a rollback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fttui.engine.protocol.events import (
    CommandFailed,
    LogEmitted,
    RolledBack,
    RunEnded,
    StepFinished,
)
from fttui.engine.protocol.states import RunState
from tests.support.foreign import (
    BUILDERS,
    TIMINGS,
    Trained,
    grpo,
    plain,
    play_watched,
    rloo,
    train_alone,
)
from tests.support.matrix import in_part
from tests.support.training import Script

REPRESENTATIVE = ["DPO"]
"""The plain Trainer rolls back in the test of a resumed script."""
BACK_AND_FORTH = {4: ["checkpoint"], 5: ["rollback 4"], 11: ["rollback 4"], 13: ["rollback 0"]}
"""Rollbacks within an epoch, across one, and to the start."""


def last_of_each_step(logged: list[dict[str, float]]) -> dict[float, dict[str, float]]:
    return {entry["step"]: entry for entry in logged}


def history(trained: Trained) -> list[dict[str, float]]:
    """What the trainer has kept of its log, but for times and the summary of the training."""
    kept = trained.trainer.state.log_history[:-1]
    return [{k: v for k, v in entry.items() if not k.endswith(TIMINGS)} for entry in kept]


def complaints(trained: Trained) -> list[Any]:
    assert trained.played is not None
    failed = trained.played.events(CommandFailed)
    errors = [e for e in trained.played.events(LogEmitted) if e.level in ("error", "warning")]
    return [*failed, *errors]


@pytest.mark.slow
@pytest.mark.parametrize("name", in_part(BUILDERS, REPRESENTATIVE))
def test_a_rolled_back_run_ends_like_an_uninterrupted_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = train_alone(BUILDERS[name], tmp_path / "alone")
    watched = play_watched(
        BUILDERS[name], tmp_path / "watched", monkeypatch, Script(dict(BACK_AND_FORTH))
    )
    assert watched.played is not None
    assert complaints(watched) == []
    back = watched.played.events(RolledBack)
    assert [(one.from_step, one.to_step) for one in back] == [(5, 4), (11, 4), (13, 0)]
    assert last_of_each_step(watched.logged) == last_of_each_step(alone.logged)
    assert torch.equal(watched.weights, alone.weights)
    assert history(watched) == history(alone)
    (ended,) = watched.played.events(RunEnded)
    assert ended.state is RunState.FINISHED


@pytest.mark.slow
def test_a_training_that_the_script_resumes_rolls_back_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def saving(folder: Path) -> Any:
        return plain(folder, save_strategy="steps", save_steps=8)

    train_alone(saving, tmp_path / "first")
    saved = str(tmp_path / "first" / "out" / "checkpoint-8")
    alone = train_alone(BUILDERS["Trainer"], tmp_path / "alone", resume=saved)
    script = Script({10: ["rollback 8"], 14: ["rollback 8"]})
    watched = play_watched(BUILDERS["Trainer"], tmp_path / "back", monkeypatch, script, saved)
    assert complaints(watched) == []
    assert watched.played is not None
    assert len(watched.played.events(RolledBack)) == 2
    assert torch.equal(watched.weights, alone.weights)
    assert last_of_each_step(watched.logged) == last_of_each_step(alone.logged)


WITHIN_A_GENERATION = {5: ["checkpoint"], 6: ["rollback 5"], 10: ["rollback 5"], 12: ["rollback 0"]}
"""What is generated at once serves two steps: step 5 uses one half of it, and step 6 the other."""


def without_times(entry: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in entry.items() if name != "step_time"}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("make", [grpo, rloo])
def test_what_was_generated_is_trained_again_after_a_rollback(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = train_alone(make, tmp_path / "alone")
    script = Script(dict(WITHIN_A_GENERATION))
    watched = play_watched(make, tmp_path / "watched", monkeypatch, script)
    assert watched.played is not None
    assert complaints(watched) == []
    back = watched.played.events(RolledBack)
    assert [(one.from_step, one.to_step) for one in back] == [(6, 5), (10, 5), (12, 0)]
    assert all(step.tokens > 0 for step in watched.played.events(StepFinished))
    again, once = last_of_each_step(watched.logged), last_of_each_step(alone.logged)
    assert {step: without_times(entry) for step, entry in again.items()} == {
        step: without_times(entry) for step, entry in once.items()
    }
    assert torch.equal(watched.weights, alone.weights)
