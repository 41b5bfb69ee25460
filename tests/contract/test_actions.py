"""The action table: every deed has a key, a word of help, and a command behind it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from fttui.engine.protocol.commands import COMMANDS
from fttui.tui.actions import ACTIONS

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_every_command_has_a_key() -> None:
    assert {verb for action in ACTIONS for verb in action.verbs} == {c.verb for c in COMMANDS}


def test_every_action_is_complete_and_no_key_is_taken_twice() -> None:
    assert all(action.keys and action.label and action.help for action in ACTIONS)
    for scope in ("plots", "list"):
        together = [a for a in ACTIONS if a.scope in ("run", scope)]
        keys = Counter(key for action in together for key in action.keys.split(","))
        assert [key for key, count in keys.items() if count > 1] == []


def _rows(page: str) -> list[tuple[str, str]]:
    text = (DOCS / page).read_text(encoding="utf-8").replace(r"\|", "¦")
    rows = re.findall(r"^\| `([^`]+)` \| (.+?) \|$", text, re.MULTILINE)
    return [(key.replace("¦", "|"), help_) for key, help_ in rows]


def test_the_page_of_the_app_names_every_key() -> None:
    rows = _rows("app.md")
    assert [a.id for a in ACTIONS if (a.key, a.help) not in rows] == []


def test_the_page_of_commands_names_every_command() -> None:
    rows = _rows("commands.md")
    assert [c.verb for c in COMMANDS if (c.usage, c.help) not in rows] == []
