"""The losses of single rows, computed by the real loop, are parts of the loss of their step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from fttui.engine.data.batches.batch_source import BatchSource
from fttui.engine.data.tokens.examples import Example
from fttui.engine.protocol.events import StepFinished
from fttui.engine.train import session
from fttui.engine.train.monitoring.step_rows import NoRowLosses, RowLoss, records
from fttui.engine.train.objectives.row_losses import RowLossComputer
from tests.support.training import Script, new_run, play

TASKS: dict[str, dict[str, Any]] = {
    "sft": {},
    "packed": {"data__packing": "true"},
    "simctg": {"contrastive__kind": "simctg"},
    "contrastive": {"train__accumulate": 1},
    "cross accumulation": {"task": "contrastive", "contrastive__cross_accumulation": "on"},
    "dpo": {"preference__ce_weight": 0.5},
    "kto": {},
    "reward": {},
    "orpo": {"task": "dpo", "preference__loss": "orpo"},
}


class Watched:
    """The computer of a run, its data, and what they gave at the end of step 2."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.source: BatchSource | None = None
        self.computer: RowLossComputer | None = None
        self.rows: Sequence[RowLoss] = ()
        self.unchanged = False
        fetch, outer = BatchSource.fetch, self

        def fetched(source: BatchSource, count: int) -> Any:
            outer.source = source
            return fetch(source, count)

        class Kept(RowLossComputer):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args)
                outer.computer = self

        monkeypatch.setattr(BatchSource, "fetch", fetched)
        monkeypatch.setattr(session, "RowLossComputer", Kept)

    def compute(self) -> None:
        assert self.source is not None
        assert self.computer is not None
        found: list[Example] = records(self.source.current)
        before = torch.get_rng_state(), self.computer._trainer.model.training
        self.rows = self.computer(found)
        assert len(self.rows) == len(found)
        after = torch.get_rng_state(), self.computer._trainer.model.training
        self.unchanged = torch.equal(before[0], after[0]) and before[1] == after[1]


@pytest.mark.parametrize(
    "name", ["sft", *(pytest.param(n, marks=pytest.mark.long) for n in TASKS if n != "sft")]
)
def test_rows_average_to_the_loss_of_their_step_and_leave_no_trace(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(monkeypatch)
    more = {"task": name, **TASKS[name]}
    more["task"] = "sft" if more["task"] in ("packed", "simctg") else more["task"]
    still = {"train__lr": 1e-9, "adapter__dropout": 0, "train__steps": 3, "train__accumulate": 2}
    run = new_run(tmp_path, **{**still, **more})
    calls: dict[int, Callable[[], None]] = {2: watched.compute}
    played = play(run, Script(calls=calls))
    loss = played.events(StepFinished)[1].loss
    total = sum(row.weight for row in watched.rows)
    mean = sum(row.loss * row.weight for row in watched.rows) / total
    near = (
        0.1
        if name in ("simctg", "contrastive", "cross accumulation", "dpo", "kto", "orpo", "reward")
        else 1e-4
    )
    assert mean == pytest.approx(loss, rel=near), "means over tokens are taken within a row"
    assert len({row.loss for row in watched.rows}) > 1
    assert watched.unchanged


@pytest.mark.long
@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"contrastive__kind": "cosent", "contrastive__temperature": 0.05}, "compares all pairs"),
        ({"task": "dpo", "preference__loss": "aot"}, "sort all pairs"),
    ],
)
def test_a_loss_over_all_pairs_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], why: str
) -> None:
    watched = Watched(monkeypatch)

    def compute() -> None:
        with pytest.raises(NoRowLosses, match=why):
            watched.compute()

    play(new_run(tmp_path, train__steps=2, **more), Script(calls={1: compute}))
