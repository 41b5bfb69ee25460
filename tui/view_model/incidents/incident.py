"""One incident: the alarms of one cause, its state, what was done about it, how it ended."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from fttui.engine.protocol.commands import AnyCommand, spec_of
from fttui.engine.protocol.event_parts import RecommendedCommand
from fttui.engine.protocol.events import AutopilotDecided, ProbationEnded, RolledBack
from fttui.engine.protocol.thresholds import TRAINING_KINDS

from ..interventions import Intervention, Phase
from .alarm import Anomaly

SEVERITIES = ("info", "watch", "alarm")
"""Severities of alerts, the most severe last."""


class IncidentState(StrEnum):
    """The state of an incident."""

    OPEN = "open"
    """An alarm requires an action, and nothing was done since."""
    RECOVERING = "recovering"
    """An action was taken whose result is not known yet."""
    RECOVERED = "recovered"
    UNSTABLE = "unstable"
    """Its peaks come again and again, and each has returned so far."""
    WATCHED = "watched"
    """Nothing but hints and warnings, which may become serious."""
    CLEARED = "cleared"
    """It is over without a verdict that it recovered."""
    ABANDONED = "abandoned"
    """A rollback has undone all of its steps, without a recovery that got a verdict."""


@dataclass(frozen=True)
class RollbackMade:
    """A rollback of the journal."""

    time: float
    event: RolledBack


@dataclass(frozen=True)
class ProbationSeen:
    """The end of a probation."""

    time: float
    event: ProbationEnded


@dataclass(frozen=True)
class Incident:
    """The alarms of one cause."""

    id: str
    """Id of its first alarm."""
    alarms: tuple[Anomaly, ...]
    """Its anomalies, oldest first; never empty."""
    pending: tuple[Anomaly, ...]
    """Those that may still call for something, oldest first: on the timeline that training is on,
    without a good verdict, and with a value that has not come back."""
    state: IncidentState
    commands: tuple[Intervention, ...] = ()
    """The commands sent for it, by whomever, oldest first."""
    rollbacks: tuple[RollbackMade, ...] = ()
    """The rollbacks that have undone alarms of it."""
    probation: ProbationEnded | None = None
    """The newest probation after a recovery from it that has ended."""
    decision: AutopilotDecided | None = None
    """The autopilot's newest decision about it."""

    @property
    def first_step(self) -> int:
        """Step of its first alarm."""
        return self.alarms[0].step

    @property
    def last_step(self) -> int:
        """Highest step of an alarm."""
        return max(alarm.step for alarm in self.alarms)

    @property
    def timelines(self) -> tuple[int, ...]:
        """The timelines on which its alarms were raised."""
        return tuple(dict.fromkeys(alarm.timeline for alarm in self.alarms))

    @property
    def repeat(self) -> Anomaly | None:
        """The newest of the peaks that recur after its alarms; None if they do not recur."""
        return next((a for a in reversed(self.alarms) if a.event.repeats), None)

    @property
    def severity(self) -> str:
        """The highest severity of its pending alarms, or of all if none is pending.

        Peaks that recur and return are worth watching, whatever the first ones were.
        """
        if not self.pending and self.state is IncidentState.UNSTABLE:
            return "watch"
        return max((_severity(a) for a in self.pending or self.alarms), key=SEVERITIES.index)

    @property
    def active(self) -> bool:
        """Whether it may be the current incident."""
        return bool(self.pending) or self.state is IncidentState.UNSTABLE

    @cached_property
    def main(self) -> Anomaly:
        """The alarm whose report stands for the incident.

        It is the one whose advice is followed, else the first of the most severe ones.
        """
        if self.pending and self._advising is not None:
            return self._advising
        shown = self.pending or self.alarms
        return max(shown, key=lambda a: SEVERITIES.index(_severity(a)))

    @cached_property
    def advice(self) -> tuple[Advice, ...]:
        """The recommended commands that were not sent yet, the one to follow first.

        The most severe first recommendation of a pending alarm wins, the newest one of equal
        gravity.
        """
        first = self._advising
        if first is None:
            return ()
        rest = [alarm for alarm in reversed(self.pending) if alarm is not first]
        return tuple(self._without_repeats([first, *rest]))

    @cached_property
    def _advising(self) -> Anomaly | None:
        """The pending alarm whose first recommendation is followed; None if none has one."""
        found = [(left[0], a) for a in reversed(self.pending) if (left := self._left(a))]
        return max(found, key=lambda pair: gravity(pair[0]), default=(None, None))[1]

    @cached_property
    def _applied_at(self) -> Mapping[str, float]:
        """When each command for the incident was applied last, by its text."""
        return {c.text: c.time or 0.0 for c in self.commands if c.phase is Phase.APPLIED}

    def _left(self, alarm: Anomaly) -> list[RecommendedCommand]:
        """Return what an alarm's report recommends, without what was applied since."""
        applied = self._applied_at
        return [w for w in alarm.event.ways if applied.get(w.text, -math.inf) < alarm.time]

    def _without_repeats(self, ordered: Sequence[Anomaly]) -> Iterator[Advice]:
        """Yield the advice of alarms, of every kind of command only that of the first alarm."""
        known: set[str] = set()
        for alarm in ordered:
            ways = [way for way in self._left(alarm) if _kind(way) not in known]
            yield from (Advice(way, alarm) for way in ways)
            known |= {_kind(way) for way in ways}

    @property
    def command(self) -> AnyCommand | None:
        """The command to follow; None without one, and for one that this version lacks."""
        return self.advice[0].way.typed if self.advice else None

    @property
    def text(self) -> str:
        """The state in words; an abandoned incident names its timelines."""
        if self.state is not IncidentState.ABANDONED:
            return self.state.value
        return f"abandoned (timeline {', '.join(map(str, self.timelines))})"


@dataclass(frozen=True)
class Advice:
    """A command that the report of an alarm recommends."""

    way: RecommendedCommand
    alarm: Anomaly


def gravity(way: RecommendedCommand) -> int:
    """Return how grave an anomaly is whose report recommends this command first."""
    command = way.typed
    return 0 if command is None else spec_of(command).gravity


def rank(incident: Incident) -> tuple[int, int, int, float]:
    """Return the order of incidents: the most severe one is the current one.

    It is that with the highest severity, then without a command sent, then with the most severe
    advice, then the newest.
    """
    advice = incident.advice
    return (
        SEVERITIES.index(incident.severity),
        int(incident.state is not IncidentState.RECOVERING),
        gravity(advice[0].way) if advice else -1,
        incident.alarms[-1].time,
    )


def current_of(incidents: Sequence[Incident]) -> Incident | None:
    """Return the incident that requires an action most urgently; None if none does."""
    return max((i for i in incidents if i.active), key=rank, default=None)


def foremost_of(incidents: Sequence[Incident]) -> Incident | None:
    """Return the incident whose report is the one to read; None without any.

    It is the current one. If none requires an action, it is the most severe one, of equals the
    newest; what threatens the weights comes before what does not.
    """
    ended = max(
        incidents,
        key=lambda i: (SEVERITIES.index(i.severity), _threatens(i), i.alarms[-1].time),
        default=None,
    )
    return current_of(incidents) or ended


def _threatens(incident: Incident) -> bool:
    return any(alarm.event.kind in TRAINING_KINDS for alarm in incident.alarms)


def _severity(alarm: Anomaly) -> str:
    return alarm.event.severity if alarm.event.severity in SEVERITIES else "watch"


def _kind(way: RecommendedCommand) -> str:
    command = way.typed
    return way.text if command is None else spec_of(command).verb
