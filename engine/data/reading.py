"""Read the records of the configured sources, and hold out evaluation records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from ..config.schema import STDLIB_PAIRS, RunConfig
from ..config.tasks import FORMATS_OF
from ..errors import DataError
from .formats import ACCEPTED, Format, Record, detect_format, to_record
from .sampler import epoch_order
from .sources import SourceRecord, read_rows
from .stdlib_pairs import stdlib_pairs

Progress = Callable[[str, float, float], None]
"""Called with (label, done, total)."""
HOLDOUT_SEED = 0
"""Seed of the held-out choice; not the run's seed, so that all runs hold out the same records."""
T = TypeVar("T")


def read_records(config: RunConfig, progress: Progress) -> tuple[list[list[Record]], list[Record]]:
    """Return the records of each training source, and the evaluation records."""
    data = config.data
    parts: list[list[Record]] = []
    held: list[Record] = []
    if data.train == STDLIB_PAIRS:
        own_eval = data.eval is None or data.eval == STDLIB_PAIRS
        train, held = _stdlib_records(data.eval_fraction if own_eval else 0.0, progress)
        parts = [train[: data.train_limit]]
    elif not data.streaming:
        for source in data.sources:
            split = source.split or data.train_split
            rows = _read(config, source.path, split, data.train_limit, progress)
            fraction = data.eval_fraction if data.eval is None else 0.0
            kept, out = hold_out(rows, fraction, data.eval_limit)
            parts.append(kept)
            held += out
    if data.eval is not None and data.eval != STDLIB_PAIRS:
        held = _read(config, data.eval, data.eval_split, None, progress)
    elif data.eval == STDLIB_PAIRS != data.train:
        held, _ = _stdlib_records(0.0, progress)
    return parts, evenly_spaced(held, data.eval_limit)


def _stdlib_records(eval_fraction: float, progress: Progress) -> tuple[list[Record], list[Record]]:
    train, held = stdlib_pairs(eval_fraction, progress)
    return list(train), list(held)


def _read(
    config: RunConfig, source: str, split: str, limit: int | None, progress: Progress
) -> list[Record]:
    label = f"reading {source}"
    progress(label, 0, 1)
    rows = read_rows(source, split, limit)
    form = format_of(config, source, rows)
    stem = Path(source).stem
    records = [
        to_record(row.values, form, f"{stem}:{number}", row.place)
        for number, row in enumerate(rows, start=1)
    ]
    progress(label, 1, 1)
    return records


def format_of(config: RunConfig, source: str, rows: list[SourceRecord]) -> Format:
    """Return the format of a source.

    Raises:
        DataError: The columns match no known format, or the task cannot use the format.
    """
    columns = list(rows[0].values)
    found = (
        config.data.format if config.data.format != "auto" else detect_format(columns, config.task)
    )
    if found is None:
        raise DataError(
            f"{source}: the columns {', '.join(columns) or '(none)'} match no known format. "
            f"Accepted: {ACCEPTED}"
        )
    if found not in FORMATS_OF[config.task]:
        raise DataError(
            f"{source}: the columns {', '.join(columns)} have the format {found}, but task "
            f"{config.task} needs {' or '.join(FORMATS_OF[config.task])}; change the task or the "
            f"data. Accepted: {ACCEPTED}"
        )
    return found


def hold_out(items: Sequence[T], fraction: float, limit: int | None) -> tuple[list[T], list[T]]:
    """Split items into (kept, held out) in their order; the choice depends only on their number.

    Args:
        items: All records.
        fraction: Share to hold out; any share above 0 holds out at least one record.
        limit: Largest number of records to hold out.
    """
    wanted = max(1, round(len(items) * fraction)) if fraction and len(items) > 1 else 0
    chosen = epoch_order(len(items), HOLDOUT_SEED, 0)[: min(wanted, limit or wanted)]
    held = {int(index) for index in chosen}
    kept = [item for index, item in enumerate(items) if index not in held]
    return kept, [items[index] for index in sorted(held)]


def evenly_spaced(items: Sequence[T], limit: int | None) -> list[T]:
    """Return at most `limit` evenly spaced items, which represent a sorted file as a whole."""
    if limit is None or len(items) <= limit:
        return list(items)
    return [items[index * len(items) // limit] for index in range(limit)]
