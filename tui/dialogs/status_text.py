"""The status line: the newest result of a command or event, for as long as it is news."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fttui.engine.protocol.commands import (
    AnyCommand,
    Chat,
    Evaluate,
    GenerateSample,
    MeasureGradients,
    recorded_command,
)

from ..text import format as fmt
from ..view_model.app_state import AppState
from ..view_model.branches import EVAL, value_on
from ..view_model.interventions import Intervention, Phase
from ..view_model.run_view import RunView

LIFETIME_S = 120.0
"""Seconds for which an event is shown."""
FAULT_LIFETIME_S = 600.0
"""Seconds for which a warning, an error or a failed command is shown."""
WORDS = 60
"""Characters of a sample that are shown."""
SCREENS: dict[type, str] = {
    GenerateSample: "go.samples",
    Chat: "go.chat",
    MeasureGradients: "go.gradients",
}
"""Action that shows the result of a command in full."""


@dataclass(frozen=True)
class Status:
    """One line of news."""

    time: float
    """Unix seconds of the event."""
    text: str
    level: str = "info"
    """info, warning or error."""
    shown_by: str = ""
    """Id of the action that shows the result in full; empty without one."""


def status_of(state: AppState, now: float) -> Status | None:
    """Return the newest news at `now` (Unix seconds); None if none is new.

    What belongs to an incident is news only while the incident is active. Of a run that has ended,
    the last event stays.
    """
    here = now + state.link.clock_offset_s
    if state.state.ended and state.run.time is not None:
        here = state.run.time
    fresh = [one for one in _news(state) if here - one.time <= _lifetime_s(one)]
    return max(fresh, key=lambda one: one.time, default=None)


def _lifetime_s(status: Status) -> float:
    return LIFETIME_S if status.level in {"info", "debug"} else FAULT_LIFETIME_S


def _news(state: AppState) -> Iterator[Status]:
    """Yield the newest log line, and the newest command that has its outcome."""
    run = state.run
    active = {a.event.id for i in run.incidents if i.active for a in i.alarms}
    line = next((x for x in reversed(run.log) if not x.anomaly or x.anomaly in active), None)
    if line is not None:
        yield Status(line.time, line.text.replace("\n", " "), line.level)
    settled = (item for item in reversed(run.interventions.items) if item.settled)
    item = next(settled, None)
    if item is not None and (item.time or item.sent_at) is not None:
        failed = item.phase is not Phase.APPLIED
        level = "warning" if failed else "info"
        kind = type(item.command or recorded_command(item.text))
        screen = "" if failed else SCREENS.get(kind, "")
        yield Status(item.time or item.sent_at or 0.0, result_of(run, item), level, screen)


def result_of(run: RunView, item: Intervention) -> str:
    """Return the result of a command with its values, such as `eval: 6.18, was 6.58`."""
    command = item.command or recorded_command(item.text)
    found = _value(run, item, command) if item.phase is Phase.APPLIED else ""
    return found or f"{item.text}: {item.outcome()}"


def _value(run: RunView, item: Intervention, command: AnyCommand | None) -> str:
    """Return what a command has found; empty if it looks for nothing or has not found it yet."""
    match command:
        case Evaluate():
            return _evaluated(run, item.step or 0)
        case GenerateSample(prompt=prompt):
            texts = [s.text for s in run.samples if s.prompt == prompt]
            words = " ".join(texts[-1].split()) if texts else ""
            shown = fmt.clip_to(words, WORDS)
            return f"sample: {shown}" if words else ""
        case MeasureGradients():
            return _flow(run, item.step or 0)
        case _:
            return ""


def _evaluated(run: RunView, step: int) -> str:
    newest = len(run.branches) - 1
    value = value_on(run.branches, newest, f"{EVAL}loss", step)
    before = value_on(run.branches, newest, f"{EVAL}loss", step - 1)
    if value is None:
        return ""
    was = f", was {fmt.number(before)}" if before is not None else ""
    return f"eval: {fmt.number(value)}{was}"


def _flow(run: RunView, step: int) -> str:
    """Return the figures of the gradient flow that was measured after a step; empty without one."""
    flow = run.gradients
    if flow is None or run.gradients_at < step or not flow.modules:
        return ""
    largest = max(flow.modules, key=lambda module: module.grad_norm)
    parts = [
        f"gradients at step {run.gradients_at:,}: {fmt.plural(len(flow.modules), 'module')}",
        f"largest {largest.module} {fmt.number(largest.grad_norm)}",
        f"{len(flow.dead)} dead, {len(flow.exploding)} exploding",
    ]
    return ", ".join(parts)
