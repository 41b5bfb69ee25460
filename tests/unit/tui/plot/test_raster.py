"""Areas below a curve."""

from __future__ import annotations

import numpy as np
import pytest

from fttui.tui.plot import raster
from fttui.tui.plot.layers import Layer, PlotPicture
from fttui.tui.plot.scale import YScale

HELD, KEPT = "⡪", "⡂"


def _drawn(*layers: Layer, ascii_only: bool = False) -> list[str]:
    picture = PlotPicture(layers, x=(0.0, 10.0), scale=YScale(low=0.0, high=4.0))
    sheet = raster.draw(picture, 5, 4, ascii_only=ascii_only)
    return ["".join(map(chr, row)) for row in sheet.chars]


def _level(style: str, height: float, *, filled: bool = True) -> Layer:
    return Layer(style, (((0.0, height), (10.0, height)),), filled=filled)


def test_the_area_below_a_curve_is_filled_down_to_the_axis() -> None:
    rows = _drawn(_level("held", 1.99))
    assert [set(row) for row in rows] == [{" "}, {" "}, {"⡫"}, {HELD}]
    lines = _drawn(_level("held", 1.99, filled=False))
    assert set(lines[3]) == {" "}


def test_the_parts_of_a_stack_differ_without_colours() -> None:
    rows = _drawn(_level("kept", 3.99), _level("held", 1.99))
    assert set(rows[1]) == {KEPT}
    assert set(rows[3]) == {HELD}
    ascii_rows = _drawn(_level("kept", 3.99), _level("held", 1.99), ascii_only=True)
    assert [set(row) for row in ascii_rows] == [{":"}, {":"}, {"#"}, {"#"}]


@pytest.mark.parametrize("filled", [True, False])
def test_an_area_leaves_no_cell_below_its_curve_empty(filled: bool) -> None:
    steep = Layer("kept", (((0.0, 0.1), (5.0, 3.9), (10.0, 0.1)),), filled=filled)
    picture = PlotPicture((steep,), x=(0.0, 10.0), scale=YScale(low=0.0, high=4.0))
    drawn = raster.draw(picture, 20, 8).layers >= 0
    below = np.maximum.accumulate(drawn, axis=0)
    assert bool((below == drawn).all()) is filled
