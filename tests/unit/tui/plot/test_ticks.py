"""Ticks are round numbers of their unit, and never more than there is room for."""

from __future__ import annotations

import math

import pytest

from fttui.tui.plot.ticks import _SPANS, axis_ticks, log_ticks

MINUTE, HOUR, DAY = 60, 3600, 86400


def test_distances_on_the_time_axis_are_round_in_seconds_minutes_or_hours() -> None:
    for span in _SPANS:
        unit = next(u for u in (DAY, HOUR, MINUTE, 1) if span % u == 0)
        larger = {1: MINUTE, MINUTE: HOUR, HOUR: DAY, DAY: DAY}[unit]
        assert larger % span == 0, span
    assert list(_SPANS) == sorted(set(_SPANS))


@pytest.mark.parametrize(
    ("high", "most", "step"),
    [(10.0, 10, 1), (10.0, 5, 2), (7200.0, 4, 1800), (7200.0, 2, 3600), (3 * DAY, 3, DAY),
     (40 * DAY, 4, 10 * DAY)],
)  # fmt: skip
def test_time_is_divided_by_the_smallest_round_distance_that_fits(
    high: float, most: int, step: float
) -> None:
    found = axis_ticks("time", 0.0, high, most)
    assert found == [n * step for n in range(len(found))]
    assert found[-1] <= high < found[-1] + step


def test_steps_have_whole_ticks_only() -> None:
    assert all(tick.is_integer() for tick in axis_ticks("step", 0.0, 3.0, 8))
    assert any(not tick.is_integer() for tick in axis_ticks("epoch", 0.0, 3.0, 8))


@pytest.mark.parametrize(
    ("low", "high", "most", "values"),
    [
        (0.0, 3.0, 4, [1, 10, 100, 1000]),
        (0.0, 3.0, 3, []),
        (0.0, 1.0, 4, [1, 2, 5, 10]),
        (0.0, 1.0, 3, [1, 10]),
        (0.0, 1.0, 10, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
    ],
)
def test_logarithms_are_at_round_values(
    low: float, high: float, most: int, values: list[int]
) -> None:
    assert log_ticks(low, high, most) == pytest.approx([math.log10(value) for value in values])
