"""The reading tools of `fttui mcp`: runs, metrics, incidents, samples, configuration, log.

They read the files of runs and open no connection, so they work on ended runs, too, and no call
reaches the training.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fttui.engine.errors import ConfigError, FttuiError
from fttui.engine.run.configs import read_configs
from fttui.engine.run.reports import read_report
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.run.run_index import list_known_runs

from ...connection.run_list import read_other_run
from ...plot.panels import metrics_of
from ...view_model.branches import stretches
from ...view_model.incidents.incident import Incident, foremost_of
from ...view_model.run_view import RunView
from .command_tools import RUN_ARGUMENT

MOST_POINTS, POINTS = 1000, 100
_METRICS = ("loss", "eval.loss", "grad_norm", "lr")
_COMMANDS_SHOWN = 10


def _schema(needs_run: bool = True, **own: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {**({"run": RUN_ARGUMENT} if needs_run else {}), **own},
        "required": ["run"] if needs_run else [],
        "additionalProperties": False,
    }


def _count(default: int, most: int, what: str) -> dict[str, Any]:
    return {
        "type": "integer", "minimum": 1, "maximum": most, "default": default, "description": what,
    }  # fmt: skip


def number(value: float | None) -> float | str | None:
    """Return a value for JSON, which has no NaN and no infinity: these become text."""
    return value if value is None or math.isfinite(value) else str(value)


def listed(root: Path, limit: int) -> list[dict[str, Any]]:
    """Return the newest runs known on this machine, as `fttui ls` lists them."""
    return [
        {
            "run": s.id, "state": s.state.value, "step": s.step, "total_steps": s.total_steps,
            "loss": number(s.loss), "created": s.created, "folder": s.path,
            **({"unreadable": s.unreadable} if s.unreadable else {}),
        }
        for s in list_known_runs(root)[:limit]
    ]  # fmt: skip


def overview(run: RunDirectory, view: RunView, now: float) -> dict[str, Any]:
    """Return what the dashboard says about a run; `now` is in Unix seconds."""
    last = view.last
    return {
        "run": run.id,
        "state": view.state.value,
        "detail": view.detail,
        "step": view.step,
        "total_steps": view.total_steps,
        "timeline": view.timeline,
        "eta_s": view.eta_s,
        "loss": number(last.loss) if last else None,
        "lr": number(last.lr) if last else None,
        "lr_scale": view.lr_scale,
        "clip": view.clip,
        "grad_norm": number(last.grad_norm) if last else None,
        "evaluation": {k: number(v) for k, v in view.evaluation.metrics.items()}
        if view.evaluation
        else None,
        "checkpoints": [
            {"name": c.name, "step": c.step, "good": c.good, "pinned": c.pinned}
            for c in view.checkpoints
        ],
        "incidents": [incident_row(i) for i in view.incidents if i.active],
        "proposals": [
            {"proposal": p.name, "command": p.text, "by": p.issuer, "reason": p.reason,
             "expires_in_s": round(p.expires_at - now)}
            for p in view.open_proposals(now)
        ],
        "commands": [
            {"command": c.text, "by": c.issuer, "reason": c.reason, "outcome": c.outcome()}
            for c in view.interventions.items[-_COMMANDS_SHOWN:]
        ],
        "ended": {"state": view.ended.state.value, "error": view.ended.error}
        if view.ended
        else None,
    }  # fmt: skip


def incident_row(incident: Incident) -> dict[str, Any]:
    """Return an incident as a row: id, severity, state, steps, headline, recommended commands."""
    return {
        "incident": incident.id,
        "severity": incident.severity,
        "state": incident.text,
        "steps": [incident.first_step, incident.last_step],
        "headline": incident.main.event.headline,
        "recommended": [advice.way.text for advice in incident.advice],
    }


def curve(view: RunView, name: str, first: int, last: float, points: int) -> dict[str, Any] | None:
    """Return a metric of the live history between two steps; None if the run has no such metric.

    If there are more values than `points`, each row is the mean, the least and the largest of a
    stretch of steps, with the number of values that are not finite.
    """
    parts = [s for s in stretches(view.branches, name) if s.live]
    if not parts:
        return None
    steps, values = np.zeros(0), np.zeros(0)
    for part in sorted(parts, key=lambda s: s.branch.start):
        inside = (part.series.xs >= first) & (part.series.xs <= min(part.x1, last))
        steps = np.concatenate([steps, part.series.xs[inside]])
        values = np.concatenate([values, part.series.ys[inside]])
    if len(steps) <= points:
        rows = [[int(x), number(float(y))] for x, y in zip(steps, values, strict=True)]
        return {"columns": ["step", "value"], "rows": rows}
    cuts = np.linspace(0, len(steps), points + 1).astype(int)
    rows = [_stretch_row(steps[a:b], values[a:b]) for a, b in pairwise(cuts)]
    columns = ["first_step", "last_step", "mean", "min", "max", "not_finite"]
    return {"columns": columns, "rows": rows, "values": len(steps)}


def _stretch_row(steps: Any, values: Any) -> list[float | str | None]:
    finite = values[np.isfinite(values)]
    known = [float(f(finite)) for f in (np.mean, np.min, np.max)] if len(finite) else [None] * 3
    return [int(steps[0]), int(steps[-1]), *known, len(values) - len(finite)]


@dataclass(frozen=True)
class ReadTool:
    """One reading tool."""

    description: str
    input_schema: dict[str, Any]
    call: Callable[[RunDirectory, dict[str, Any]], Awaitable[Any]]


async def _view(run: RunDirectory) -> RunView:
    return (await read_other_run(run.path)).run


async def _show_run(run: RunDirectory, arguments: dict[str, Any]) -> Any:
    return overview(run, await _view(run), time.time())


async def _get_metrics(run: RunDirectory, arguments: dict[str, Any]) -> Any:
    view = await _view(run)
    known = metrics_of(view)
    names = arguments.get("names") or [name for name in _METRICS if name in known]
    points = arguments.get("points", POINTS)
    first, last = arguments.get("first_step", 0), arguments.get("last_step", math.inf)
    found = {name: curve(view, name, first, last, points) for name in names}
    if missing := [name for name, rows in found.items() if rows is None]:
        existing = ", ".join(known) or "none, because no step is finished yet"
        raise ConfigError(f"no metric {', '.join(missing)}; existing: {existing}")
    return {"metrics": found, "existing": known}


async def _list_incidents(run: RunDirectory, arguments: dict[str, Any]) -> Any:
    return [incident_row(i) for i in (await _view(run)).incidents]


async def _get_report(run: RunDirectory, arguments: dict[str, Any]) -> Any:
    view, wanted = await _view(run), arguments.get("id", "")
    incident = next((i for i in view.incidents if i.id == wanted), None)
    incident = incident or foremost_of(view.incidents)
    name = wanted if wanted and (incident is None or incident.id != wanted) else ""
    if not name and incident is None:
        raise FttuiError("no incident so far, so there is no report")
    return {"report": read_report(run, name or (incident.main.event.report if incident else ""))}


async def _get_samples(run: RunDirectory, arguments: dict[str, Any]) -> Any:
    samples = (await _view(run)).samples[-arguments.get("limit", 10) :]
    return [{"step": s.step, "prompt": s.prompt, "text": s.text} for s in samples]


async def _get_config(run: RunDirectory, arguments: dict[str, Any]) -> Any:
    files = read_configs(run)
    return {"source": files.source, "resolved": files.resolved, "overrides": files.overrides}


async def _get_log(run: RunDirectory, arguments: dict[str, Any]) -> Any:
    lines = (await _view(run)).log[-arguments.get("limit", 50) :]
    return [{"time": line.time, "level": line.level, "text": line.text} for line in lines]


_STEP = {"type": "integer", "minimum": 0}
READ_TOOLS: Mapping[str, ReadTool] = {
    "show_run": ReadTool(
        "State, newest figures, checkpoints, open incidents, proposals and commands of a run.",
        _schema(),
        _show_run,
    ),
    "get_metrics": ReadTool(
        "Curves of a run without the steps that rollbacks undid, averaged to `points` rows.",
        _schema(
            names={"type": "array", "items": {"type": "string"},
                   "description": f"default: {', '.join(_METRICS)}"},
            first_step=_STEP,
            last_step=_STEP,
            points=_count(POINTS, MOST_POINTS, "most rows of each metric"),
        ),
        _get_metrics,
    ),
    "list_incidents": ReadTool(
        "All incidents of a run with their state and the commands that their reports recommend.",
        _schema(),
        _list_incidents,
    ),
    "get_report": ReadTool(
        "The report of an incident or an anomaly as Markdown.",
        _schema(id={"type": "string", "description": "default: the current incident"}),
        _get_report,
    ),
    "get_samples": ReadTool(
        "Texts that the model generated during training, the newest last.",
        _schema(limit=_count(10, 200, "most samples")),
        _get_samples,
    ),
    "get_config": ReadTool(
        "The configuration of a run: as written, and resolved with all defaults.",
        _schema(),
        _get_config,
    ),
    "get_log": ReadTool(
        "The newest lines of the log of a run.",
        _schema(limit=_count(50, 1000, "most lines")),
        _get_log,
    ),
}  # fmt: skip
"""The reading tools of one run, by name; `list_runs` is the only other one."""
LIST_SCHEMA = _schema(needs_run=False, limit=_count(20, 500, "most runs, the newest first"))
