from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fttui.tui.plot import raster
from fttui.tui.plot.layers import Layer, PlotPicture
from fttui.tui.preferences import Preferences, read_preferences
from fttui.tui.styles.themes import THEMES
from fttui.tui.widgets.plot import Plot
from tests.support.session_double import FakeSession, Script, eventful
from tests.unit.tui.app.driving import driven, text_of, until


def _text(sheet: raster.Sheet) -> list[str]:
    return ["".join(map(chr, row)) for row in sheet.chars]


def test_a_picture_has_exactly_the_size_asked_for() -> None:
    layer = Layer("raw", (((0.0, 0.0), (10.0, 1.0)),))
    for width, height in [(1, 1), (5, 2), (60, 9), (200, 40)]:
        rows = _text(raster.draw(PlotPicture((layer,), (0, 10)), width, height))
        assert [len(row) for row in rows] == [width] * height


def test_layers_keep_their_own_numbers_and_runs_are_not_joined() -> None:
    first = Layer("raw", (((0.0, 1.0), (2.0, 1.0)), ((8.0, 1.0), (10.0, 1.0))))
    second = Layer("ema", (((0.0, 0.0), (10.0, 0.0)),))
    sheet = raster.draw(PlotPicture((first, second), (0, 10)), 20, 4)
    assert set(sheet.layers[0].tolist()) == {0, -1}
    assert set(sheet.layers[-1].tolist()) <= {1, -1}
    assert "\u2800" not in _text(sheet)[0]
    assert _text(sheet)[0][8:12].strip() == ""


@given(st.lists(st.floats(0, 1), min_size=2, max_size=300), st.integers(2, 60), st.integers(1, 20))
def test_every_point_given_is_a_dot_in_its_own_cell(values, width, height) -> None:
    run = tuple((float(x), y) for x, y in enumerate(values))
    sheet = raster.draw(PlotPicture((Layer("raw", (run,)),), (0.0, float(len(run)))), width, height)
    for x, y in run:
        column = int(x / len(run) * 2 * width) // 2
        row = height - 1 - min(4 * height - 1, int(y * 4 * height)) // 4
        assert sheet.layers[row, column] == 0


def test_a_band_fills_what_lies_between_two_curves() -> None:
    layer = Layer("band", (((0.0, 0.0), (0.0, 1.0), (5.0, 0.0), (5.0, 1.0)),))
    sheet = raster.draw(PlotPicture((layer,), (0, 10)), 10, 4)
    assert [bool(c) for c in (sheet.layers[:, 0] == 0)] == [True] * 4
    assert (sheet.layers[:, 2] == -1).all()


def test_ascii_stays_ascii() -> None:
    layer = Layer("raw", (((0.0, 0.0), (10.0, 1.0)),))
    dots = Layer("eval", (((5.0, 0.5),),), dots=True)
    drawn = PlotPicture((layer, dots), (0, 10))
    rows = _text(raster.draw(drawn, 20, 4, ascii_only=True))
    assert "".join(rows).isascii()
    assert "o" in "".join(rows)


async def test_nan_is_marked_and_infinite_numbers_do_not_reach_the_kernel() -> None:
    script = Script(spikes={50: float("nan"), 60: float("inf"), 61: float("-inf")})
    session = FakeSession(script.start().run().train(100))
    async with driven(session) as (app, pilot):
        await until(pilot, lambda: "✗" in text_of(app))


async def test_ascii_terminals_get_no_other_character() -> None:
    session = FakeSession(eventful())
    async with driven(session, preferences=Preferences(ascii=True)) as (app, pilot):
        await pilot.press("l")
        await until(pilot, lambda: "learning rate" in text_of(app))
        svg = app.export_screenshot()
    body = svg[svg.index("<g class=") :].replace("&#160;", " ")
    assert body.isascii()


@pytest.mark.parametrize(
    ("environ", "encoding", "ascii_only"),
    [
        ({}, "UTF-8", False), ({}, "utf8", False), ({}, "ANSI_X3.4-1968", True),
        ({}, "ISO-8859-1", True), ({"TERM": "linux"}, "UTF-8", True),
        ({"FTTUI_ASCII": "1"}, "UTF-8", True), ({"FTTUI_ASCII": "0"}, "UTF-8", False),
        ({"LANG": "C"}, "UTF-8", True), ({"LC_ALL": "POSIX", "LANG": "C.UTF-8"}, "UTF-8", True),
        ({"LANG": "C.UTF-8"}, "UTF-8", False),
        ({"LC_ALL": "C", "FTTUI_ASCII": "0"}, "UTF-8", False),
    ],
)  # fmt: skip
def test_ascii_is_decided_from_the_terminal(environ, encoding, ascii_only) -> None:
    assert read_preferences(environ, encoding).ascii is ascii_only


def test_the_theme_is_chosen_by_the_environment() -> None:
    assert read_preferences({"FTTUI_THEME": "light"}, "utf-8").theme == "fttui-light"
    assert read_preferences({}, "utf-8").theme == "fttui-dark"


def test_no_training_stack_is_loaded_to_start_the_app() -> None:
    code = (
        "import sys, fttui.tui.app; "
        "print([m for m in ('torch', 'transformers', 'markdown_it') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


async def test_the_y_axis_has_its_numbers() -> None:
    async with driven(FakeSession(eventful())) as (app, _):
        ticks = [line.split("┤")[0] for line in text_of(app).splitlines() if "┤" in line]
    assert len(ticks) >= 4
    assert any(tick.split("│")[-1].strip()[:1].isdigit() for tick in ticks)


async def test_zooming_out_undoes_zooming_in() -> None:
    async with driven(FakeSession(eventful())) as (app, pilot):
        before = app.state.plot
        await pilot.press("z")
        await until(pilot, lambda: app.state.plot != before)
        span = app.state.plot.window(app.state.run.step)
        await pilot.press("Z")
        await until(pilot, lambda: app.state.plot.window(app.state.run.step) != span)
        low, high = app.state.plot.window(app.state.run.step)
        assert high - low > span[1] - span[0]


async def test_a_new_theme_is_painted_at_once() -> None:
    async with driven(FakeSession(eventful())) as (app, pilot):
        plot = app.screen.query(Plot).first()
        before = plot._strips
        assert before
        app.theme = next(theme.name for theme in THEMES if theme.name != app.theme)
        await until(pilot, lambda: plot._strips is not before)


async def test_dragging_over_a_plot_zooms_to_the_span() -> None:
    async with driven(FakeSession(eventful())) as (app, pilot):
        plot = app.screen.query(Plot).first()
        await pilot.mouse_down(plot, offset=(20, 4))
        await pilot.hover(plot, offset=(40, 4))
        await pilot.mouse_up(plot, offset=(40, 4))
        await until(pilot, lambda: app.state.plot.span is not None)
        left, right = app.state.plot.window(app.state.run.step)
        assert 0 < left < right < app.state.run.step
        await pilot.click(plot, offset=(30, 4))
        await until(pilot, lambda: left <= (app.state.plot.cursor or 0) <= right)
