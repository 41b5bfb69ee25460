"""A row of a source as stored, and the errors about rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import DataError


@dataclass(frozen=True)
class SourceRecord:
    """One row as stored."""

    values: dict[str, Any]
    place: str
    """Where it is stored, such as `train.jsonl:7`."""


@dataclass(frozen=True)
class BrokenRow:
    """A row that cannot be read."""

    place: str
    reason: str
    """What is wrong, such as `not valid JSON at column 7: Expecting value`."""


Row = SourceRecord | BrokenRow


def row_of(value: Any, place: str) -> SourceRecord:
    """Return a value as a row: an object, a list of messages, or a text.

    Raises:
        DataError: The value is none of these.
    """
    if isinstance(value, dict):
        return SourceRecord(value, place)
    if isinstance(value, str):
        return SourceRecord({"text": value}, place)
    if isinstance(value, list) and value and all(map(is_message, value)):
        return SourceRecord({"messages": value}, place)
    raise DataError(
        f"{place}: got {type(value).__name__}, expected an object such as "
        '{"prompt": …, "completion": …}'
    )


def is_message(value: Any) -> bool:
    """Whether a value is a message of a conversation."""
    return isinstance(value, dict) and bool({"role", "from"} & set(value))


def unpadded(record: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a table without the nulls that only fill up structs inside lists.

    Parquet and Arrow give every message of a column the keys of all messages.
    """
    return {key: _unpadded(value) for key, value in record.items()}


def _unpadded(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_nulls(one) for one in value]
    if isinstance(value, dict):
        return {key: _unpadded(one) for key, one in value.items()}
    return value


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: _without_nulls(one) for key, one in value.items() if one is not None}
        return kept | ({"content": None} if value.get("content", "") is None else {})
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def one_line(error: Exception) -> str:
    """Return the text of an error on one line."""
    return " ".join(str(error).split())[:300]
