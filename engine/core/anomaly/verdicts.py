"""Did it come back? Some records after an alert the quantity is held against what it was before."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from .alerts import AlertVerdict


class Yardstick(msgspec.Struct, frozen=True, kw_only=True):
    """What tells whether an alert is over."""

    channel: str
    """Name of the quantity; higher is worse on its scale."""
    level: float
    """Where it is over, on that scale."""
    margin: float = 0.0
    """How far above still counts."""
    records: int = 30
    """To wait; only records that have the quantity count."""
    last: int = 8
    """How many of them are judged, by their median."""


class OpenAlert(msgspec.Struct):
    """An alert that waits for its verdict."""

    id: str
    by: Yardstick
    age: int = 0
    last: list[float | None] = []
    """The newest values, which are judged; None where one was not finite."""


class Verdicts(msgspec.Struct):
    """The alerts under observation."""

    pending: list[OpenAlert] = []

    def watch(self, alert: str, by: Yardstick) -> None:
        """Observe an alert from now on."""
        self.pending.append(OpenAlert(id=alert, by=by))

    def watches(self, channel: str) -> bool:
        """Whether anything on a channel waits for its verdict."""
        return any(item.by.channel == channel for item in self.pending)

    def update(
        self, values: Mapping[str, float | None], step: int, back: Callable[[str, float], float]
    ) -> list[AlertVerdict]:
        """Take a record in; returns the verdicts that are due.

        Args:
            values: by channel, on its scale; None where not finite, absent where not known.
            step: of the record.
            back: from a channel's scale to the unit a person reads.
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
        """Nothing more will come: judge what waits by what there is."""
        due, self.pending = self.pending, []
        return [_judge(item, step, back) for item in due]


def _take(item: OpenAlert, value: float | None) -> bool:
    item.age += 1
    item.last = [*item.last[1 - item.by.last :], value] if item.by.last > 1 else [value]
    return item.age >= item.by.records


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
