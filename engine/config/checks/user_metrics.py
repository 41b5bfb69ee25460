"""Checks of metrics that a Python function of the user computes; nothing of it is executed."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from .problem import Problem

KEY = "eval.metrics"
FORM = "FILE.py:FUNCTION"


def named_function(entry: str) -> tuple[str, str]:
    """Return the file and the name of the function that an entry of `eval.metrics` gives."""
    file, _, name = entry.rpartition(":")
    return file, name


def metric_names(entries: Sequence[str]) -> list[str]:
    """Return the names of the metrics, which are those of the functions."""
    return [named_function(entry)[1] for entry in entries]


def user_metric_problems(entries: Sequence[str], own: Sequence[str]) -> Iterator[Problem]:
    """Yield what is wrong with entries whose files have absolute paths.

    Args:
        entries: the entries of `eval.metrics`.
        own: names of the metrics that the run measures without them.
    """
    names = metric_names(entries)
    for entry, name in zip(entries, names, strict=True):
        if why := _why_not(entry):
            yield Problem(KEY, why)
        elif name in own:
            yield Problem(KEY, f"{name} is a metric of the run itself; rename the function")
    for name in (name for name, count in Counter(names).items() if count > 1):
        yield Problem(KEY, f"{name} is named twice; rename one of the functions")


def _why_not(entry: str) -> str:
    """Return why an entry names no function; empty if it names one."""
    file, name = named_function(entry)
    if not file.endswith(".py") or not name.isidentifier():
        return f"got {entry!r}, expected {FORM}, such as metrics.py:exact_match"
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"), file)
    except (OSError, ValueError, SyntaxError) as error:
        return f"{file} cannot be read as Python: {error}"
    found = [one for one in tree.body if isinstance(one, ast.FunctionDef)]
    if name not in [one.name for one in found]:
        known = ", ".join(one.name for one in found) or "none"
        return f"{file} defines no function {name}; it defines: {known}"
    return ""
