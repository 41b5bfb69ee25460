"""Hashes of the data files, for the facts of a run and for model cards."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..run.checkpoint_store import hash_file

_DIGITS = 16
"""Hexadecimal digits of a hash that are shown."""


def file_hashes(sources: Iterable[str | None]) -> dict[str, str]:
    """Return the first digits of the sha256 of every source that is a file, by display name."""
    files = [Path(source) for source in sources if source is not None]
    return {f"sha256 of {file.name}": hash_file(file)[:_DIGITS] for file in files if file.is_file()}
