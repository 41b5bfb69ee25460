"""Count or drop records that repeat others, within the training data or in the evaluation data.

Records are compared by their content without id and place. Near duplicates are found by MinHash
with locality-sensitive hashing over groups of words.

Source: Lee et al., "Deduplicating Training Data Makes Language Models Better", 2022 (MinHash).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, Literal

from ...config.data_reasons import DROPPED_DUPLICATES, DUPLICATES, EVAL_OVERLAP, HELD_OUT_OVERLAP
from ...config.data_reasons.reason import Reason
from ...errors import DataError
from ..findings import Findings
from ..reading import SourceRecords
from ..records.formats import Record, place_of

Dedup = Literal["off", "exact", "near"]
Seen = Callable[[Record], bool]
"""Returns whether a record repeats one that it was called with before, and remembers it."""
SIMILARITY = 0.8
"""Share of common word groups (Jaccard) from which records are near duplicates."""
WORDS = 5
"""Words of a group; shorter texts are one group."""
HASHES = 128
"""Hash functions of a MinHash; its error is about 1/√HASHES."""


def deduplicated(records: SourceRecords, dedup: Dedup, *, own_eval: bool) -> SourceRecords:
    """Count records that repeat others, or drop them from training if configured.

    With `dedup: off`, repeated training records are counted, and evaluation records that are also
    training data. Otherwise, training records that repeat an earlier one or are also evaluation
    data are dropped, and counted as dropped.

    Args:
        records: The records of all sources.
        dedup: Which training records are dropped.
        own_eval: Whether the evaluation data are a source of their own, not held out.

    Raises:
        DataError: No record of a training source is left, or the package for near duplicates is
            missing.
    """
    findings = Findings()
    findings.add(records.findings)
    if dedup == "off":
        overlap = EVAL_OVERLAP if own_eval else HELD_OUT_OVERLAP
        _count(records, overlap, findings)
        return replace(records, findings=findings)
    repeats = _exact() if dedup == "exact" else _near()
    for record in records.eval:
        repeats(record)
    train = [list(_first_ones(part, repeats, findings)) for part in records.train]
    for before, after in zip(records.train, train, strict=True):
        if before and not after:
            raise DataError(
                f"every training record of the source that begins at {place_of(before[0])} repeats "
                f"another one or is evaluation data, so none is left (data.dedup: {dedup}); remove "
                "this source from data.train, or set data.dedup: off"
            )
    return replace(records, train=train, findings=findings)


def _count(records: SourceRecords, overlap: Reason, findings: Findings) -> None:
    seen: set[bytes] = set()
    for record in (record for part in records.train for record in part):
        key = _key(record)
        if key in seen:
            findings.note(DUPLICATES, place_of(record))
        seen.add(key)
    findings.counted("evaluation records", len(records.eval))
    for record in records.eval:
        findings.note(overlap, place_of(record), count=_key(record) in seen)


def _first_ones(records: Sequence[Record], repeats: Seen, findings: Findings) -> Iterator[Record]:
    for record in records:
        if repeats(record):
            findings.note(DROPPED_DUPLICATES, place_of(record))
        else:
            yield record


def _exact() -> Seen:
    seen: set[bytes] = set()

    def repeats(record: Record) -> bool:
        key = _key(record)
        known = key in seen
        seen.add(key)
        return known

    return repeats


def _near() -> Seen:
    try:
        from datasketch import MinHash, MinHashLSH  # deferred: an optional dependency
    except ImportError:
        raise DataError(
            "data.dedup: near needs the package datasketch, which is not installed; run "
            "pip install 'fttui[dedup]', or set data.dedup: exact"
        ) from None
    index: Any = MinHashLSH(threshold=SIMILARITY, num_perm=HASHES)
    known: list[Any] = []

    def repeats(record: Record) -> bool:
        found: Any = MinHash(num_perm=HASHES, seed=1)
        found.update_batch(_word_groups(" ".join(_texts(_content(record)))))
        alike = any(found.jaccard(known[number]) >= SIMILARITY for number in index.query(found))
        index.insert(len(known), found)
        known.append(found)
        return alike

    return repeats


def _word_groups(text: str) -> list[bytes]:
    words = text.lower().split()
    count = max(1, len(words) - WORDS + 1)
    return [" ".join(words[start : start + WORDS]).encode() for start in range(count)]


def _key(record: Record) -> bytes:
    text = json.dumps(_content(record), sort_keys=True, default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _content(value: Any) -> Any:
    """Return a record as plain values, without its id and place."""
    if is_dataclass(value) and not isinstance(value, type):
        names = (field.name for field in fields(value) if field.name not in ("id", "place"))
        return [type(value).__name__, {name: _content(getattr(value, name)) for name in names}]
    if isinstance(value, Mapping):
        return {str(key): _content(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_content(part) for part in value]
    return value


def _texts(content: Any) -> Iterator[str]:
    """Yield all values of a record as texts."""
    if isinstance(content, Mapping):
        for part in content.values():
            yield from _texts(part)
    elif isinstance(content, list):
        for part in content:
            yield from _texts(part)
    else:
        yield str(content)
