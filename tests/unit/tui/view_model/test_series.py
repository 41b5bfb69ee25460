from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fttui.tui.view_model import series as module
from fttui.tui.view_model.series import Series, SmoothedSeries


def _points(series: Series, x0: float, x1: float, columns: int) -> list[tuple[float, float]]:
    return [point for run in series.trace(x0, x1, columns).runs for point in run]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=700), st.integers(1, 40))
def test_every_extreme_stays_visible_at_any_width(values: list[float], columns: int) -> None:
    series = Series().extend(range(len(values)), values)
    shown = [y for _, y in _points(series, 0, len(values), columns)]
    assert max(shown) == max(values)
    assert min(shown) == min(values)
    assert len(shown) <= 2 * columns


@given(st.lists(st.floats(allow_nan=True), min_size=1, max_size=300), st.integers(1, 20))
def test_non_finite_values_are_gaps_and_never_points(values: list[float], columns: int) -> None:
    series = Series().extend(range(len(values)), values)
    trace = series.trace(0, len(values), columns)
    assert all(math.isfinite(y) for run in trace.runs for _, y in run)
    bad = [i for i, v in enumerate(values) if not math.isfinite(v)]
    assert len(trace.gaps) == len(bad) if len(bad) <= columns else 1 <= len(trace.gaps) <= columns
    assert set(trace.gaps) <= set(bad)
    for run in trace.runs:
        for (left, _), (right, _) in pairwise(run):
            assert not any(left < x < right for x in bad)


@pytest.mark.parametrize(("bad", "shown"), [(4, 4), (5, 3), (8, 4), (9, 3)])
def test_at_most_one_gap_per_column_is_marked(bad: int, shown: int) -> None:
    series = Series().extend(range(bad), [math.nan] * bad)
    gaps = series.trace(0, bad, 4).gaps
    assert len(gaps) == shown
    assert gaps[0] == 0.0


def test_extremes_agree_with_a_plain_scan_at_every_zoom() -> None:
    rng = random.Random(1)
    values = [rng.gauss(0, 1) for _ in range(5000)]
    series = Series().extend(range(5000), values)
    for _ in range(200):
        a = rng.randrange(4999)
        b = rng.randrange(a + 1, 5000)
        shown = [y for _, y in _points(series, a, b, 1)]
        assert (min(shown), max(shown)) == (min(values[a : b + 1]), max(values[a : b + 1]))


def test_points_keep_their_true_places_in_order() -> None:
    values = [0.0] * 1000
    values[333] = 9.0
    values[334] = -9.0
    points = _points(Series().extend(range(1000), values), 0, 1000, 10)
    assert (333.0, 9.0) in points
    assert (334.0, -9.0) in points
    assert points == sorted(points)


def test_an_earlier_value_does_not_see_later_points() -> None:
    early = Series().extend([1, 2], [1.0, 2.0])
    late = early.append(3, 3.0)
    assert len(early) == 2
    assert early.last == (2.0, 2.0)
    assert late.last == (3.0, 3.0)


def test_two_futures_of_one_series_do_not_mix() -> None:
    base = Series().extend([1, 2], [1.0, 2.0])
    left, right = base.append(3, 30.0), base.append(3, 40.0)
    assert left.last == (3.0, 30.0)
    assert right.last == (3.0, 40.0)
    assert right.append(4, 41.0).tail(2) == [40.0, 41.0]


def test_old_points_are_merged_when_full_but_no_spike_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CAPACITY", 1000)
    series = Series()
    for x in range(20_000):
        series = series.append(x, 50.0 if x == 123 else math.nan if x == 777 else 1.0)
    assert len(series) <= 1001
    points = _points(series, 0, 20_000, 50)
    assert (123.0, 50.0) in points
    assert 777.0 in series.trace(0, 20_000, 50).gaps
    assert series.last == (19_999.0, 1.0)


def test_the_value_at_a_step_is_that_of_the_nearest_earlier_point() -> None:
    series = Series().extend([10, 20], [1.0, 2.0])
    assert (series.at(5), series.at(10), series.at(19), series.at(99)) == (None, 1.0, 1.0, 2.0)


def test_a_trace_needs_columns() -> None:
    with pytest.raises(ValueError, match="columns must be"):
        Series().append(1, 1.0).trace(0, 1, 0)


def test_the_average_starts_at_the_first_value_and_skips_nan() -> None:
    average = SmoothedSeries(0.9).push(4.0)
    assert average.value == pytest.approx(4.0)
    assert average.push(math.nan) == average
    assert math.isnan(SmoothedSeries(0.9).value)
    assert average.push(2.0).value == pytest.approx((0.9 * 0.1 * 4 + 0.1 * 2) / (1 - 0.81))


def test_an_older_version_that_is_extended_keeps_its_points() -> None:
    """As after a rollback: both branches have the points before it, and only their own after it."""
    shared = Series().extend(range(3), [5.0, 6.0, 7.0])
    first, second = shared.extend([3], [8.0]), shared.extend([3], [9.0])
    assert shared.ys.tolist() == [5.0, 6.0, 7.0]
    assert first.ys.tolist() == [5.0, 6.0, 7.0, 8.0]
    assert second.ys.tolist() == [5.0, 6.0, 7.0, 9.0]
    assert second.xs.tolist() == [0, 1, 2, 3]
