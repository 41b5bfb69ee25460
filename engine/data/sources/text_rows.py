"""Rows of plain text: its lines, its paragraphs, or the whole file as one text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby, islice
from typing import IO

from ...config.data_reasons.rows import TABLE_LINES, TEXT_LINES
from ...config.schema import TextUnit
from .rows import BrokenRow, Pass, Row, SourceRecord

_LINES = 20
"""Lines at the beginning of a file by which a table is recognized."""
_FEWEST = 3
"""Lines that a table has at least; fewer lines of a text may be alike by chance."""


def text_rows(
    open_text: Callable[[], IO[str]], place: str, unit: TextUnit, reading: Pass
) -> Iterator[Row]:
    """Yield the texts of a file that are not blank; line ends inside a text become LF.

    A text with a NUL byte is a `BrokenRow`.

    Args:
        open_text: Opens the file.
        place: The file.
        unit: What becomes a record.
        reading: Receives the findings: lines became records, or lines look like rows of a table.
    """
    if unit == "line":
        reading.note(TEXT_LINES, place)
    if cells := _cells(open_text):
        reading.note(TABLE_LINES, place, f"{cells} cells in each line")
    with open_text() as text:
        lines = ((number, line.lstrip("\ufeff")) for number, line in enumerate(text, start=1))
        for number, found in _UNITS[unit](lines):
            where = place if unit == "file" else f"{place}:{number}"
            if "\x00" in found:
                yield BrokenRow(where, "a NUL byte in a text")
            elif found.strip():
                yield SourceRecord({"text": found}, where, bare=True)


def _cells(open_text: Callable[[], IO[str]]) -> int:
    """Return the number of cells that each of the first lines has; 0 if they are not a table."""
    with open_text() as text:
        lines = list(islice((line for line in text if line.strip()), _LINES))
    for delimiter in "\t,;|" if len(lines) >= _FEWEST else "":
        counts = {line.count(delimiter) - line.count(f"{delimiter} ") for line in lines}
        if len(counts) == 1 and (found := counts.pop()):
            return found + 1
    return 0


Lines = Iterator[tuple[int, str]]


def _by_line(lines: Lines) -> Lines:
    return ((number, line.rstrip("\r\n")) for number, line in lines)


def _by_paragraph(lines: Lines) -> Lines:
    """Yield each paragraph (the lines between blank lines) as one text."""
    for blank, group in groupby(lines, key=lambda one: not one[1].strip()):
        if not blank:
            yield _joined(list(group))


def _by_file(lines: Lines) -> Lines:
    yield _joined(list(lines))


def _joined(lines: list[tuple[int, str]]) -> tuple[int, str]:
    text = "\n".join(line.rstrip("\r\n") for _, line in lines)
    return (lines[0][0] if lines else 1), text.rstrip("\n")


_UNITS: dict[TextUnit, Callable[[Lines], Lines]] = {
    "line": _by_line,
    "paragraph": _by_paragraph,
    "file": _by_file,
}
