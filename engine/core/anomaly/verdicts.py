"""Verdicts on alerts: whether, some records later, the quantity is back at its earlier level."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from .alerts import AlertVerdict


class Yardstick(msgspec.Struct, frozen=True, kw_only=True):
    """The quantity, level and waiting time that decide whether an alert is over."""

    channel: str
    """Name of the quantity, on a scale where higher is worse."""
    level: float
    """Level at which the alert is over, on that scale."""
    margin: float = 0.0
    """Distance above the level that still counts as back."""
    records: int = 30
    """Number of records to wait; only records with the quantity count."""
    last: int = 8
    """Number of the newest values whose median is compared with the level."""


class OpenAlert(msgspec.Struct):
    """An alert that waits for its verdict."""

    id: str
    by: Yardstick
    age: int = 0
    last: list[float | None] = []
    """The newest values; None for one that was not finite."""


class Verdicts(msgspec.Struct):
    """The alerts that wait for their verdicts."""

    pending: list[OpenAlert] = []

    def watch(self, alert: str, by: Yardstick) -> None:
        """Add an alert by its id; `update` returns its verdict, reached by the yardstick `by`."""
        self.pending.append(OpenAlert(id=alert, by=by))

    def watches(self, channel: str) -> bool:
        """Return whether an alert about a quantity waits for its verdict."""
        return any(item.by.channel == channel for item in self.pending)

    def back(self) -> set[str]:
        """Return the ids of the waiting alerts whose quantity was back before the newest record.

        That needs a full number of values without the newest one, of which more than half are
        known, with a median near the earlier level.
        """
        return {item.id for item in self.pending if _back_before(item)}

    def update(
        self, values: Mapping[str, float | None], step: int, back: Callable[[str, float], float]
    ) -> list[AlertVerdict]:
        """Add a record; return the verdicts that are due. Their alerts no longer wait.

        Args:
            values: value by quantity, on its scale; None if not finite, absent if unknown.
            step: step of the record.
            back: converts a value from the scale of a quantity to its own unit.
        """
        due, staying = [], []
        for item in self.pending:
            if item.by.channel in values and _take(item, values[item.by.channel]):
                due.append(_judge(item, step, back))
            else:
                staying.append(item)
        self.pending = staying
        return due

    def settle(self, step: int, back: Callable[[str, float], float]) -> list[AlertVerdict]:
        """Return verdicts on all waiting alerts by the records so far, because the run ends.

        No alert waits afterwards.

        Args:
            step: the last step.
            back: as in `update`.
        """
        due, self.pending = self.pending, []
        return [_judge(item, step, back) for item in due]


def _take(item: OpenAlert, value: float | None) -> bool:
    item.age += 1
    item.last = [*item.last[1 - item.by.last :], value] if item.by.last > 1 else [value]
    return item.age >= item.by.records


def _back_before(item: OpenAlert) -> bool:
    by = item.by
    before = item.last[:-1]
    known = sorted(value for value in before if value is not None)
    if item.age <= by.last or 2 * len(known) <= len(before):
        return False
    return known[len(known) // 2] <= by.level + by.margin


def _judge(item: OpenAlert, step: int, back: Callable[[str, float], float]) -> AlertVerdict:
    by = item.by
    known = sorted(value for value in item.last if value is not None)
    now = known[len(known) // 2] if known else None
    over = now is not None and 2 * len(known) > by.last and now <= by.level + by.margin
    undecided = item.age < by.records and 2 * len(item.last) <= by.last
    return AlertVerdict(
        id=item.id,
        verdict="undecided" if undecided else "recovered" if over else "not recovered",
        step=step,
        level_before=back(by.channel, by.level),
        level_after=None if now is None else back(by.channel, now),
    )
