"""Every line of the threat model names a test, and the test exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.faults import FAULTS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "security.md"
_NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`|\b(F\d+B?)\b")


def rows() -> list[str]:
    """The rows of the tables, without their heads."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    return [line for line in lines if set(line) - set("|- ") and "what fttui does" not in line]


def test_there_is_a_line_for_everything_that_comes_from_elsewhere() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for what in ("run folder", "socket", "remote host", "configuration", "data set", "model"):
        assert re.search(rf"^## .*{what}", text, re.MULTILINE), what


@pytest.mark.parametrize("row", rows())
def test_a_line_of_the_threat_model_names_a_test_that_exists(row: str) -> None:
    (found,) = [m for m in [_NAMED.search(row.rstrip("| ").rpartition("|")[2])] if m]
    file, name, fault = found.groups()
    if fault:
        assert fault in FAULTS
        return
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
