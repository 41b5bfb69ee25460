"""Endings of the files that are read as data."""

_COMPRESSED = ("", ".gz", ".bz2", ".xz", ".zst", ".zip")
_TEXT = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".tab", ".txt", ".md")
_COLUMNAR = (".parquet", ".arrow", ".feather")
FILE_SUFFIXES = tuple(
    content + packed for packed in _COMPRESSED for content in (*_TEXT, *_COLUMNAR)
)
"""Endings by which a data source is taken for a file; files have no splits."""
ACCEPTED_FILES = f"{', '.join((*_TEXT, *_COLUMNAR))} (also compressed)"
"""The endings of the files that are read, for error messages."""


def without_ending(name: str) -> str:
    """Return the name of a file without the ending that says how to read it."""
    longest = max((one for one in FILE_SUFFIXES if name.lower().endswith(one)), key=len, default="")
    return name.removesuffix(name[len(name) - len(longest) :]) if longest else name
