"""The texts of the forgetting meter: those that are installed with the package, or a user's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from ..config.sections.forgetting import GENERAL
from ..errors import DataError

_INSTALLED = Path(__file__).with_suffix(".txt")
_NOTICE = "#"
"""A line of the installed file that begins with this is not part of a text."""


def read_texts(source: str, limit: int) -> list[str]:
    """Return at most `limit` texts, evenly spaced, in their order.

    Args:
        source: `general`, a file with paragraphs, or a `.jsonl` file with a field `text`.
        limit: the largest number of texts.

    Raises:
        DataError: the file cannot be read, or has no texts.
    """
    path = _INSTALLED if source == GENERAL else Path(source).expanduser()
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"forgetting.texts: {path} cannot be read: {error}") from None
    if path.suffix == ".jsonl":
        texts = list(_fields(path, content))
    else:
        texts = list(_paragraphs(content, notices=source == GENERAL))
    if not texts:
        raise DataError(f"forgetting.texts: {path} has no texts; separate them by blank lines")
    count = min(limit, len(texts))
    return [texts[number * len(texts) // count] for number in range(count)]


def _paragraphs(content: str, *, notices: bool) -> Iterator[str]:
    """Yield the paragraphs, with their line breaks as spaces; with `notices`, without notices."""
    for block in content.split("\n\n"):
        lines = [line.strip() for line in block.splitlines()]
        kept = [line for line in lines if line and not (notices and line.startswith(_NOTICE))]
        if kept:
            yield " ".join(kept)


def _fields(path: Path, content: str) -> Iterator[str]:
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        try:
            text = json.loads(line)["text"]
        except (ValueError, TypeError, KeyError):
            text = None
        if not isinstance(text, str) or not text.strip():
            raise DataError(
                f'forgetting.texts: {path}:{number}: expected an object such as {{"text": "…"}}'
            )
        yield text
