"""Which data it was: hashes to compare with, for the run's facts and for model cards."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..run.checkpoint_store import hash_file

_DIGITS = 16


def file_hashes(sources: Iterable[str | None]) -> dict[str, str]:
    """sha256 (its first digits) of every source that is a file, by what to call it."""
    files = [Path(source) for source in sources if source is not None]
    return {f"sha256 of {file.name}": hash_file(file)[:_DIGITS] for file in files if file.is_file()}
