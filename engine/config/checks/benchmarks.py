"""Checks of the benchmarks that are measured on checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ...protocol.benchmarks.result import BENCH
from ..schema import RunConfig
from .problem import Problem

_KEY = "eval.benchmarks"


def check_benchmarks(config: RunConfig) -> Iterator[Problem]:
    """Yield benchmarks of a model that predicts no tokens."""
    if config.eval.benchmarks.tasks and config.task == "reward":
        yield Problem(
            f"{_KEY}.tasks",
            "task reward trains a model that scores texts and generates none; remove the key",
        )


def missing_task_folder(config: RunConfig) -> list[Problem]:
    """Return a problem if the folder with definitions of tasks does not exist."""
    folder = config.eval.benchmarks.include
    if folder is None or Path(folder).expanduser().is_dir():
        return []
    return [Problem(f"{_KEY}.include", f"no folder {folder}; give a folder with task files")]


def is_benchmark(metric: str) -> bool:
    """Whether the name of a metric is that of a benchmark."""
    return metric.startswith(BENCH)


def why_not_measured(config: RunConfig, metric: str) -> str:
    """Return why no benchmark of a configuration measures a metric; empty if one does.

    The metrics of a task, and the tasks of a group, are not known before they are measured.
    """
    tasks = config.eval.benchmarks.tasks
    if not tasks:
        return f"got {metric}, but no benchmark is measured; name its task in {_KEY}.tasks"
    if not config.checkpoint.every and not config.checkpoint.per_epoch:
        return (
            f"got {metric}, which is measured on checkpoints, but none are written during "
            "training; set checkpoint.every"
        )
    if len(metric.removeprefix(BENCH).split(".")) < 2:
        return f"got {metric}, expected {BENCH}TASK.METRIC, such as {BENCH}{tasks[0]}.acc"
    return ""
