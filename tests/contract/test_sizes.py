"""Size bars: small functions, small modules, small packages."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MEDIAN, P90, LONGEST, MODULE, PACKAGE = 9, 30, 60, 500, 14


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def functions(file: Path) -> list[tuple[int, str]]:
    """Lines and place of every function in a file."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            found.append((lines, f"{file.relative_to(ROOT)}:{node.lineno} {node.name}"))
    return found


@pytest.mark.parametrize("package", ["engine", "tui"])
def test_functions_are_short(package: str) -> None:
    found = sorted(item for file in modules(package) for item in functions(file))
    lines = [count for count, _ in found]
    assert [place for count, place in found if count > LONGEST] == []
    assert lines[len(lines) // 2] <= MEDIAN
    assert lines[round(0.9 * (len(lines) - 1))] <= P90


@pytest.mark.parametrize("package", ["engine", "tui"])
def test_modules_are_short(package: str) -> None:
    sizes = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in modules(package)}
    assert {str(f.relative_to(ROOT)): n for f, n in sizes.items() if n > MODULE} == {}


@pytest.mark.parametrize("package", ["engine", "tui"])
def test_packages_hold_few_modules_side_by_side(package: str) -> None:
    inside = Counter(file.parent for file in modules(package) if file.name != "__init__.py")
    assert {str(f.relative_to(ROOT)): n for f, n in inside.items() if n > PACKAGE} == {}
