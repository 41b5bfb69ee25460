"""Titles of plots: legends that are shortened, from the last, until they fit."""

from __future__ import annotations

import pytest

from fttui.tui.plot.panels import Entry
from fttui.tui.widgets.plot import fitting_entries

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
