"""Messages of the process that reads the data for `check`, `run` and `data`, one JSON per line.

Both sides belong to the same installation, so that these messages need no versions.
"""

from __future__ import annotations

import msgspec

from ..event_parts import DataFinding
from .sample import SampleRecord


class DataMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="k"):
    """Base of all messages."""


class ReadingProgress(DataMessage, frozen=True, kw_only=True, tag="progress"):
    """Reading or tokenizing has advanced."""

    label: str
    done: float
    total: float


class DataLine(DataMessage, frozen=True, kw_only=True, tag="line"):
    """A line about the data for the user."""

    text: str


class ShownRecords(DataMessage, frozen=True, kw_only=True, tag="records"):
    """The records that the user asked to see, as the model sees them."""

    records: list[SampleRecord]


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of the lengths of records."""

    least: int
    median: int
    p95: int
    """Length that 95 % of the records do not exceed."""
    most: int


class DataSummary(DataMessage, frozen=True, kw_only=True, tag="summary"):
    """The summary of a data file or another source."""

    source: str
    records: int
    format: str = ""
    """Record format, such as `messages`; empty if none matches."""
    decision: str = ""
    """How many rows of the first ones have the format, and the formats of the others, in words."""
    task: str = ""
    """Task that learns from this format."""
    used: list[str] = []
    """Columns that are read."""
    unused: list[str] = []
    """Columns that are not read."""
    characters: Lengths | None = None
    """Characters per record; None without a format."""
    tokens: Lengths | None = None
    """Tokens per learned record; None without a tokenizer."""
    duplicates: int = 0
    """Records whose content equals that of an earlier record."""
    empty: int = 0
    """Records in which a text is empty."""
    findings: list[DataFinding] = []
    """What would be dropped, cut or not learned; empty without a tokenizer."""
    first: list[tuple[str, str]] = []
    """The first record as it is read: names of its texts, and the texts."""
    sample: list[SampleRecord] = []
    """The first record as the model sees it; empty without a tokenizer."""
    section: str = ""
    """The sections `task` and `data` of a configuration, as YAML."""
    problem: str = ""
    """Why the source cannot be learned; empty if it can."""


class RowLengths(DataMessage, frozen=True, kw_only=True, tag="lengths"):
    """How long the rows of training records are."""

    lengths: list[int]
    """Tokens of the rows of some records, which stand for all."""


class DataRefused(DataMessage, frozen=True, kw_only=True, tag="refused"):
    """The data or the configuration cannot be used; it is the last message."""

    text: str
    exit_code: int
    """Exit code of the error class."""


AnyDataMessage = ReadingProgress | DataLine | ShownRecords | DataSummary | RowLengths | DataRefused
