"""The results of lm-evaluation-harness as scores of the run; without the harness itself."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..protocol.benchmarks.result import BENCH, BenchmarkScore
from ..protocol.thresholds import lower_is_better

_UNFILTERED = "none"
"""The filter of values that are scored as the model gives them."""
_STDERR = "_stderr"


@dataclass(frozen=True)
class TaskScores:
    """What the harness has measured of one task or group."""

    task: str
    scores: dict[str, BenchmarkScore]
    examples: int
    total: int
    fewshot: int
    version: str
    upside_down: list[str] = field(default_factory=list)
    """Metrics whose better direction, by their name, is not that of the task."""


def read_scores(found: Mapping[str, Any], wanted: str) -> tuple[list[TaskScores], list[str]]:
    """Return the scores of a task, and the names of tasks of its group that are left out.

    A group with values of its own counts as one task. Without them, its tasks are returned.

    Args:
        found: what `lm_eval.evaluate` has returned for this task alone.
        wanted: the task or group.
    """
    rows: Mapping[str, Mapping[str, Any]] = found["results"]
    scored = [name for name in rows if _scores(rows[name])]
    chosen = [wanted] if wanted in scored else scored
    return [_task(found, name) for name in chosen], [one for one in scored if one not in chosen]


def _task(found: Mapping[str, Any], name: str) -> TaskScores:
    parts = _parts(found, name)
    counts = [found["n-samples"][part] for part in parts if part in found["n-samples"]]
    shots = [found["n-shot"][part] for part in parts if part in found.get("n-shot", {})]
    scores = _scores(found["results"][name])
    higher = found.get("higher_is_better", {}).get(name, {})
    version = found.get("versions", {}).get(name)
    return TaskScores(
        task=name,
        scores=scores,
        examples=sum(int(count["effective"]) for count in counts),
        total=sum(int(count["original"]) for count in counts),
        fewshot=int(max(shots, default=0)),
        version="" if version in (None, "N/A", "Yaml") else f"{version}",
        upside_down=[metric for metric in scores if _is_upside_down(name, metric, higher)],
    )


def _parts(found: Mapping[str, Any], name: str) -> Sequence[str]:
    """Return the tasks of a group, through groups in it; the name itself for a task."""
    if name in found["n-samples"]:
        return [name]
    inner = found.get("group_subtasks", {}).get(name, [])
    return [part for one in inner if one != name for part in _parts(found, one)]


def _scores(row: Mapping[str, Any]) -> dict[str, BenchmarkScore]:
    return {
        name: BenchmarkScore(value=float(value), stderr=_number(row.get(error)))
        for name, value, error in _values(row)
    }


def _values(row: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """Yield name, value and the key of the standard error of each metric in a row."""
    for key, value in row.items():
        metric, comma, filter_ = key.partition(",")
        if not comma or metric.endswith(_STDERR) or _number(value) is None:
            continue
        name = metric if filter_ == _UNFILTERED else f"{metric}.{filter_}"
        yield "-".join(name.split()), value, f"{metric}{_STDERR},{filter_}"


def _number(value: Any) -> float | None:
    """Return a value as a number; None for words such as `N/A`, and for truth values."""
    if isinstance(value, bool | str) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _is_upside_down(task: str, metric: str, higher: Mapping[str, Any]) -> bool:
    known = higher.get(metric.partition(".")[0])
    return isinstance(known, bool) and known is lower_is_better(f"{BENCH}{task}.{metric}")


def significant(change: float, one: float | None, other: float | None) -> bool:
    """Whether a change is larger than chance explains: twice the error of the difference.

    The errors count as independent, which is cautious for answers to the same questions.
    """
    if one is None or other is None:
        return False
    return abs(change) > 2 * math.hypot(one, other)
