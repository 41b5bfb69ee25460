from __future__ import annotations

import math

import pytest

from fttui.engine.core.reports.curve_plot import WIDTH, CurvePoint, curve_plot


def points(*losses: float, first: int = 1, norm: float | None = None) -> list[CurvePoint]:
    return [CurvePoint(n, loss, norm) for n, loss in enumerate(losses, first)]


def test_bars_are_as_high_as_their_values_and_the_alert_is_marked() -> None:
    assert curve_plot(points(1.0, 1.0, 3.0, 1.0, first=98), 100) == [
        "     loss 3 ┤        ████",
        "            │        ████",
        "            │        ████",
        "            │        ████",
        "          1 ┤▁▁▁▁▁▁▁▁████▁▁▁▁",
        "       step  98      ▲ 100",
    ]


def test_a_norm_gets_a_curve_of_its_own() -> None:
    lines = curve_plot([CurvePoint(1, 2.0, 5.0), CurvePoint(2, 2.0, None)], 2)
    assert [line.split("┤")[0].strip() for line in lines if "┤" in line] == [
        "loss 2", "2", "norm 5", "5",
    ]  # fmt: skip
    assert lines[7] == "          5 ┤▁▁▁▁"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_a_cross(bad: float) -> None:
    lines = curve_plot(points(1.0, 2.0, bad), 3)
    assert lines[0].endswith("xxxx")
    assert not any(line.endswith("xxxx") for line in lines[1:])
    assert curve_plot(points(bad, bad), 2)[0].endswith("┤xxxxxxxx")


def test_a_wide_range_is_logarithmic() -> None:
    plain, wide = curve_plot(points(1.0, 4.0, 19.0), 3), curve_plot(points(1.0, 4.5, 21.0), 3)
    assert "(log)" in wide[1]
    assert not any("(log)" in line for line in plain)
    assert wide[2][17] == "▄"


@pytest.mark.parametrize("before", [1, 20, 200])
@pytest.mark.parametrize("after", [0, 5, 200])
def test_it_is_never_wider_than_a_small_terminal(before: int, after: int) -> None:
    steps = points(*[1.0 + n % 3 for n in range(before + after)], norm=0.5)
    at = before
    lines = curve_plot(steps, at)
    if before + after < 2:
        assert lines == []
        return
    assert max(map(len, lines)) <= 72
    assert str(at) in lines[-1]
    mark = lines[-1].index("▲") - 13
    assert 0 <= mark < WIDTH
    if before > 30 and after > 30:
        assert WIDTH // 4 <= mark <= 3 * WIDTH // 4


def test_without_two_steps_there_is_no_plot() -> None:
    assert curve_plot([], 3) == curve_plot(points(1.0), 1) == []


def test_an_alert_outside_of_the_curve_has_no_mark() -> None:
    assert curve_plot(points(1.0, 2.0), 9)[-1].split() == ["step", "1", "to", "2"]
