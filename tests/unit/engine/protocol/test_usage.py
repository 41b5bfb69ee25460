"""What a run has used: its sum over starts, its price, and its words."""

from __future__ import annotations

import pytest

from fttui.engine.protocol.events import (
    AnyEvent,
    LogEmitted,
    Record,
    RunStarted,
    StepFinished,
    UsageMeasured,
)
from fttui.engine.protocol.usage.amounts import Budget, Price, Usage
from fttui.engine.protocol.usage.cost import energy_text, energy_words, money_of, spent_of
from fttui.engine.run.journal_summary import summarize_records

HOUR = Usage(seconds=3600, device_s=7200, energy_j=3.6e6, unmetered_s=0)
EUR = Price(hour=2.0, kwh=0.5, currency="EUR")


def start(incarnation: int = 1, world_size: int = 1) -> RunStarted:
    return RunStarted(
        name="run", incarnation=incarnation, pid=1, host="lab", world_size=world_size, task="sft",
        model="m", total_steps=10, micro_batch_size=1, accumulation=1, price=EUR,
    )  # fmt: skip


def used(*timed: tuple[float, AnyEvent]) -> Usage:
    records = [
        Record(seq=n, time=time, step=0, timeline=1, event=event)
        for n, (time, event) in enumerate(timed, 1)
    ]
    return summarize_records(records).used


def test_unknown_energy_is_no_zero_and_known_energy_is_added() -> None:
    unknown = Usage(seconds=5, device_s=5, unmetered_s=5)
    assert unknown.plus(unknown).energy_j is None
    assert unknown.plus(HOUR).energy_j == 3.6e6
    assert unknown.scaled(2) == Usage(seconds=10, device_s=10, unmetered_s=10)
    assert HOUR.plus(unknown).since(unknown) == HOUR


def test_every_device_hour_and_every_kilowatt_hour_is_paid() -> None:
    money = money_of(HOUR, EUR)
    assert money is not None
    assert (money.amount, money.words) == (4.5, "4.50 EUR")
    assert money_of(HOUR, None) is None


def test_money_without_a_power_reading_says_that_a_part_is_missing_or_is_unknown() -> None:
    unread = Usage(seconds=3600, device_s=3600, unmetered_s=3600)
    only_hours = money_of(unread, EUR)
    assert only_hours is not None
    assert only_hours.words == "at least 2.00 EUR"
    assert money_of(unread, Price(kwh=0.5, currency="EUR")) is None
    assert energy_words(unread) == "energy unknown (no power reading)"
    assert energy_words(Usage(seconds=9, device_s=9, energy_j=3600, unmetered_s=3)) == (
        "at least 1 Wh"
    )


@pytest.mark.parametrize(
    ("joules", "text"),
    [(36, "0.01 Wh"), (3600 * 412, "412 Wh"), (3.6e6 * 1.24, "1.24 kWh"), (3.6e9, "1,000 kWh")],
)
def test_energies_have_three_digits(joules: float, text: str) -> None:
    assert energy_text(joules) == text


def test_the_share_of_each_limit() -> None:
    budget = Budget(hours=2, kwh=4, money=4.5)
    shares = {spent.key: spent.share for spent in spent_of(HOUR, EUR, budget)}
    assert shares == {"budget.hours": 0.5, "budget.kwh": 0.25, "budget.money": 1.0}
    unread = Usage(seconds=3600, device_s=3600, unmetered_s=3600)
    assert [s.key for s in spent_of(unread, None, budget)] == ["budget.hours"]


def test_a_later_start_goes_on_counting_and_the_time_between_two_does_not_count() -> None:
    step = StepFinished(loss=1.0, usage=Usage(seconds=100, device_s=200, energy_j=50.0))
    line = LogEmitted(level="info", text="still there")
    killed: list[tuple[float, AnyEvent]] = [(1000.0, start(1, 2)), (1100.0, step), (1130.0, line)]
    assert used(*killed).seconds == 130  # what was not measured before the kill counts, too
    assert used(*killed).unmetered_s == 60
    resumed = used(*killed, (9000.0, start(2)), (9000.0, start(2)), (9005.0, line))
    assert resumed == Usage(seconds=135, device_s=265, energy_j=50.0, unmetered_s=65)


def test_a_measurement_in_a_pause_counts() -> None:
    paused = UsageMeasured(usage=Usage(seconds=70, device_s=70, energy_j=9.0))
    assert used((0.0, start()), (70.0, paused)).energy_j == 9.0
