"""Viewers that are silent no longer count, and what they may do is not forgotten."""

from __future__ import annotations

import pytest

from fttui.engine.hub import viewers as viewers_module
from fttui.engine.hub.viewers import MOST_SILENT, SILENT_S, Viewer, Viewers


def watcher(id_: str = "eve", *, read_only: bool = True, at: float = 0.0) -> Viewer:
    return Viewer(id=id_, issuer=id_, read_only=read_only, last_message_at=at)


def silent(*found: tuple[bytes, Viewer]) -> Viewers:
    viewers = Viewers(0.0)
    for connection, viewer in found:
        viewers.welcome(connection, viewer)
    viewers.drop_silent(SILENT_S + 1)
    return viewers


def test_a_viewer_that_reconnects_is_counted_once() -> None:
    viewers = Viewers(0.0)
    viewers.welcome(b"1", watcher("ann", at=1.0))
    viewers.welcome(b"2", watcher("bob", at=1.0))
    viewers.welcome(b"3", watcher("ann", at=2.0))
    assert len(viewers) == 2
    viewers.refresh(b"1", 3.0)
    assert viewers.last_message_at == 2.0


def test_a_silent_viewer_no_longer_counts_and_a_heard_one_does() -> None:
    viewers = Viewers(0.0)
    viewers.welcome(b"1", watcher("ann"))
    viewers.welcome(b"2", watcher("bob"))
    viewers.refresh(b"2", SILENT_S)
    assert viewers.drop_silent(SILENT_S + 1) == ["ann"]
    assert len(viewers) == 1
    assert viewers.last_message_at == SILENT_S


def test_a_viewer_only_watches_however_long_it_was_silent() -> None:
    viewers = silent((b"c", watcher()))
    assert len(viewers) == 0
    assert viewers.only_watches(b"c", "eve")
    assert viewers.only_watches(b"c", "another id")
    assert viewers.only_watches(b"another connection", "eve")
    assert not viewers.only_watches(b"d", "ann")
    viewers.refresh(b"c", 99.0)
    assert viewers.only_watches(b"c", "eve")


def test_a_silent_viewer_counts_again_with_its_next_message() -> None:
    viewers = silent((b"c", watcher(read_only=False)))
    viewers.refresh(b"c", 99.0)
    assert len(viewers) == 1
    assert viewers.last_message_at == 99.0
    assert viewers.drop_silent(99.0 + SILENT_S) == []


def test_a_silent_viewer_that_greets_again_may_do_what_it_says_then() -> None:
    viewers = silent((b"c", watcher()))
    viewers.welcome(b"d", watcher(read_only=False, at=99.0))
    assert not viewers.only_watches(b"d", "eve")
    assert not viewers.only_watches(b"c", "eve")


def test_only_the_longest_silent_of_many_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_SILENT > 250, "more than a hub can have connections"
    monkeypatch.setattr(viewers_module, "MOST_SILENT", 2)
    viewers = silent(*((bytes([n]), watcher(f"v{n}")) for n in range(3)))
    assert [viewers.only_watches(bytes([n]), "") for n in range(3)] == [False, True, True]
