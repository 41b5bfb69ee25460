"""Evaluations on the way decide which checkpoint stays and when a run ends."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fttui.engine.protocol.events import CommandApplied, EvalFinished, LogEmitted, StepFinished
from fttui.engine.protocol.states import RunState
from fttui.engine.run.checkpoint_store import CheckpointStore
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.control.controlled_trainer import EvalResult
from fttui.engine.train.objectives.evaluator import Evaluator
from fttui.engine.train.signals import StopSignals
from tests.support.matrix import in_part
from tests.support.ranks import in_ranks
from tests.support.training import Played, Script, new_run, play, read_records


def measured(monkeypatch: pytest.MonkeyPatch, metric: str, values: dict[int, float]) -> None:
    """Let an evaluation find a metric as given by step."""

    def evaluate(self: Any, interrupted: Any) -> EvalResult:
        value = values[self._trainer.state.global_step]
        return EvalResult({"loss": 1.0, metric: value}, 0.0)

    monkeypatch.setattr(Evaluator, "evaluate", evaluate)


def test_the_best_checkpoint_stays_whenever_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(
        monkeypatch,
        "mrr",
        {0: 0.1, 1: 0.2, 2: 0.15, 3: 0.9, 4: 0.3, 5: 0.8, 6: 0.1, 7: 0.5, 8: 0.2},
    )
    sets: dict[str, Any] = {"checkpoint__best": "mrr", "checkpoint__keep": 1, "eval__every": 1}
    run = new_run(tmp_path, checkpoint__every=4, **sets)
    play(run)
    kept = {manifest.step: manifest.metrics.get("mrr") for manifest in CheckpointStore(run).all()}
    assert kept == {3: 0.9, 8: 0.2}


def test_a_run_that_no_longer_improves_ends_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(monkeypatch, "mrr", {step: -abs(step - 2) for step in range(9)})
    stop = "{metric: mrr, patience: 2}"
    run = new_run(tmp_path, eval__every=1, train__early_stop=stop)
    played = play(run)
    assert played.outcome.state is RunState.STOPPED
    (applied,) = played.events(CommandApplied)
    assert (applied.command, applied.issuer) == ("stop", "early stop")
    assert "mrr has not improved for 2 evaluations (best 0 at step 2)" in applied.reason
    assert len(played.events(StepFinished)) == 4
    assert CheckpointStore(run).all()[-1].step == 4


def test_going_back_forgets_the_evaluations_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(monkeypatch, "mrr", dict.fromkeys(range(9), 1.0) | {1: 2.0})
    stop = "{metric: mrr, patience: 6}"
    run = new_run(tmp_path, eval__every=1, train__early_stop=stop)
    played = play(run, Script({6: ["rollback 4"]}))
    assert [step for step, _ in played.at(StepFinished)] == [1, 2, 3, 4, 5, 6, 5, 6, 7]


def stop_early(place: Any, run: Any) -> None:
    play(run, place=place)


def test_two_ranks_end_at_the_same_step(tmp_path: Path) -> None:
    stop = "{metric: loss, patience: 1, min_delta: 100}"
    run = new_run(tmp_path, eval__every=2, train__early_stop=stop, train__devices=2)
    assert in_ranks(2, stop_early, run) == [0, 0]
    assert CheckpointStore(run).all()[-1].step == 4


def _signal_one_rank(place: Any, straight: RunDirectory, run: RunDirectory) -> None:
    """The last rank alone gets a stop signal in the second batch of the evaluation at step 4."""
    play(straight, place=place)
    signals = StopSignals(launched=False)
    evaluator: Any = Evaluator
    batches, numbers = evaluator._batches, itertools.count(1)

    def counted(self: Any, *given: Any) -> Iterator[Any]:
        for batch in batches(self, *given):
            if self._trainer.state.global_step == 4 and next(numbers) == 2:
                signals.count += place.rank == place.world_size - 1
            yield batch

    evaluator._batches = counted  # of this process alone
    play(run, place=place, signals=signals)
    evaluator._batches = batches
    play(run, resume="last", place=place)


@pytest.mark.parametrize(
    ("ranks", "last"), in_part([(1, True), (2, False)], [(2, False)]), ids=["last", "on the way"]
)
def test_a_stop_interrupts_an_evaluation_on_all_ranks_and_it_is_made_up_for(
    tmp_path: Path, ranks: int, last: bool
) -> None:
    sets: dict[str, Any] = {"train__batch": 2, "train__steps": 4 if last else 6, "eval__batch": 1}
    runs = []
    for name in ("straight", "stopped"):
        (tmp_path / name).mkdir()
        runs.append(new_run(tmp_path / name, eval__every=4, train__devices=ranks, **sets))
    assert in_ranks(ranks, _signal_one_rank, *runs) == [0] * ranks
    straight, stopped = (Played(run, None, read_records(run)) for run in runs)  # type: ignore[arg-type]  # ended
    (said,) = [e.text for e in stopped.events(LogEmitted) if "interrupted" in e.text]
    assert re.search(r"after [23] of \d+ batches", said)
    names = [m.name for m in CheckpointStore(stopped.run).all()]
    assert names[-2:] == ["step-000004", "step-000004.2" if last else "step-000006"]
    assert stopped.losses() == straight.losses()
    found, expected = ([(s, e.metrics) for s, e in p.at(EvalFinished)] for p in (stopped, straight))
    assert found == expected


def test_what_a_text_run_measures(tmp_path: Path) -> None:
    played = play(new_run(tmp_path, "sft", train__steps=2))
    (event,) = played.events(EvalFinished)
    assert set(event.metrics) == {"loss", "perplexity"}
