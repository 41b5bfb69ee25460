from __future__ import annotations

import math

import pytest

from fttui.engine.config.schema import EarlyStopConfig
from fttui.engine.core.model_selection import BestMetric, ModelSelection, describe_stop, is_better


def test_what_is_better_depends_on_the_metric() -> None:
    assert is_better("loss", 1.0, 2.0)
    assert not is_better("mrr", 1.0, 2.0)
    assert is_better("mrr", 2.0, 1.0)
    assert not is_better("loss", 1.0, 1.1, by=0.2)
    assert not is_better("loss", math.nan, 1.0)


def test_a_record_counts_the_evaluations_since_the_best() -> None:
    record = BestMetric()
    values = [math.nan, 2.0, 1.5, 1.45, math.nan, 1.0]
    improved = [record.push("loss", 10 * n, v, by=0.1) for n, v in enumerate(values)]
    assert improved == [False, True, True, False, False, True]
    assert (record.value, record.step, record.waited) == (1.0, 50, 0)


def selection(
    best: str | None = "loss", patience: int = 2, min_delta: float = 0.0
) -> ModelSelection:
    return ModelSelection(best, EarlyStopConfig(patience=patience, min_delta=min_delta))


def test_metrics_belong_to_their_step() -> None:
    found = selection()
    assert (found.metrics_at(5), found.metrics_at(-1), found.is_best(-1)) == ({}, {}, False)
    found.evaluated(5, {"loss": 1.0, "mrr": 0.5})
    assert found.metrics_at(5) == {"loss": 1.0, "mrr": 0.5}
    assert found.metrics_at(6) == {}


def test_only_the_last_evaluation_can_be_the_best() -> None:
    found = selection()
    found.evaluated(5, {"loss": 1.0})
    assert found.is_best(5)
    assert not found.is_best(6)
    found.evaluated(9, {"loss": 2.0})
    assert not found.is_best(5)
    assert not found.is_best(9)
    found.evaluated(12, {"loss": 0.5})
    assert found.is_best(12)


def test_the_best_checkpoint_goes_by_the_configured_metric() -> None:
    found = selection(best="mrr")
    found.evaluated(1, {"loss": 1.0, "mrr": 0.2})
    found.evaluated(2, {"loss": 2.0, "mrr": 0.3})
    assert found.is_best(2)
    found.evaluated(3, {"loss": 0.5})
    assert found.state.judgement.best == BestMetric(value=0.3, step=2)
    without = selection(best=None)
    without.evaluated(1, {"loss": 1.0})
    assert not without.is_best(1)


def test_evaluation_losses_are_kept_for_the_checkpoint() -> None:
    found = selection()
    assert (found.state.eval_loss, found.state.best_eval_loss) == (None, None)
    for step, loss in enumerate((2.0, 1.0, 1.5)):
        found.evaluated(step, {"loss": loss})
    assert (found.state.eval_loss, found.state.best_eval_loss) == (1.5, 1.0)


@pytest.mark.parametrize("saved", [None, math.nan])
def test_an_evaluation_loss_that_is_not_finite_is_never_the_lowest(saved: float | None) -> None:
    found = selection()
    found.state.best_eval_loss = saved
    for step, loss in enumerate((math.nan, -math.inf, 2.0, 1.0, math.nan)):
        found.evaluated(step, {"loss": loss})
    assert found.state.best_eval_loss == 1.0


def test_early_stopping_waits_for_its_patience() -> None:
    found = selection(patience=2, min_delta=0.1)
    reasons = []
    for step, loss in enumerate((1.0, 0.95, 0.9, 0.89)):
        found.evaluated(step, {"loss": loss})
        reasons.append(found.reason_to_stop())
    assert reasons[:2] == [None, None]
    missed = "loss has not improved by more than 0.1 for 2 evaluations"
    assert reasons[2] == f"{missed} (best 1 at step 0)"
    assert ModelSelection("loss", None).reason_to_stop() is None


def test_a_metric_that_was_not_measured_is_not_waited_for() -> None:
    found = ModelSelection("loss", EarlyStopConfig(metric="mrr", patience=1))
    found.evaluated(1, {"loss": 1.0})
    found.evaluated(2, {"loss": 1.0})
    assert found.reason_to_stop() is None


def test_an_evaluation_repeated_at_a_step_counts_once() -> None:
    found = selection(patience=1)
    found.evaluated(1, {"loss": 1.0})
    found.evaluated(1, {"loss": 2.0})
    assert found.reason_to_stop() is None
    assert found.metrics_at(1) == {"loss": 2.0}
    assert found.state.eval_loss == 2.0


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (BestMetric(value=0.5, step=40, waited=3), "mrr has not improved for 3 evaluations"),
        (BestMetric(waited=1), "for 1 evaluation (best no finite value)"),
    ],
)
def test_the_reason_names_metric_patience_and_best(record: BestMetric, text: str) -> None:
    assert text in describe_stop("mrr", record, 0.0)
    assert "by more than 0.1" in describe_stop("mrr", record, 0.1)


def test_benchmarks_end_a_run_that_does_not_improve() -> None:
    rule = EarlyStopConfig(metric="bench.words.acc", patience=2)
    found = ModelSelection("bench.words.acc", rule)
    for step, value in ((2, 0.5), (4, 0.6), (6, 0.6)):
        found.benchmarked(step, {"bench.words.acc": value, "bench.words.f1": 1.0})
        found.evaluated(step, {"loss": 1.0})
    assert found.reason_to_stop() is None
    assert not found.is_best(6)
    found.benchmarked(8, {"bench.words.acc": 0.4})
    assert found.reason_to_stop() == (
        "bench.words.acc has not improved for 2 evaluations (best 0.6 at step 4)"
    )
