from __future__ import annotations

import math

import pytest

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


def test_metrics_belong_to_their_step_and_a_step_is_judged_once() -> None:
    judgement = ModelSelection()
    assert judgement.push(5, {"loss": 1.0})
    assert not judgement.push(5, {"loss": 1.0})
    assert judgement.at(5) == {"loss": 1.0}
    assert judgement.at(6) == {}
    judgement.best.push("loss", 5, 1.0)
    assert judgement.is_best(5)
    judgement.push(9, {"loss": 2.0})
    assert not judgement.is_best(9)
    assert not judgement.is_best(5)


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
