"""The bytes that a real terminal gets for a run full of hostile text."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pexpect
import pytest

from fttui.tui.preferences import note_seen
from tests.support.engine_double import make_run
from tests.support.hostile import poison_files, write_hostile_journal

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
HOSTILE = [mark.encode() for mark in ("\x1b]52", "\x9b", "\u202e", "\u2066", "\u200b")]


def test_a_terminal_gets_none_of_it(tmp_path: Path) -> None:
    note_seen()
    run = make_run(tmp_path / "runs")
    poison_files(run)
    write_hostile_journal(run)
    for words in (["ls"], ["events", run.id], ["report", run.id], ["show", "x\x1b]52;c;\x07"]):
        assert faults(_seen(words, tmp_path)) == [], words
    shown = _seen(["show", run.id], tmp_path, keys="2345678D9x\x1bq")
    assert b"x1b]52" in shown
    assert faults(shown) == []


def faults(seen: bytes) -> list[bytes]:
    return [mark for mark in HOSTILE if mark in seen]


def _seen(words: list[str], folder: Path, keys: str = "") -> bytes:
    """Everything that a command writes to its terminal."""
    app = pexpect.spawn(
        sys.executable,
        ["-m", "fttui.tui", *words],
        dimensions=(40, 120),
        timeout=120,
        env={
            **os.environ,
            "FTTUI_RUNS": str(folder / "runs"),
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
        },
    )
    seen = b""
    if keys:
        app.expect(b"52;c;aGF4")
        seen += app.before + app.after
    for key in keys:
        app.send(key)
        try:
            seen += app.read_nonblocking(1 << 20, timeout=1)
        except (pexpect.TIMEOUT, pexpect.EOF):
            continue
    while keys and app.expect([pexpect.EOF, pexpect.TIMEOUT], timeout=2):
        app.send("q")  # a key right behind Escape is read as one key with Alt
    if not keys:
        app.expect(pexpect.EOF)
    seen += app.before
    app.close()
    assert seen
    return seen
