"""Messages of the process that reads the data for `check`, `run` and `data`, one JSON per line.

Both sides belong to the same installation, so that these messages need no versions.
"""

from __future__ import annotations

import msgspec

from .data_sample import SampleRecord


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
    """The records that the user asked to see, as they are learned."""

    records: list[SampleRecord]


class DataRefused(DataMessage, frozen=True, kw_only=True, tag="refused"):
    """The data cannot be used; it is the last message."""

    text: str


AnyDataMessage = ReadingProgress | DataLine | ShownRecords | DataRefused
