"""The picture of a run as an SVG: the pictures of the plots, in a file that any browser reads."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import msgspec
import pytest

from fttui.engine.protocol.events import RunStarted
from fttui.tui import notebook
from fttui.tui.plot.frame import LOOKS
from fttui.tui.plot.panels import LOSS, panel_for
from fttui.tui.plot.svg import svg_of
from fttui.tui.view_model.app_state import AppState, fold
from fttui.tui.view_model.connection_port import RecordsArrived
from tests.contract.examples import example
from tests.support.session_double import Script, eventful, live_spike

SVG = "{http://www.w3.org/2000/svg}"
COLOURS = notebook._colours("light")


def drawn(state: AppState) -> ElementTree.Element:
    return ElementTree.fromstring(svg_of(state, notebook.PANELS, COLOURS))


def test_an_empty_run_has_a_frame_for_each_panel() -> None:
    root = drawn(AppState())
    assert len(root.findall(f"{SVG}g")) == len(notebook.PANELS)
    assert not root.findall(f".//{SVG}polyline")
    assert "no values yet" in "".join(root.itertext())


def test_a_theme_that_does_not_exist_is_named() -> None:
    with pytest.raises(ValueError, match="got 'blue', expected light or dark"):
        notebook._colours("blue")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_look_has_a_colour(theme: str) -> None:
    assert {f"plot-{look}" for look in LOOKS} <= notebook._colours(theme).keys()


def test_memory_is_an_area() -> None:
    assert len(drawn(played(eventful())).findall(f".//{SVG}polygon")) >= 2


def test_the_picture_has_the_curves_marks_and_abandoned_steps_of_the_app() -> None:
    root = drawn(played(eventful().rollback("step-001200-t1", 1200).train(20)))
    text = "".join(root.itertext())
    assert len(root.findall(f".//{SVG}polyline")) > 5
    assert "◆" in text
    assert "↺" in text
    assert COLOURS["plot-undone"] in [r.get("fill") for r in root.iter(f"{SVG}rect")]
    points = [p for line in root.iter(f"{SVG}polyline") for p in line.get("points", "").split()]
    assert all(0 <= float(c) <= 460 for point in points for c in point.split(","))


def test_an_incident_is_named_above_the_curves() -> None:
    state = played(live_spike())
    incident = state.run.current_incident
    assert incident is not None
    assert incident.main.event.headline in "".join(drawn(state).itertext())


def test_hostile_text_stays_text() -> None:
    started = msgspec.structs.replace(
        example(RunStarted), name="<script>alert(1)</script>\x1b[2J&", script=""
    )
    run = replace(AppState().run, started=started)
    text = svg_of(replace(AppState(), run=run), [LOSS, panel_for("<b>")], COLOURS)
    ElementTree.fromstring(text)
    assert "<script" not in text
    assert "\x1b" not in text


def played(script: Script) -> AppState:
    return fold(AppState(), [RecordsArrived(script.records)], script.now)
