"""What the losses of single rows say about an alert: one odd record, the batch, or the weights.

The rows of the alert's step and of the step before are computed again with the weights after the
alert. The rows of the step before were trained on, so that a rise of their loss shows damaged
weights. If the rows of the alert's step are back at the usual level without their worst record (of
many rows, without the worst of every 16 records), those records explain the alert.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import msgspec

T = TypeVar("T")

CURRENT, PREVIOUS = "current", "previous"

ONE_RECORD, BATCH, WEIGHTS, ROWS, UNCLEAR = "one record", "batch", "weights", "rows", ""
"""Where an alert comes from; `rows` is the batch or the weights, if there is no step before."""

RECORDS_PER_ODD = 16
"""One of 16 records may explain an alert, and one of fewer than 16."""
REMAINING_SHARE = 0.25
"""A cause explains a rise if without it at most a quarter of the rise remains."""
MOST_REMAINING = 0.5
"""Noise of the rows may leave more of the rise, but never more than half of it."""
NOISE_SD = 2.0
"""Standard deviations of a mean of rows that count as noise."""
USUAL_RISE = 0.1
"""Losses that are computed again differ by up to 10 %, because of dropout and the update."""
MOST_USUAL = 0.3
"""However large the rise is, other rows are as usual up to 30 % above the usual loss at most, or
within their noise: from there on a step could be an alarm of its own."""
ODD_SD, ODD_RISE = 4.0, 1.5
"""A row is odd from 4 standard deviations of rows and half the usual loss above that loss."""
NORMAL_MAD = 1.4826
"""Standard deviation of normal noise over its median absolute deviation."""
RAISED_STEPS = 20
"""After a rise of the learning rate no record explains an alert for so many steps."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The loss of one row, or of one document of a packed row."""

    rank: int
    batch: str
    """current or previous."""
    id: str
    place: str = ""
    """Where the record is stored, such as `train.jsonl:7`; empty if built in memory."""
    loss: float
    weight: float = 1.0
    """Its weight in the mean over the step, such as the number of its targets."""

    @property
    def name(self) -> str:
        """The place of the record, or its id if it has none."""
        return self.place or self.id


class RowSpan(msgspec.Struct, frozen=True, kw_only=True):
    """The losses of the rows of one step, in short."""

    rows: int
    lowest: float
    median: float
    highest: float
    mean: float
    """Weighted as in the loss of the step."""


class RowEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What the rows of the alert's step and of the step before say."""

    origin: str = UNCLEAR
    """one record, batch, weights, rows, or empty if the rows do not show it."""
    odd: list[str] = []
    """Places of the records that are far above the usual loss, the highest first."""
    current: RowSpan | None = None
    previous: RowSpan | None = None
    previous_loss: float | None = None
    """Loss of the step before as it was trained."""
    rank: int | None = None
    """The only rank that has odd rows, if there are several ranks and several odd rows."""
    source: str = ""
    """The only file that has odd rows, if there are several files and several odd rows."""
    blocked: str = ""
    """Why one record is not taken for the explanation although the rows fit it."""

    @property
    def explained_by(self) -> str:
        """The record, or the few records, that explain the alert; empty if none does."""
        if self.origin != ONE_RECORD or self.blocked:
            return ""
        return named(self.odd)


def named(records: Sequence[str]) -> str:
    """Return the names of records as text, of many the first three and the number of the others."""
    shown = ", ".join(records[:3])
    return shown if len(records) <= 3 else f"{shown} and {len(records) - 3} more"


class Rise(msgspec.Struct, frozen=True, kw_only=True):
    """The rise of the loss that the rows are to explain."""

    level: float
    """The usual loss before the alert."""
    loss: float
    """The loss of the alert's step; may be NaN or infinite."""
    previous_loss: float | None = None
    lr_raised: str = ""
    """The newest rise of the learning rate in the last `RAISED_STEPS` steps; empty without one."""

    @property
    def size(self) -> float:
        """The rise; 0 if the loss has not risen, infinite if it is not finite."""
        if not math.isfinite(self.loss):
            return math.inf
        return max(self.loss - self.level, 0.0)


def weigh(rows: Sequence[Row], rise: Rise) -> RowEvidence:
    """Conclude from the losses of single rows where a rise of the loss comes from.

    Without rows of the alert's step the evidence is empty.

    Args:
        rows: the rows of the alert's step and of the step before, computed again.
        rise: the rise of the loss.
    """
    now = [row for row in rows if row.batch == CURRENT]
    before = [row for row in rows if row.batch == PREVIOUS]
    if not now:
        return RowEvidence()
    noise = _noise(before, now)
    odd = _odd(now, rise, noise)
    origin, causing = _origin(now, before, rise, noise, odd)
    blocked = ""
    if origin == ONE_RECORD and rise.lr_raised:
        blocked = f"the learning rate was raised shortly before: {rise.lr_raised}"
    return RowEvidence(
        origin=origin,
        odd=list(dict.fromkeys(row.name for row in (causing or odd))),
        current=_span(now),
        previous=_span(before),
        previous_loss=rise.previous_loss,
        rank=_only([row.rank for row in odd], [row.rank for row in now]),
        source=_only([_source(row) for row in odd], [_source(row) for row in now]) or "",
        blocked=blocked,
    )


def _origin(
    now: list[Row], before: list[Row], rise: Rise, noise: float, odd: list[Row]
) -> tuple[str, list[Row]]:
    """Return where the rise comes from, and the records that explain it alone."""
    if before and _damaged(before, rise):
        return WEIGHTS, []
    if _mean(now) <= rise.level + _slack(rise, noise, len(now)) and not (odd and rise.size == 0):
        return UNCLEAR, []
    causing = _explaining(now, rise, noise)
    if causing and (before or len(causing) < len(now)):
        return ONE_RECORD, causing
    return (BATCH if before else ROWS), []


def _damaged(before: list[Row], rise: Rise) -> bool:
    """Whether the rows of the step before have a clearly higher loss now than when trained.

    True also if their loss is not finite now.
    """
    trained = rise.previous_loss
    if trained is None or not math.isfinite(trained):
        trained = rise.level
    share = rise.size * REMAINING_SHARE if math.isfinite(rise.size) else 0.0
    allowed = min(max(share, USUAL_RISE * abs(trained)), MOST_USUAL * abs(trained))
    return not _mean(before) <= trained + allowed


def _explaining(now: list[Row], rise: Rise, noise: float) -> list[Row]:
    """Return the rows of the worst records, without which the rest is as usual.

    Records are taken out one by one; empty if more than one of `RECORDS_PER_ODD` would have to go.
    """
    rest, causing = sorted(now, key=lambda row: -_size(row.loss)), list[Row]()
    most = max(1, len({row.name for row in now}) // RECORDS_PER_ODD)
    for _ in range(most):
        name = rest[0].name
        causing += [row for row in rest if row.name == name]
        rest = [row for row in rest if row.name != name]
        if not rest or _mean(rest) <= rise.level + _slack(rise, noise, len(rest)):
            return causing
    return []


def _slack(rise: Rise, noise: float, rows: int) -> float:
    """Return how far a mean of rows may be above the usual loss and still be as usual."""
    random = NOISE_SD * noise / math.sqrt(max(rows, 1))
    most = max(MOST_USUAL * abs(rise.level), random)
    if not math.isfinite(rise.size):
        return most
    if rise.size == 0:
        return max(random, USUAL_RISE * abs(rise.level))
    remaining = max(REMAINING_SHARE * rise.size, random)
    return min(remaining, MOST_REMAINING * rise.size, most)


def _odd(now: list[Row], rise: Rise, noise: float) -> list[Row]:
    """Return the rows whose loss is far above the usual loss or not finite, the highest first."""
    least = max(rise.level + ODD_SD * noise, ODD_RISE * rise.level)
    found = [row for row in now if not row.loss <= least]
    return sorted(found, key=lambda row: -_size(row.loss))


def _noise(before: list[Row], now: list[Row]) -> float:
    """Return the standard deviation of a row, from the step before if its rows are known.

    It is 0 with fewer than two finite losses.
    """
    known = sorted(row.loss for row in (before or now) if math.isfinite(row.loss))
    if len(known) < 2:
        return 0.0
    middle = known[len(known) // 2]
    apart = sorted(abs(loss - middle) for loss in known)
    return NORMAL_MAD * apart[len(apart) // 2]


def _mean(rows: Sequence[Row]) -> float:
    total = sum(row.weight for row in rows)
    return sum(row.loss * row.weight for row in rows) / total if total > 0 else math.nan


def _size(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf


def _span(rows: list[Row]) -> RowSpan | None:
    if not rows:
        return None
    known = sorted(_size(row.loss) for row in rows)
    return RowSpan(
        rows=len(rows),
        lowest=known[0],
        median=known[len(known) // 2],
        highest=known[-1],
        mean=_mean(rows),
    )


def _source(row: Row) -> str:
    return row.place.rpartition(":")[0]


def _only(odd: list[T], all_of_them: list[T]) -> T | None:
    """Return the one value that several odd rows share, if other rows have other values.

    Else return None.
    """
    values = set(odd)
    return odd[0] if len(odd) > 1 and len(values) == 1 and set(all_of_them) != values else None
