"""The meter of a run over its ranks, and the budget that it keeps."""

from __future__ import annotations

from typing import Any

import pytest

from fttui.engine.config.checks.budget import BudgetUsedUp, require_budget_left
from fttui.engine.config.schema import (
    BudgetConfig,
    DataConfig,
    ModelConfig,
    PriceConfig,
    RunConfig,
    TrainConfig,
)
from fttui.engine.errors import ConfigError
from fttui.engine.protocol.events import AnyEvent, LogEmitted, UsageMeasured
from fttui.engine.protocol.usage.amounts import Budget, Usage
from fttui.engine.telemetry.gpu import MeteredEnergy
from fttui.engine.train.distributed.agreement import SingleRank
from fttui.engine.train.event_log import EventLog
from fttui.engine.train.usage.budget import MEASURE_EVERY, RunMeter, require_power
from fttui.engine.train.usage.meter import RankUse, UsageMeter


class Card:
    def __init__(self, *, reads_power: bool = True) -> None:
        self.energy = MeteredEnergy(500.0, 8.0)
        self.reads_power = reads_power


class Two(SingleRank):
    """Rank 0 of two; the other one has used what is given."""

    def __init__(self, *other: float) -> None:
        self._other = list(other)

    def rows(self, values: list[float]) -> list[list[float]]:
        return [values, self._other]


BEFORE = Usage(seconds=100, device_s=100, energy_j=1000.0, unmetered_s=5)


def config(**budget: Any) -> RunConfig:
    return RunConfig(
        model=ModelConfig(id="m"), data=DataConfig(train="t"), train=TrainConfig(steps=1),
        price=PriceConfig(kwh=0.5, currency="EUR"), budget=BudgetConfig(**budget),
    )  # fmt: skip


def test_all_ranks_and_all_starts_are_added_up() -> None:
    meter = UsageMeter(Two(9.0, 300.0, 6.0), BEFORE, 0.0, Card(), clock=lambda: 10.0)
    assert meter.measure() == Usage(seconds=110, device_s=119, energy_j=1800.0, unmetered_s=10)


def test_without_a_power_reading_the_energy_is_unknown() -> None:
    meter = UsageMeter(SingleRank(), Usage(), 0.0, clock=lambda: 10.0)
    assert meter.measure() == Usage(seconds=10, device_s=10, unmetered_s=10)


def scene(budget: Budget) -> tuple[RunMeter, list[AnyEvent], list[str]]:
    events: list[AnyEvent] = []
    stops: list[str] = []
    log = EventLog(None)
    log.listen(events.append)
    meter = UsageMeter(SingleRank(), Usage(), 0.0, clock=lambda: 3600.0)
    return RunMeter(meter, log, None, budget, "tiny-1", stops.append), events, stops


def lines(events: list[AnyEvent]) -> list[str]:
    return [event.text for event in events if isinstance(event, LogEmitted)]


def test_a_budget_warns_once_at_90_percent_and_stops_at_its_end() -> None:
    meter, events, stops = scene(Budget(hours=2))
    for hours in (1.79, 1.81, 1.9, 2.0, 2.01):
        meter.check(Usage(seconds=3600 * hours))
    assert lines(events) == [
        "90 % of the budget is used: 1.81 of 2 h (budget.hours); at 100 % the run saves and stops",
        "the budget is used up: 2 of 2 h (budget.hours); the run saves a checkpoint and stops; "
        "raise it to continue: fttui run --resume tiny-1 --set budget.hours=3",
    ]
    assert stops == ["budget.hours is used up: 2 of 2 h", "budget.hours is used up: 2.01 of 2 h"]


def test_a_paused_run_is_measured_and_its_budget_is_kept() -> None:
    meter, events, stops = scene(Budget(hours=1))
    for _ in range(MEASURE_EVERY - 1):
        meter.while_held()
    assert not events
    assert not stops
    meter.while_held()
    assert [event.usage.seconds for event in events if isinstance(event, UsageMeasured)] == [3600]
    assert stops == ["budget.hours is used up: 1 of 1 h"]


def test_a_run_goes_on_with_what_is_left_of_its_budget_only() -> None:
    require_budget_left(config(hours=2), Usage(seconds=7000), "resume")
    with pytest.raises(
        BudgetUsedUp, match=r"2 of 2 h .*; raise it to continue: resume --set budget\.hours=3"
    ):
        require_budget_left(config(hours=2), Usage(seconds=7200), "resume")


@pytest.mark.parametrize(("budget", "refused"), [({"kwh": 1}, True), ({"money": 1}, True),
                                                 ({"hours": 1}, False)])  # fmt: skip
def test_a_limit_of_energy_needs_a_power_reading_on_every_rank(
    budget: dict[str, float], refused: bool
) -> None:
    blind = UsageMeter(SingleRank(), Usage(), 0.0, Card(reads_power=False))
    require_power(config(**budget), UsageMeter(SingleRank(), Usage(), 0.0, Card()))
    if refused:
        with pytest.raises(ConfigError, match="power of one of the run's GPUs cannot be read"):
            require_power(config(**budget), blind)
    else:
        require_power(config(**budget), blind)


def test_the_use_of_a_rank_has_its_energy() -> None:
    meter = UsageMeter(SingleRank(), Usage(), 4.0, Card(), clock=lambda: 10.0)
    assert meter.own == RankUse(6.0, 500.0, 8.0)
