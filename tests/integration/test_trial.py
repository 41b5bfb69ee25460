"""A trial step before a run leaves no trace in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fttui.engine.errors import ModelError
from fttui.engine.protocol.events import RunStarted
from fttui.engine.train import trial
from tests.support.training import new_run, play

SETS: dict[str, Any] = {"train__steps": 3, "train__warmup": 0, "checkpoint__every": 0}


@pytest.mark.parametrize("task", ["sft", "contrastive"])
def test_a_run_after_a_trial_is_the_same_to_the_last_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    paths = [tmp_path / name for name in ("plain", "tried")]
    for path in paths:
        path.mkdir()
    plain, tried = (new_run(path, task, **SETS) for path in paths)
    expected = play(plain)
    lengths: list[int] = []
    step = trial.trial_step

    def watched(trainer: Any, batch: Any) -> int:
        lengths.append(batch["input_ids"].shape[1])
        before = {n: p.detach().clone() for n, p in trainer.model.named_parameters()}
        moved: list[bool] = []
        update = trial._update

        def updated(trainer: Any) -> None:
            update(trainer)
            now = trainer.model.named_parameters()
            moved.append(any(not torch.equal(p, before[n]) for n, p in now))

        monkeypatch.setattr(trial, "_update", updated)
        found = step(trainer, batch)
        assert moved == [True], "it does train"
        return found

    monkeypatch.setattr(trial, "may_try", lambda *_: True)
    monkeypatch.setattr(trial, "trial_step", watched)
    got = play(tried)
    assert len(lengths) == 1
    assert lengths[0] >= 28, "the longest are tried"
    assert got.losses() == expected.losses()
    assert "measured" in got.events(RunStarted)[-1].facts["memory of a step"]


def test_what_does_not_fit_ends_with_the_changes_that_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: Any) -> int:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(trial, "may_try", lambda *_: True)
    monkeypatch.setattr(trial, "trial_step", exhausted)
    with pytest.raises(ModelError, match="the longest batch does not fit"):
        play(new_run(tmp_path, "sft", **SETS))
