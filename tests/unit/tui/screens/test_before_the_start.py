"""What is said until the run has recorded its start."""

from __future__ import annotations

import pytest

from fttui.engine.protocol.requests import Beat
from fttui.tui.view_model.app_state import AppState
from fttui.tui.view_model.connection_port import Link
from fttui.tui.view_model.link import LinkView
from fttui.tui.widgets.start_panel import run_lines


def beat(last_seq: int) -> Beat:
    return Beat(time=1.0, last_seq=last_seq, engine_alive=True)


@pytest.mark.parametrize(
    ("link", "last_seq", "words"),
    [
        (Link.CONNECTING, None, "no data from the run yet"),
        (Link.LIVE, None, "the engine is starting"),
        (Link.LIVE, 0, "the engine is starting"),
        (Link.LIVE, 3, "loading the history of the run"),
        (Link.CONNECTING, 3, "loading the history of the run"),
    ],
)
def test_why_nothing_is_shown_yet(link: Link, last_seq: int | None, words: str) -> None:
    heard = None if last_seq is None else beat(last_seq)
    (line,) = run_lines(AppState(link=LinkView(link=link, beat=heard)))
    assert line.plain == words
