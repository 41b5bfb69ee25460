"""Hashes of the data files, for the facts of a run, and revisions of hub datasets."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ...run.identity.hash_cache import HashCache
from ..sources.hub import arguments_of

_DIGITS = 16
"""Hexadecimal digits of a hash that are shown."""


def file_hashes(sources: Iterable[str | None]) -> dict[str, str]:
    """Return {"sha256 of NAME": first digits of the hash} of every source that is a file.

    Of several files with one name, only the last is in it.
    """
    cache = HashCache()
    files = [Path(source) for source in sources if source is not None]
    return {
        f"sha256 of {file.name}": cache.hash(file)[:_DIGITS] for file in files if file.is_file()
    }


def dataset_revision(source: str) -> str:
    """Return the commit hash of a hub dataset as `datasets` would load it now.

    Raises:
        ValueError: It cannot be found out.
    """
    import datasets

    try:
        name, subset, options = arguments_of(source)
        revision = datasets.load_dataset_builder(name, subset, **options).hash
    except Exception as error:  # noqa: BLE001 -- the library raises many exception types
        text = " ".join(str(error).split())[:200]
        raise ValueError(f"the revision of {source} is not known: {text}") from None
    if not revision:
        raise ValueError(f"the revision of {source} is not known")
    return str(revision)
