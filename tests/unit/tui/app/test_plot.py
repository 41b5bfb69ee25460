from __future__ import annotations

import subprocess
import sys

import pytest

from fttui.tui.settings import Settings, read_settings
from fttui.tui.state.picture import Layer, Picture
from fttui.tui.widgets import canvas
from tests.support.session_double import FakeSession, Script, eventful
from tests.unit.tui.app.driving import driven, text_of, until


def _text(rows: list[canvas.Row]) -> list[str]:
    return ["".join(text for text, _ in row) for row in rows]


def test_a_canvas_has_exactly_the_size_asked_for() -> None:
    layer = Layer("raw", (((0.0, 0.0), (10.0, 1.0)),))
    for width, height in [(1, 1), (5, 2), (60, 9), (200, 40)]:
        rows = _text(canvas.draw(Picture((layer,), (0, 10), (0, 1)), width, height))
        assert [len(row) for row in rows] == [width] * height


def test_layers_keep_their_own_numbers_and_runs_are_not_joined() -> None:
    first = Layer("raw", (((0.0, 1.0), (2.0, 1.0)), ((8.0, 1.0), (10.0, 1.0))))
    second = Layer("ema", (((0.0, 0.0), (10.0, 0.0)),))
    rows = canvas.draw(Picture((first, second), (0, 10), (0, 1)), 20, 4)
    assert {number for _, number in rows[0]} == {0, -1}
    assert {number for _, number in rows[-1]} <= {1, -1}
    assert "\u2800" not in _text(rows)[0]
    assert _text(rows)[0][8:12].strip() == ""


def test_ascii_stays_ascii() -> None:
    layer = Layer("raw", (((0.0, 0.0), (10.0, 1.0)),))
    dots = Layer("eval", (((5.0, 0.5),),), dots=True)
    rows = _text(canvas.draw(Picture((layer, dots), (0, 10), (0, 1)), 20, 4, ascii_only=True))
    assert "".join(rows).isascii()
    assert "o" in "".join(rows)


async def test_nan_is_marked_and_infinite_numbers_do_not_reach_the_kernel() -> None:
    script = Script(spikes={50: float("nan"), 60: float("inf"), 61: float("-inf")})
    session = FakeSession(script.start().run().train(100))
    async with driven(session) as (app, pilot):
        await until(pilot, lambda: "✗" in text_of(app))


async def test_ascii_terminals_get_no_other_character() -> None:
    session = FakeSession(eventful())
    async with driven(session, settings=Settings(ascii=True)) as (app, pilot):
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
    ],
)  # fmt: skip
def test_ascii_is_decided_from_the_terminal(environ, encoding, ascii_only) -> None:
    assert read_settings(environ, encoding).ascii is ascii_only


def test_the_theme_is_chosen_by_the_environment() -> None:
    assert read_settings({"FTTUI_THEME": "light"}, "utf-8").theme == "fttui-light"
    assert read_settings({}, "utf-8").theme == "fttui-dark"


def test_neither_torch_nor_plotext_is_loaded_to_start_the_app() -> None:
    code = (
        "import sys, fttui.tui.app; "
        "print([m for m in ('torch', 'plotext', 'transformers') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
