"""What a whole run will take, by an earlier one."""

from __future__ import annotations

from typing import Any

from fttui.engine.config.schema import (
    BudgetConfig,
    DataConfig,
    ModelConfig,
    PriceConfig,
    RunConfig,
    TrainConfig,
)
from fttui.tui.cli.preflight.expected import EarlierSpeed, expected_lines, kind_of, speed_of
from tests.support.session_double import Script


def config(steps: int | None = 1000, **more: Any) -> RunConfig:
    train = TrainConfig(steps=steps, epochs=None if steps else 1, batch=more.pop("batch", 1))
    return RunConfig(
        model=ModelConfig(id="m"), data=DataConfig(train="t"), train=train, **more
    )  # fmt: skip


def measured() -> EarlierSpeed:
    found = speed_of("old-1", Script().start().run().train(60).records)
    assert found is not None
    return found


def test_time_energy_and_money_of_a_whole_run() -> None:
    price = PriceConfig(kwh=0.3, currency="EUR")
    assert list(expected_lines(config(price=price), measured())) == [
        "whole run: about 1 h 20 m, 121 Wh, 0.036 EUR for 1,000 steps, by old-1 (4.8 s per step); "
        "evaluations and checkpoints are not included"
    ]


def test_a_budget_that_will_not_suffice_is_said_beforehand() -> None:
    lines = list(expected_lines(config(budget=BudgetConfig(hours=0.5)), measured()))
    assert lines[1:] == [
        "warning: budget.hours will be reached after about 375 of 1,000 steps, and the run stops"
    ]


def test_what_is_missing_is_said_where_a_price_or_a_budget_asks_for_it() -> None:
    asked = config(budget=BudgetConfig(hours=1))
    assert "no similar run" in next(expected_lines(asked, None))
    assert list(expected_lines(config(), None)) == []
    by_epochs = config(None, budget=BudgetConfig(hours=1))
    assert "train.steps is not given; 4.8 s" in next(expected_lines(by_epochs, measured()))


def test_runs_of_another_batch_are_of_another_kind() -> None:
    assert kind_of(config(batch=1)) != kind_of(config(batch=2))
    assert kind_of(config(5)) == kind_of(config(9))
    assert speed_of("old-1", Script().start().run().train(1).records) is None
