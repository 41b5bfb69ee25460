"""Read the records of the configured sources, and hold out evaluation records."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from ..config.data_reasons import REPEATED_IDS
from ..config.data_reasons.rows import MIXED_SOURCES, NAN_LABEL
from ..config.schema import STDLIB_PAIRS, Column, DataSource, RunConfig
from ..config.tasks import Format
from .batches.mixing import epoch_order
from .findings import Findings
from .records.formats import CompletionRecord, Record, is_conversation, place_of
from .records.reader import SAMPLE_ROWS, FormatDecision, RecordReader
from .sources import SourceRecord, read_rows
from .stdlib_pairs import stdlib_pairs

Progress = Callable[[str, float, float], None]
"""Called with (label, done, total)."""
HOLDOUT_SEED = 0
"""Seed by which records are held out; not the run's, so that all runs hold out the same ones."""
T = TypeVar("T")


@dataclass(frozen=True)
class SourceSummary:
    """The path, use, format and number of records of one source."""

    path: str
    use: Literal["train", "eval"]
    form: Format
    records: int

    @property
    def line(self) -> str:
        """The summary as a line of text."""
        use = "" if self.use == "train" else ", for evaluation"
        unit = "record" if self.records == 1 else "records"
        return f"{self.path}: {self.records:,} {unit} ({self.form.replace('_', ' + ')}){use}"


@dataclass(frozen=True)
class SourceRecords:
    """The records of all sources."""

    train: list[list[Record]]
    """The records of each training source."""
    eval: list[Record]
    sources: list[SourceSummary]
    findings: Findings
    """Rows that cannot be read, what was guessed to read the others, and unused columns."""

    @property
    def count(self) -> int:
        """The number of records for training and evaluation together."""
        return sum(map(len, self.train)) + len(self.eval)

    def __add__(self, other: SourceRecords) -> SourceRecords:
        """Return the records of both, with the training sources of this object first."""
        both = Findings()
        both.add(self.findings)
        both.add(other.findings)
        return SourceRecords(
            self.train + other.train,
            self.eval + other.eval,
            self.sources + other.sources,
            both,
        )


def read_records(config: RunConfig, progress: Progress) -> SourceRecords:
    """Read all sources, except training data that are streamed.

    Without `data.eval`, evaluation records are held out of the training records.

    Raises:
        DataError: A source is missing, unreadable or empty, or holds an invalid record.
    """
    data = config.data
    parts: list[list[Record]] = []
    held: list[Record] = []
    summaries: list[SourceSummary] = []
    findings = Findings()
    if data.train == STDLIB_PAIRS:
        own_eval = data.eval is None or data.eval == STDLIB_PAIRS
        train, held = _stdlib_records(data.eval_fraction if own_eval else 0.0, progress)
        parts = [train[: data.train_limit]]
        summaries.append(SourceSummary(STDLIB_PAIRS, "train", "pairs", len(train) + len(held)))
    elif not data.streaming:
        for source in data.sources:
            split = source.split or data.train_split
            own = of_source(config, source)
            rows, form = _read(own, source.path, split, data.train_limit, findings, progress)
            summaries.append(SourceSummary(source.path, "train", form, len(rows)))
            fraction = data.eval_fraction if data.eval is None else 0.0
            kept, out = hold_out(rows, fraction, data.eval_limit)
            parts.append(kept)
            held += out
    if data.eval is not None and (data.eval != STDLIB_PAIRS or data.train != STDLIB_PAIRS):
        held, form = _evaluation_records(config, data.eval, findings, progress)
        summaries.append(SourceSummary(data.eval, "eval", form, len(held)))
    _note_repeated_ids(parts, findings)
    _note_mixed_sources(parts, findings)
    return SourceRecords(parts, evenly_spaced(held, data.eval_limit), summaries, findings)


def _note_mixed_sources(parts: Sequence[Sequence[Record]], findings: Findings) -> None:
    """Count prompts and completions of plain text beside sources of conversations."""
    first = [part[0] for part in parts if part]
    plain = [one for one in first if isinstance(one, CompletionRecord) and not is_conversation(one)]
    if plain and any(map(is_conversation, first)):
        count = sum(len(part) for part in parts if part and part[0] in plain)
        findings.note(MIXED_SOURCES, place_of(plain[0]), count=count)


def _note_repeated_ids(parts: Sequence[Sequence[Record]], findings: Findings) -> None:
    known: set[str] = set()
    for record in (record for part in parts for record in part):
        findings.note(REPEATED_IDS, place_of(record), f"id {record.id}", record.id in known)
        known.add(record.id)


def first_records(config: RunConfig, count: int, progress: Progress) -> list[Record]:
    """Return the first `count` records of every training source, held out or not.

    All rows that a run reads decide their format. What is found in the rows is not noted.

    Raises:
        DataError: A source cannot be read, or most of its rows are invalid.
    """
    data = config.data
    if data.train == STDLIB_PAIRS:
        return _stdlib_records(0.0, progress)[0][: min(count, data.train_limit or count)]
    found: list[Record] = []
    for source in data.sources:
        own, split = of_source(config, source), source.split or data.train_split
        found += _read(own, source.path, split, data.train_limit, Findings(), progress)[0][:count]
    return found


def of_source(config: RunConfig, source: DataSource) -> RunConfig:
    """Return the configuration of a run with the settings of one training source."""
    return msgspec.structs.replace(config, data=config.data.of_source(source))


def _evaluation_records(
    config: RunConfig, source: str, findings: Findings, progress: Progress
) -> tuple[list[Record], Format]:
    if source == STDLIB_PAIRS:
        return _stdlib_records(0.0, progress)[0], "pairs"
    return _read(config, source, config.data.eval_split, None, findings, progress)


def _stdlib_records(eval_fraction: float, progress: Progress) -> tuple[list[Record], list[Record]]:
    train, held = stdlib_pairs(eval_fraction, progress)
    return list(train), list(held)


def _read(
    config: RunConfig,
    source: str,
    split: str,
    limit: int | None,
    findings: Findings,
    progress: Progress,
) -> tuple[list[Record], Format]:
    """Return the records of the first `limit` rows of a source, or of all, and their format.

    What is found in the rows is noted in `findings`.

    Raises:
        DataError: The source is missing, unreadable or empty, or holds an invalid record.
    """
    label = f"reading {source}"
    progress(label, 0, 1)
    rows = read_rows(source, split, limit, findings, config.data.text)
    reader = RecordReader(config, source, findings)
    records, decision = records_of(reader, source, rows)
    reader.use.note(findings)
    note_nan_labels(rows, config.data.columns, findings)
    progress(label, 1, 1)
    return records, decision.form


def note_nan_labels(
    rows: Sequence[SourceRecord], columns: Mapping[str, Column], findings: Findings
) -> None:
    """Note the rows whose label is NaN, which is read as no label.

    Args:
        rows: rows of one source.
        columns: columns of the data by field, as in `data.columns`.
        findings: counts the rows.
    """
    given = columns.get("label") or "label"
    name = given if isinstance(given, str) else given[0]
    for row in rows:
        label = row.values.get(name)
        if isinstance(label, float) and math.isnan(label):
            findings.note(NAN_LABEL, row.place)


def records_of(
    reader: RecordReader, source: str, rows: Sequence[SourceRecord]
) -> tuple[list[Record], FormatDecision]:
    """Return (records made from the rows of a source, decision about their format).

    Raises:
        DataError: No known format matches, or most rows are invalid.
    """
    decision = reader.decide(evenly_spaced(rows, SAMPLE_ROWS))
    return reader.records(rows, Path(source).stem), decision


def hold_out(items: Sequence[T], fraction: float, limit: int | None) -> tuple[list[T], list[T]]:
    """Split items into (kept, held out) in their order; equal arguments give an equal choice.

    Args:
        items: All records; their content does not matter for the choice, only their number.
        fraction: Share to hold out; any share above 0 of two or more records holds out at least
            one.
        limit: Largest number of records to hold out; None sets no limit.
    """
    wanted = max(1, round(len(items) * fraction)) if fraction and len(items) > 1 else 0
    chosen = epoch_order(len(items), HOLDOUT_SEED, 0)[: min(wanted, limit or wanted)]
    held = {int(index) for index in chosen}
    kept = [item for index, item in enumerate(items) if index not in held]
    return kept, [items[index] for index in sorted(held)]


def evenly_spaced(items: Sequence[T], limit: int | None) -> list[T]:
    """Return `limit` evenly spaced items; all if there are no more, or if `limit` is None.

    Unlike the first items, they represent a sorted file as a whole.
    """
    if limit is None or len(items) <= limit:
        return list(items)
    return [items[index * len(items) // limit] for index in range(limit)]
