"""Rows of text tables: CSV and tables with other delimiters.

If a quote opens a cell and is closed only lines later, all lines in between become one cell. Most
such tables cannot be parsed and are refused. In the others, cells are counted whose lines look like
rows.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, NamedTuple

from ...config.data_reasons.rows import EMPTY_ROWS, JOINED_ROWS, LINES_IN_CELLS
from ...errors import DataError
from .rows import BrokenRow, Pass, Row, SourceRecord, one_line

_DELIMITERS = ",\t;|"
_NUMBER = re.compile(r"\s*-?[\d.]+\s*")
_QUOTED = re.compile(r'"[^"]*"')
_HIDDEN_QUOTES = re.compile(r'\s+".*"\s*', re.S)
_NAMED_DELIMITER = re.compile(r"sep=(.)\s*")
"""The first line with which Excel names the delimiter."""
LONGEST_NAME = 60
"""Most characters of a column name; a first row with a longer cell is not a header."""


_LINES = 1000
"""Lines of a cell that are looked at."""
_MOST_MISFITS = 0.25
"""Share of the lines of a cell that need not look like rows of the table."""


class _Dialect(csv.Dialect):
    """The delimiter and the rules for quotes of a table."""

    lineterminator = "\n"
    quotechar = '"'
    strict = True

    def __init__(
        self, delimiter: str, *, quotes: bool = True, escaped: bool = False, spaced: bool = False
    ) -> None:
        self.delimiter = delimiter
        self.quoting = csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE
        self.skipinitialspace = spaced
        self.doublequote = not escaped
        self.escapechar = "\\" if escaped else None
        super().__init__()


def dialect_of(open_text: Callable[[], IO[str]], suffix: str) -> _Dialect:
    """Return the dialect (delimiter, quotes, spaces) with which most rows fit the header.

    In tables with tabs, quotes are often plain characters. A quote that opens a cell without
    closing it would otherwise join the rows after it. A space at the beginning of a cell belongs to
    its text, unless the header or quotes show that spaces follow the delimiters.
    """
    header = _first_line(open_text)
    delimiter = _delimiter_of(open_text, header, suffix)
    seen = _quotes_of(open_text, delimiter)
    spaces = [True] if _is_spaced(header, delimiter) else [False, True] if seen.spaced else [False]
    escapes = [False, True] if seen.backslash else [False]
    # Of equally good ways the first is taken; rows that quotes may have joined are counted.
    ways = [_Dialect(delimiter, escaped=one, spaced=two) for two in spaces for one in escapes]
    ways += [_Dialect(delimiter, quotes=False)] if seen.bare else []
    hides = len(spaces) > 1
    if len(ways) == 1:
        return ways[0]
    return min(ways, key=lambda one: _misfits(open_text, one, spaces_hide_quotes=hides))


def _first_line(open_text: Callable[[], IO[str]]) -> str:
    """Return the first line that is not blank; after a line that names the delimiter, both."""
    with open_text() as text:
        lines = (line for line in text if line.strip("\ufeff \t\r\n"))
        first = next(lines, "").lstrip("\ufeff")
        return first + next(lines, "") if _NAMED_DELIMITER.fullmatch(first) else first


def _is_spaced(header: str, delimiter: str) -> bool:
    """Whether a space follows every delimiter of the header."""
    outside = _QUOTED.sub("", header)
    count = outside.count(delimiter)
    return delimiter != "\t" and count > 0 and outside.count(f"{delimiter} ") == count


class _Quotes(NamedTuple):
    """How quotes are used in a table."""

    bare: bool = False
    """Whether some may be plain characters."""
    backslash: bool = False
    """Whether some follow a backslash."""
    spaced: bool = False
    """Whether some follow a delimiter and spaces."""


def _quotes_of(open_text: Callable[[], IO[str]], delimiter: str) -> _Quotes:
    bare = backslash = spaced = False
    behind_spaces = re.compile(rf'{re.escape(delimiter)} +"(?!")')
    with open_text() as text:
        for line in text:
            if '"' in line:
                backslash = backslash or '\\"' in line
                bare = bare or (delimiter == "\t" and _has_open_cell(line))
                spaced = spaced or (delimiter != "\t" and bool(behind_spaces.search(line)))
    return _Quotes(bare, backslash, spaced)


def _has_open_cell(line: str) -> bool:
    """Whether a cell of a line begins with a quote but does not end with one."""
    return any(
        cell.startswith('"') and (len(cell) < 2 or not cell.endswith('"'))
        for cell in line.rstrip("\r\n").split("\t")
    )


def _misfits(
    open_text: Callable[[], IO[str]], dialect: _Dialect, *, spaces_hide_quotes: bool
) -> float:
    """Return the number of rows that do not fit the header; infinity if parsing the table fails.

    With `spaces_hide_quotes`, a row in which spaces precede the quotes of a cell does not fit
    either.
    """
    with open_text() as text:
        rows = csv.reader(text, dialect)
        try:
            columns = len(next(rows, []))
            return sum(
                len(row) != columns
                or (spaces_hide_quotes and any(map(_HIDDEN_QUOTES.fullmatch, row)))
                for row in rows
                if row
            )
        except csv.Error:
            return float("inf")


def _delimiter_of(open_text: Callable[[], IO[str]], header: str, suffix: str) -> str:
    """Return the delimiter of a table with a header.

    It is the tab by the ending .tsv or .tab, else the one that a first line such as `sep=;` names,
    else the one in the header with which most rows fit it. Of several, it is the most frequent one.
    """
    if suffix in (".tsv", ".tab"):
        return "\t"
    if named := _NAMED_DELIMITER.match(header):
        return named[1]
    outside = _QUOTED.sub("", header)
    found = sorted(_DELIMITERS, key=lambda one: (-outside.count(one), one != ","))
    possible = [one for one in found if one in outside] or found[:1]
    if len(possible) == 1:
        return possible[0]
    return min(
        possible,
        key=lambda one: _misfits(open_text, _Dialect(one), spaces_hide_quotes=False),
    )


class _Lines:
    """Iterates over the lines of a text and keeps those of the current row."""

    def __init__(self, text: IO[str]) -> None:
        self._text = text
        self.taken: list[str] = []

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._text)
        if line.startswith("\ufeff"):  # the beginning of a file that was appended
            line = line[1:]
        self.taken.append(line)
        return line

    def take(self) -> list[str]:
        """Return the lines that were read since the last call."""
        found, self.taken = self.taken, []
        return found


def csv_rows(
    open_text: Callable[[], IO[str]], place: str, suffix: str, reading: Pass
) -> Iterator[Row]:
    """Yield the rows of a table with a header; the place of a row is its first line.

    A row that cannot be read is a `BrokenRow`. An empty table has no rows. Rows to skip are left
    out and subtracted from those that `reading` still has to skip. The limit that the module csv
    has for the size of cells is raised for the whole process.

    Raises:
        DataError: The first row is not a header or names two columns alike, or a quote is not
            closed.
    """
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    dialect = dialect_of(open_text, suffix)
    with open_text() as text:
        lines = _Lines(text)
        table = csv.reader(lines, dialect)
        header = _header(table, place, dialect.delimiter)
        if not header:
            return
        names = _names(header, place)
        spaced = f"{dialect.delimiter} " in "".join(lines.take())
        begin = table.line_num + 1
        for row in _unbroken(table, place):
            where, begin, taken = f"{place}:{begin}", table.line_num + 1, lines.take()
            if not any(cell.strip() for cell in row):
                _note_empty(row, where, reading)
            elif problem := _problem(row, header, names):
                yield BrokenRow(where, problem)
            elif reading.to_skip:
                reading.to_skip -= 1
            else:
                if len(taken) > 1:
                    _note_lines(taken, row, dialect.delimiter, where, reading, spaced=spaced)
                yield SourceRecord(dict(zip(names, row, strict=True)), where)


def _note_empty(row: list[str], place: str, reading: Pass) -> None:
    """Count a row of empty cells; a line without any cell is no row."""
    if row:
        reading.counted("records", 1, place)
        reading.note(EMPTY_ROWS, place)


def _problem(row: list[str], header: list[str], names: list[str]) -> str:
    """Return the reason why a row cannot be read; an empty text if it can."""
    if len(row) != len(names):
        return f"{len(row)} cells, expected {len(names)} as in the header"
    if row == header:
        return "the row repeats the header"
    return "a NUL byte in a cell" if any("\x00" in cell for cell in row) else ""


def _note_lines(
    lines: Sequence[str],
    row: Sequence[str],
    delimiter: str,
    place: str,
    reading: Pass,
    *,
    spaced: bool,
) -> None:
    """Count a row that spans several lines if most of them look like rows of their own.

    If its long cells hold delimiters, the reason is `JOINED_ROWS`, otherwise `LINES_IN_CELLS`. A
    delimiter with a space after it belongs to a sentence, unless the header has such delimiters.
    """
    fits = [count == len(row) for count in _cells(lines[:_LINES], delimiter)]
    if not fits[0] or fits.count(False) > len(fits) * _MOST_MISFITS:
        return
    long = [cell for cell in row if "\n" in cell or "\r" in cell]
    inside = sum(cell.count(delimiter) for cell in long)
    in_sentences = 0 if spaced else sum(cell.count(f"{delimiter} ") for cell in long)
    if inside == in_sentences:
        reading.note(LINES_IN_CELLS, place, f"{len(lines)} lines")
        return
    more = len(lines) - 1
    reading.counted("records", more, f"rows joined at {place}")
    reading.note(JOINED_ROWS, place, f"{len(lines)} lines", more)


def _cells(lines: Sequence[str], delimiter: str) -> Iterator[int]:
    """Yield the number of cells in each line of a row, with its open quotes as plain characters."""
    inside = False
    for line in lines:
        text = line.replace('""', "")
        if inside:
            inside = '"' not in text
            text = text.replace('"', "", 1)
        if not inside:
            text = _QUOTED.sub("", text)
            inside = '"' in text
        yield text.count(delimiter) + 1


def _header(table: Any, place: str, delimiter: str) -> list[str]:
    rows = (row for row in _unbroken(table, place) if any(cell.strip() for cell in row))
    header = next(rows, [])
    named = _NAMED_DELIMITER.fullmatch(delimiter.join(header))
    return next(rows, []) if named else header


def _unbroken(table: Any, place: str) -> Iterator[list[str]]:
    """Yield the rows of a table.

    Raises:
        DataError: A quote is not closed, or has text behind it, so that later rows are joined.
    """
    try:
        yield from table
    except csv.Error as error:
        raise DataError(
            f"{place}:{table.line_num}: {one_line(error)}; write a quote inside a quoted cell "
            "twice, close every quoted cell, or download the file again if its end is missing"
        ) from None


def _names(header: list[str], place: str) -> list[str]:
    names = [name.strip() for name in header]
    while names and not names[-1]:
        names.pop()
    if twice := next((name for name in names if name and names.count(name) > 1), ""):
        raise DataError(
            f"{place}: two columns have the name {twice!r}; rename one in the first row"
        )
    odd = [name for name in names if len(name) > LONGEST_NAME or _NUMBER.fullmatch(name)]
    if not names or odd or names.count("") > 1 or len(names) < len(header) - 1:
        raise DataError(
            f"{place}: the first row is not a header ({', '.join(names)[:80]!r}); put a row with "
            "the names of the columns in front, such as prompt,completion"
        )
    # A column without a name in front is the index that pandas writes.
    names = [name or f"column {number}" for number, name in enumerate(names, start=1)]
    return names + [f"column {len(names) + 1}"] * (len(header) - len(names))
