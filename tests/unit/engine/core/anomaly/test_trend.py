"""A divergence is a level that stays above the best one, further than the run's own lifts."""

from __future__ import annotations

import pytest

from fttui.engine.core.anomaly.trend import FAST_RECORDS, LEAST_LIFT, Lift, Trend

SD, CHANCE = 0.05, 1e-4


def settled() -> Trend:
    """A loss at 0 for long."""
    trend = Trend()
    for _ in range(200):
        assert trend.update(0.0, SD, CHANCE, 1.0) is None
    return trend


def lifts(trend: Trend, values: list[float]) -> list[Lift]:
    """The lifts that are found in values."""
    found = (trend.update(x, SD, CHANCE, 1.0) for x in values)
    return [lift for lift in found if lift is not None]


@pytest.mark.parametrize(("records", "found"), [(10, False), (12, False), (13, True), (30, True)])
def test_a_lift_counts_once_it_has_lasted(records: int, found: bool) -> None:
    assert bool(lifts(settled(), [1.0] * records)) == found


def test_a_lift_that_lasts_is_told_once() -> None:
    (lift,) = lifts(settled(), [1.0] * 60)
    assert (lift.size, lift.level, lift.sd) == (1.0, 0.0, SD)


@pytest.mark.parametrize(("share", "found"), [(0.95, False), (1.3, True)])
def test_a_smaller_lift_is_none_in_the_calmest_run(share: float, found: bool) -> None:
    assert bool(lifts(settled(), [share * LEAST_LIFT] * FAST_RECORDS)) == found


@pytest.mark.parametrize("size", [0.3, 0.5])
def test_every_lift_after_a_return_is_told_until_lifts_are_a_habit(size: float) -> None:
    trend = settled()
    habit = [size] * FAST_RECORDS + [0.0] * 60
    counts = [len(lifts(trend, habit)) for _ in range(14)]
    assert counts[:4] == [1, 1, 1, 1]
    assert counts[-2:] == [0, 0]


@pytest.mark.parametrize("size", [0.8, 1.0, 1.2])
def test_a_later_lift_need_not_exceed_the_earlier_ones(size: float) -> None:
    trend = settled()
    for huge in (1.0, 9.0, 5.0):
        assert lifts(trend, [huge] * FAST_RECORDS + [0.0] * 200)
    assert lifts(trend, [size] * FAST_RECORDS)


def test_nothing_is_judged_before_there_is_a_level() -> None:
    trend = Trend()
    assert lifts(trend, [0.0] * 4 + [5.0] * 11) == []
