"""A divergence begins where the recent level is above the best one and above all but outliers."""

from __future__ import annotations

import pytest

from fttui.engine.core.anomaly.trend import FAST_RECORDS, SLOW_RECORDS, Lift, Trend

SD = 0.01


def settled(top: float) -> Trend:
    """A loss at 0 for long, with two records at `top` among the last forty."""
    trend = Trend()
    for n in range(120):
        assert trend.update(top if n in (100, 105) else 0.0, SD, 1.0) is None
    return trend


def lift_at(trend: Trend, value: float) -> Lift | None:
    """The lift that is found while the loss stays at a value."""
    found = [trend.update(value, SD, 1.0) for _ in range(FAST_RECORDS)]
    lifts = [lift for lift in found if lift is not None]
    return lifts[0] if lifts else None


@pytest.mark.parametrize(("value", "found"), [(0.9, False), (1.0, False), (1.1, True)])
def test_a_level_that_single_records_had_before_is_no_divergence(value: float, found: bool) -> None:
    lift = lift_at(settled(top=1.0), value)
    assert (lift is not None) == found
    if lift is not None:
        assert lift.size == pytest.approx(1.1)
        assert (lift.level, lift.sd) == (0.0, SD)


def test_a_rise_counts_from_eight_standard_deviations_on() -> None:
    assert lift_at(settled(top=0.0), 7.9 * SD) is None
    assert lift_at(settled(top=0.0), 8.1 * SD) is not None


def test_a_strict_detector_wants_more() -> None:
    trend = settled(top=0.0)
    found = [trend.update(8.1 * SD, SD, 2.0) for _ in range(FAST_RECORDS)]
    assert found == [None] * FAST_RECORDS


def test_nothing_is_judged_before_the_level_is_known() -> None:
    trend = Trend()
    found = [trend.update(0.0 if n < 8 else 5.0, SD, 1.0) for n in range(8 + SLOW_RECORDS // 4)]
    assert found == [None] * len(found)
