"""Titles of plots: legends that are shortened, from the last, until they fit."""

from __future__ import annotations

import msgspec
import pytest

from fttui.engine.protocol.events import StepFinished
from fttui.tui.plot.panels import GRAD_NORM, Entry
from fttui.tui.view_model.app_state import AppState
from fttui.tui.view_model.reducer import apply_many
from fttui.tui.view_model.run_view import RunView
from fttui.tui.widgets.plot import fitting_entries
from tests.support.session_double import Script

ENTRIES = [
    Entry("3.174", "raw"), Entry("ema .98 3.650", "ema", brief="3.650"),
    Entry("eval 2.600", "eval", brief="2.600"), Entry("▾ 0.8 %/100", brief=""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("room", "texts"),
    [
        (57, ["3.174", "ema .98 3.650", "eval 2.600", "▾ 0.8 %/100"]),
        (56, ["3.174", "ema .98 3.650", "eval 2.600", ""]),
        (44, ["3.174", "ema .98 3.650", "eval 2.600", ""]),
        (43, ["3.174", "ema .98 3.650", "2.600", ""]),
        (38, ["3.174", "3.650", "2.600", ""]),
        (5, ["3.174", "3.650", "2.600", ""]),
    ],
)
def test_entries_are_shortened_from_the_last(room: int, texts: list[str]) -> None:
    assert [entry.text for entry in fitting_entries("loss", ENTRIES, room)] == texts


def test_the_title_of_the_gradient_norm_fits_at_80_columns_in_fp16() -> None:
    script = Script().start().run().train(3)
    newest = script.records[-1]
    assert isinstance(newest.event, StepFinished)
    exploded = msgspec.structs.replace(
        newest.event, grad_norm=46_680.0, clip=12.5, extra={"loss_scale": 65536.0}
    )
    script.records[-1] = msgspec.structs.replace(newest, event=exploded)
    state = AppState(run=apply_many(RunView(), script.records))
    texts = [entry.text for entry in GRAD_NORM.entries(state)]
    assert "loss scale 65,536" in texts
    room = 40 - 4
    shown = fitting_entries(GRAD_NORM.name, GRAD_NORM.entries(state), room)
    assert len(GRAD_NORM.name) + sum(2 + 2 + len(e.text) for e in shown if e.text) <= room
