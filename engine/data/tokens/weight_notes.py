"""Count the records whose loss, or a part of it, has another weight than 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...config.data_reasons import WEIGHT_ZERO, WEIGHTED
from ..findings import Findings
from ..records.formats import CompletionRecord, MessagesRecord, Record, TextRecord, place_of
from ..records.messages import TURN_WEIGHT
from ..records.token_weights import TokensRecord
from .examples import IGNORED


def note_weight(record: Record, train_on: str, findings: Findings) -> None:
    """Count a record if its loss, or that of a turn to learn, has another weight than 1.

    A record of weight 0, whose own loss does not count, is counted by itself.
    """
    if record.weight == 0:
        findings.note(WEIGHT_ZERO, place_of(record))
        return
    role = "assistant" if train_on in ("all", "last") else train_on
    mine = [one for one in _turns_of(record) if one.get("role") == role]
    learned = mine[-1:] if train_on == "last" else mine
    turns = [one for one in learned if TURN_WEIGHT in one]
    given = [record.weight, *(one[TURN_WEIGHT] for one in turns)]
    given += _weights_inside(record)
    other = [one for one in given if one != 1]
    if other:
        findings.note(WEIGHTED, place_of(record), f"weight {other[0]:g}")


def _weights_inside(record: Record) -> list[float]:
    """Return the weights of the tokens, or ranges of characters, of a record."""
    match record:
        case TokensRecord(weights=[*weights], labels=labels):
            learned = labels or record.input_ids
            return [one for one, label in zip(weights, learned, strict=True) if label != IGNORED]
        case TextRecord(ranges=ranges) | CompletionRecord(ranges=ranges):
            return [weight for _, _, weight in ranges]
    return []


def _turns_of(record: Record) -> Sequence[Mapping[str, Any]]:
    if isinstance(record, MessagesRecord):
        return record.messages
    if isinstance(record, CompletionRecord) and not isinstance(record.completion, str):
        return record.completion
    return ()
