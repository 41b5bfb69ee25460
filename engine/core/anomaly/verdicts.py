"""Did it come back? Some records after an alarm the level of then and now are compared."""

from __future__ import annotations

import math

import msgspec

from .alerts import Alert, Verdict
from .channel import Channel, from_scale
from .instability import Instability

AFTER_RECORDS = 30
LAST_RECORDS = 8
BACK_SD = 2.0
BACK_RISE = 0.03
GRAD_BACK_RISE = math.log(2)
"""A gradient norm within a factor of two of its old level is as good as back."""


class Pending(msgspec.Struct):
    """An alarm that waits for its verdict."""

    id: str
    channel: str
    """loss or grad."""
    level: float
    """Before the alarm, on the channel's scale."""
    margin: float
    """How far above it still counts as back."""
    age: int = 0
    last: list[float] = []
    """The newest values of the channel, on its scale; shorter when some were not finite."""


class Verdicts(msgspec.Struct):
    """The alarms under observation."""

    pending: list[Pending] = []

    def watch(self, alert: Alert, watched: Instability) -> None:
        """Observe an alarm from now on, unless its channel has never had a level."""
        channel = "grad" if alert.kind == "grad_explosion" else "loss"
        source: Channel = getattr(watched, channel)
        if not len(source.recent):
            return
        level = source.recent.median()
        if alert.kind == "divergence":
            level = watched.trend.slow.median() if len(watched.trend.slow) else level
        sd = source.residuals.spread() if len(source.residuals) else 0.0
        rise = GRAD_BACK_RISE if channel == "grad" else BACK_RISE
        margin = max(BACK_SD * sd, rise)
        self.pending.append(Pending(id=alert.id, channel=channel, level=level, margin=margin))

    def update(self, values: dict[str, float | None], step: int) -> list[Verdict]:
        """Take a record in; returns the verdicts that are due.

        Args:
            values: loss and grad on their channels' scales; None where not finite or not logged.
            step: of the record.
        """
        due = []
        for item in self.pending:
            item.age += 1
            value = values[item.channel]
            if item.age > AFTER_RECORDS - LAST_RECORDS and value is not None:
                item.last.append(value)
            if item.age == AFTER_RECORDS:
                due.append(_judge(item, step))
        if due:
            self.pending = [item for item in self.pending if item.age < AFTER_RECORDS]
        return due


def _judge(item: Pending, step: int) -> Verdict:
    unscale = math.exp if item.channel == "grad" else from_scale
    now = sorted(item.last)[len(item.last) // 2] if item.last else None
    back = len(item.last) > LAST_RECORDS // 2 and now is not None
    back = back and now is not None and now <= item.level + item.margin
    return Verdict(
        id=item.id,
        verdict="recovered" if back else "not recovered",
        step=step,
        level_before=unscale(item.level),
        level_after=unscale(now) if now is not None else None,
    )
