"""Checks of metrics of the user: Python functions, of which nothing is executed, and benchmarks."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...protocol.benchmarks.result import BENCH
from ..schema import RunConfig
from .problem import Problem

KEY = "eval.metrics"
FORM = "FILE.py:FUNCTION"
_BENCHMARKS = "eval.benchmarks"


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


def check_benchmarks(config: RunConfig) -> Iterator[Problem]:
    """Yield benchmarks of a model that predicts no tokens, and names that name no task."""
    yield from _check_task_names(config.eval.benchmarks.tasks)
    if config.eval.benchmarks.tasks and config.task == "reward":
        yield Problem(
            f"{_BENCHMARKS}.tasks",
            "task reward trains a model that scores texts and generates none; remove the key",
        )


def _check_task_names(tasks: Sequence[str]) -> Iterator[Problem]:
    for name, count in Counter(tasks).items():
        if not name or "," in name or name.startswith("-") or name != "".join(name.split()):
            text = "expected the name of one task, such as hellaswag, in each entry"
            yield Problem(f"{_BENCHMARKS}.tasks", f"got {name!r}, {text}")
        elif count > 1:
            yield Problem(f"{_BENCHMARKS}.tasks", f"{name} is named twice; remove one of them")


def missing_task_folder(config: RunConfig) -> list[Problem]:
    """Return a problem if the folder with definitions of tasks does not exist."""
    folder = config.eval.benchmarks.include
    if folder is None or Path(folder).expanduser().is_dir():
        return []
    return [Problem(f"{_BENCHMARKS}.include", f"no folder {folder}; give a folder with task files")]


def is_benchmark(metric: str) -> bool:
    """Whether the name of a metric is that of a benchmark."""
    return metric.startswith(BENCH)


def why_not_measured(config: RunConfig, metric: str) -> str:
    """Return why no benchmark of a configuration measures a metric; empty if one does.

    The metrics of a task, and the tasks of a group, are not known before they are measured.
    """
    tasks = config.eval.benchmarks.tasks
    if not tasks:
        return f"got {metric}, but no benchmark is measured; name its task in {_BENCHMARKS}.tasks"
    if not config.checkpoint.every and not config.checkpoint.per_epoch:
        return (
            f"got {metric}, which is measured on checkpoints, but none are written during "
            "training; set checkpoint.every"
        )
    if len(metric.removeprefix(BENCH).split(".")) < 2:
        return f"got {metric}, expected {BENCH}TASK.METRIC, such as {BENCH}{tasks[0]}.acc"
    return ""
