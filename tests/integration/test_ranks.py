"""Two ranks judge and return as one, though only one of them sees what is wrong."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from fttui.engine.data.batches.batch_source import BatchSource
from fttui.engine.protocol.events import CommandApplied, RolledBack, StepFinished
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train import session
from fttui.engine.train.distributed.place import RankPlace
from fttui.engine.train.trainers import build as trainers_module
from fttui.engine.train.trainers.pairs import PairTrainer
from tests.support.ranks import in_ranks
from tests.support.training import Script, new_run, play, read_records

pytestmark = pytest.mark.timeout(300)
BAD = 9
"""Steps of data before the one that is bad, on rank 1 alone."""


def bad_data(patch: pytest.MonkeyPatch, rank: int) -> None:
    """The loss of some data is NaN; the data, not the step, so that passing them helps."""
    compute_loss, fetch = PairTrainer.compute_loss, BatchSource.fetch
    at = [0]

    def fetched(self: BatchSource, count: int) -> Any:
        at[0] = self.position // count
        return fetch(self, count)

    def poisoned(self: PairTrainer, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss: torch.Tensor = compute_loss(self, *args, **kwargs)
        # Only the value: the gradients of this rank would be fine.
        return loss - loss.detach() + math.nan if rank and at[0] == BAD else loss

    patch.setattr(BatchSource, "fetch", fetched)
    patch.setattr(PairTrainer, "compute_loss", poisoned)


def play_with_bad_data(place: RankPlace, run: RunDirectory, script: Script, out: Path) -> None:
    """Train as one rank and leave a hash of the adapter behind."""
    built = trainers_module.build_trainer
    trainers: list[Any] = []

    def build(*args: Any, **named: Any) -> Any:
        trainers.append(built(*args, **named))
        return trainers[-1]

    with pytest.MonkeyPatch.context() as patch:
        bad_data(patch, place.rank)
        patch.setattr(session, "build_trainer", build)
        play(run, script, place=place)
    state = hashlib.sha256()
    for name, tensor in sorted(trainers[0].model.state_dict().items()):
        if "lora" in name:
            state.update(tensor.detach().numpy().tobytes())
    out.with_suffix(f".{place.rank}").write_text(state.hexdigest())


def test_a_loss_that_is_bad_on_one_rank_is_refused_and_recovered_from_on_both(
    tmp_path: Path,
) -> None:
    run = new_run(tmp_path, train__steps=16, train__batch=2, train__devices=2)
    script, out = Script({BAD + 1: ["recover"]}), tmp_path / "adapter"
    assert in_ranks(2, play_with_bad_data, run, script, out) == [0, 0]
    assert out.with_suffix(".0").read_text() == out.with_suffix(".1").read_text()
    events = [record.event for record in read_records(run)]
    steps = [event for event in events if isinstance(event, StepFinished)]
    assert [math.isfinite(step.loss_or_nan) for step in steps].count(False) == 1
    assert [step.skipped for step in steps].index(True) == BAD
    assert all(len(step.rank_s) == 2 and min(step.rank_s) > 0 for step in steps)
    (back,) = [event for event in events if isinstance(event, RolledBack)]
    assert (back.from_step, back.to_step, back.skipped_batches) == (BAD + 1, 8, 22)
    assert [event.command for event in events if isinstance(event, CommandApplied)] == ["recover"]
    assert not any(step.skipped for step in steps[BAD + 1 :])
