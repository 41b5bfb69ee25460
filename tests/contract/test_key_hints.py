"""Keys can be rebound: texts take them from the table of actions, and the engine names none."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from fttui.tui.actions import ACTIONS, shown_key

ROOT = Path(__file__).resolve().parents[2]
_KEY_HINT = re.compile(
    r"\bpress(es)?\b|\bin the app\b|\bkeys? ['\"`]?[A-Za-z]\b|\bwith [a-zA-Z] in\b|^\[[A-Za-z?]\]$"
)
"""Words by which a text would name a key of the app."""


def _texts(folder: str) -> Iterator[tuple[str, str]]:
    """Every text in the source that is no docstring, with its place."""
    for file in sorted((ROOT / folder).rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        docs = {
            id(statement.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            for statement in node.body
            if isinstance(statement, ast.Expr)
        }
        for node in ast.walk(tree):
            match node:
                case ast.Constant(value=str(text)) if id(node) not in docs:
                    yield f"{file.relative_to(ROOT)}:{node.lineno}", text


def test_hints_are_found() -> None:
    for text in ("take it over with t in the app", "press space", "[R]", "the key R repeats it"):
        assert _KEY_HINT.search(text)
    assert not _KEY_HINT.search("unknown key 'train.lr'")
    hints = ("R ", "7 samples", "(system, 6)", "the run goes on · q detaches", "t control")
    assert all(any(hint.search(text) for hint in _fixed_keys()) for text in hints)


def test_the_engine_names_no_key_of_the_app() -> None:
    assert [(at, text) for at, text in _texts("engine") if _KEY_HINT.search(text)] == []


def _fixed_keys() -> list[re.Pattern[str]]:
    """A key beside the label of its action, and a key on its own."""
    fixed = [
        re.compile(rf"(?<![\w{{+]){re.escape(shown_key(key))} {re.escape(action.label.split()[0])}")
        for action in ACTIONS
        for key in action.keys.split(",")
        if action.keys not in ("enter", "escape")  # these are keys of tables and dialogs as well
    ]
    fixed += [re.compile(rf"\b{re.escape(a.label)}, {re.escape(a.key)}(?!\w)") for a in ACTIONS]
    return [*fixed, re.compile(r"^[A-Za-z0-9] $")]


def test_the_app_takes_the_keys_in_its_texts_from_the_table() -> None:
    fixed = _fixed_keys()
    found = [
        (at, text)
        for at, text in _texts("tui")
        if not at.startswith("tui/actions.py") and any(hint.search(text) for hint in fixed)
    ]
    assert found == []
