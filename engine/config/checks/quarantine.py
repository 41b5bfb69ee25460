"""The samples in quarantine as a file: one id per line, as JSON text where it needs that."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from ...protocol.settings import MOST_QUARANTINED

_MOST_BYTES = 1_000_000


def read_ids(path: Path) -> list[str]:
    """Return the ids of a file in their order, without repeated ones.

    Each line holds an id, as JSON text if it begins with a quote; `#` begins a comment line.

    Raises:
        ValueError: it cannot be read, or is not a list of ids; the text says why.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise ValueError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text (byte {error.start})") from None
    if len(data) > _MOST_BYTES:
        raise ValueError(f"{path}: larger than {_MOST_BYTES:,} bytes; expected a list of ids")
    lines = enumerate(text.split("\n"), 1)
    return list(dict.fromkeys(one for n, line in lines for one in _id_of(line, f"{path}:{n}")))


def _id_of(line: str, place: str) -> list[str]:
    line = line.strip()
    if not line or line.startswith("#"):
        return []
    if not line.startswith('"'):
        return [line]
    try:
        found = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{place}: got {line[:40]!r}, not JSON ({error})") from None
    if not isinstance(found, str) or not found:
        raise ValueError(f"{place}: got {line[:40]!r}, expected an id")
    return [found]


def ids_as_text(ids: Iterable[str]) -> str:
    """Return the ids as the text of a file that `read_ids` reads, one per line."""
    return "".join(f"{_line(one)}\n" for one in ids)


def _line(identity: str) -> str:
    plain = identity.isprintable() and identity == identity.strip()
    return identity if plain and identity[:1] not in ("#", '"') else json.dumps(identity)


def why_not_listed(ids: list[str]) -> str:
    """Return why a list of ids cannot be used; empty if it can."""
    if len(ids) > MOST_QUARANTINED:
        return (
            f"got {len(ids):,} samples, expected at most {MOST_QUARANTINED:,}; take them out of "
            "the data files instead"
        )
    return "got an empty id; remove it" if "" in ids else ""
