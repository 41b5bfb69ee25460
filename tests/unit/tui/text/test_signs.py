"""What a colour says is also said by a sign or a word, and lines of commands are plain."""

from __future__ import annotations

import re

import pytest

from fttui.engine.protocol.events import Record
from fttui.tui.actions import ACTIONS
from fttui.tui.cli.headless import HeadlessLog
from fttui.tui.plot.frame import MARK_SHAPE
from fttui.tui.text.control_characters import one_line
from fttui.tui.text.glyphs import SEVERITY_SHAPE, to_ascii
from tests.contract.examples import all_messages

_UNREADABLE = re.compile("[\u2800-\u28ff\u2500-\u259f\x00-\x1f\x7f]")
"""Braille, box drawing, blocks and control characters, which a screen reader cannot read out."""


@pytest.mark.parametrize("convert", [str, to_ascii], ids=["signs", "ascii"])
def test_events_on_the_axis_and_severities_differ_in_shape(convert) -> None:
    signs = [convert(sign) for sign in (*MARK_SHAPE.values(), "✗", "↑", "─")]
    assert len(set(signs)) == len(signs), signs
    assert len(set(map(convert, SEVERITY_SHAPE.values()))) == len(SEVERITY_SHAPE)


def test_every_action_has_a_key_that_every_keyboard_has() -> None:
    named = {"space", "enter", "escape", "left", "right", "up", "down"}
    common = re.compile(r"(ctrl\+|shift\+)?[a-zA-Z0-9]|f\d+")
    lacking = [
        action.id
        for action in ACTIONS
        if not any(key in named or common.fullmatch(key) for key in action.keys.split(","))
    ]
    assert lacking == []


def test_no_line_of_a_headless_run_moves_the_cursor_or_draws() -> None:
    log = HeadlessLog()
    for name, message in all_messages().items():
        if isinstance(message, Record):
            for line in log.lines(message, 0.0):
                assert not _UNREADABLE.search(one_line(line)), (name, line)
