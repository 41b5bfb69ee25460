"""The action table: every deed has a key, a word of help, and a command behind it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from fttui.engine.protocol.commands import COMMANDS
from fttui.tui.actions import ACTIONS

README = Path(__file__).resolve().parents[2] / "README.md"


def test_every_command_has_a_key() -> None:
    assert {verb for action in ACTIONS for verb in action.verbs} == {c.verb for c in COMMANDS}


def test_every_action_is_complete_and_no_key_is_taken_twice() -> None:
    assert all(action.keys and action.label and action.help for action in ACTIONS)
    for scope in ("plots", "list"):
        together = [a for a in ACTIONS if a.scope in ("run", scope)]
        keys = Counter(key for action in together for key in action.keys.split(","))
        assert [key for key, count in keys.items() if count > 1] == []


def _rows() -> list[tuple[str, str]]:
    text = README.read_text(encoding="utf-8").replace(r"\|", "¦")
    rows = re.findall(r"^\| `([^`]+)` \| (.+?) \|$", text, re.MULTILINE)
    return [(key.replace("¦", "|"), help_) for key, help_ in rows]


def test_the_readme_names_every_key_and_every_command() -> None:
    rows = _rows()
    assert [a.id for a in ACTIONS if (a.key, a.help) not in rows] == []
    assert [c.verb for c in COMMANDS if (c.usage, c.help) not in rows] == []
