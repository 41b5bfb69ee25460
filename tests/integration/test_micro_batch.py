"""The micro-batch of a run with `train.sequences_per_update` changes rounding only."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fttui.engine.config.load import read_resolved
from fttui.engine.errors import TrainingFailed
from fttui.engine.protocol.commands import parse_command
from fttui.engine.protocol.events import CommandFailed, LogEmitted, RunStarted, StepFinished
from fttui.engine.run.control_log import ControlEntry, ControlWriter
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.trainers import memory_probe
from fttui.engine.train.trainers.divide import divide_further
from tests.support.played import Played
from tests.support.training import new_run, play

EXACT = {"adapter__dropout": 0, "train__accumulate": "null", "train__sequences_per_update": 8}
"""Settings without random numbers; the tiny run goes through its records twice."""


def run_in(folder: Path, task: str, batch: int, **sets: Any) -> RunDirectory:
    folder.mkdir()
    return new_run(folder, task, train__batch=batch, **EXACT, **sets)


def losses(played: Played) -> list[float]:
    return [event.loss_or_nan for event in played.events(StepFinished)]


def test_one_that_does_not_fit_when_it_is_tried_is_divided_with_the_same_losses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight sequences at once and four run out of memory; two are trained on.

    A command that an earlier process left is refused once, not each time the run is loaded.
    """
    single = play(run_in(tmp_path / "single", "sft", 1))
    measure = memory_probe.trial_step

    def limited(trainer: Any, batch: Any) -> memory_probe.Peak:
        if len(batch["input_ids"]) > 2:
            raise torch.OutOfMemoryError("out of memory")
        return measure(trainer, batch)

    monkeypatch.setattr(memory_probe, "may_try", lambda *_: True)
    monkeypatch.setattr(memory_probe, "trial_step", limited)
    run = run_in(tmp_path / "divided", "sft", 8)
    control = ControlWriter(run)
    note = ControlEntry(
        seq=1, time=0.0, id="left", command=parse_command("note late"), issuer="someone"
    )
    control.append(note)
    control.close()
    divided = play(run)
    assert [event.id for event in divided.events(CommandFailed)] == ["left"]
    train = read_resolved(run.config).train
    assert (train.batch, train.accumulation, train.sequences_per_update) == (2, 4, 8)
    assert losses(divided) == pytest.approx(losses(single), rel=1e-5)
    started = divided.events(RunStarted)[-1]
    assert (started.micro_batch_size, started.accumulation) == (2, 4)
    assert started.facts["micro-batch"].startswith("2 of 8 sequences per update; 4 at once did not")
    warned = [event.text for event in divided.events(LogEmitted) if event.level == "warning"]
    assert [text.partition(",")[0] for text in warned] == [
        "train.batch: 4 instead of 8",
        "train.batch: 2 instead of 4",
    ]


def test_a_full_disk_while_the_smaller_one_is_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_in(tmp_path / "full", "sft", 8)

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunDirectory, "write", refuse)
    started = SimpleNamespace()
    with pytest.raises(TrainingFailed, match=r"4 instead of 8, .*No space left on device; make"):
        divide_further(run, started, 4, SimpleNamespace())  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.parametrize(
    ("task", "sets"),
    [
        ("sft", {"contrastive__kind": "simctg"}),
        ("sft", {"data__packing": True, "data__max_length": 16}),
        ("dpo", {"preference__ce_weight": 0.5}),
        ("kto", {}),
        ("reward", {}),
        ("contrastive", {"contrastive__cross_accumulation": "on", "contrastive__ce_weight": 0.5}),
        ("contrastive", {"contrastive__kind": "cosine", "contrastive__score_range": "[0, 5]"}),
    ],
)
def test_the_losses_of_every_task_do_not_depend_on_it(
    tmp_path: Path, task: str, sets: dict[str, Any]
) -> None:
    found = [
        losses(play(run_in(tmp_path / str(batch), task, batch, **sets))) for batch in (1, 4, 8)
    ]
    assert len(found[0]) == 8
    for one in found[1:]:
        assert one == pytest.approx(found[0], rel=2e-5)
