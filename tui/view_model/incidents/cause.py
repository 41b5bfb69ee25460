"""Which incident a command was sent for."""

from __future__ import annotations

from collections.abc import Sequence

from fttui.engine.protocol.commands import (
    AnyCommand,
    FindCulprits,
    Recover,
    Rollback,
    ScaleLr,
    recorded_command,
    spec_of,
)
from fttui.engine.protocol.events import CommandAccepted, CommandApplied, CommandFailed
from fttui.engine.protocol.thresholds import TRAINING_KINDS

from ..branches import Branch, live_ends
from .alarm import Anomaly, calls
from .incident import RollbackMade

REASON = "anomaly "
"""Prefix of the reason of a command that the app sends for an incident; an anomaly's id follows."""


def incident_meant(
    event: CommandAccepted | CommandApplied | CommandFailed,
    anomalies: Sequence[Anomaly],
    branches: Sequence[Branch],
    rollbacks: Sequence[RollbackMade],
) -> str:
    """Return the id of the incident that a command was sent for; empty if it was for none.

    A command may name an anomaly, as an argument or in its reason. Without one, a command that
    changes how the weights are trained was sent for the incident of the newest alarm that still
    calls for something, or else of the newest one that the last rollback has undone. A learning
    rate above its schedule is a remedy for none.
    """
    command = recorded_command(event.command)
    if (named := _named(event, command)) and (incident := _incident_of(named, anomalies)):
        return incident
    if command is None or not spec_of(command).in_lineage or _raises(command):
        return ""
    ends = live_ends(branches) if anomalies else {}
    calling = (a.incident for a in reversed(anomalies) if _threatens(a) and calls(a, ends))
    if incident := next(calling, ""):
        return incident
    returns = isinstance(command, Recover | Rollback) and isinstance(event, CommandApplied)
    return _undone_last(anomalies, rollbacks) if returns else ""


def _named(
    event: CommandAccepted | CommandApplied | CommandFailed, command: AnyCommand | None
) -> str:
    """Return the id of the anomaly that a command or its reason names; empty without one."""
    if isinstance(command, Recover | FindCulprits) and command.anomaly:
        return command.anomaly
    reason = "" if isinstance(event, CommandFailed) else event.reason
    return reason.removeprefix(REASON) if reason.startswith(REASON) else ""


def _incident_of(name: str, anomalies: Sequence[Anomaly]) -> str:
    known = (a for a in reversed(anomalies) if name in (a.event.id, a.incident))
    return next((a.incident for a in known), "")


def _raises(command: AnyCommand) -> bool:
    return isinstance(command, ScaleLr) and command.factor > 1


def _undone_last(anomalies: Sequence[Anomaly], rollbacks: Sequence[RollbackMade]) -> str:
    """Return the id of the incident whose newest alarm the last rollback has undone."""
    last = rollbacks[-1].event if rollbacks else None
    if last is None:
        return ""
    undone = (
        a.incident
        for a in reversed(anomalies)
        if _threatens(a)
        and last.to_step < a.step <= last.from_step
        and rollbacks[-1].time >= a.time
    )
    return next(undone, "")


def _threatens(alarm: Anomaly) -> bool:
    """Whether an alarm is about the weights, so that a change of training may be meant for it."""
    return alarm.event.kind in TRAINING_KINDS and alarm.event.severity != "info"
