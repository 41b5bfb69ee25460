"""The table of reasons in docs/data.md, generated from `data_reasons`.

`python -m fttui.engine.config.reasons_table docs/data.md` writes it between the marks in the page.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from .data_reasons import REASONS
from .data_reasons.reason import Reason

BEGIN, END = "<!-- reasons: begin -->", "<!-- reasons: end -->"
"""Marks in the page between which the table stands."""


def reasons_table() -> str:
    """Return the table as Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "| name in `data.accept` | counts | finding | largest share without consent | remedy |"
    yield "|---|---|---|---|---|"
    for reason in REASONS:
        cells = (f"`{reason.name}`", reason.unit, reason.text, _limit(reason), reason.remedy)
        yield f"| {' | '.join(_escaped(cell) for cell in cells)} |"


def _escaped(cell: str) -> str:
    """Return the text of a table cell with its vertical bars escaped."""
    return cell.replace("|", r"\|")


def _limit(reason: Reason) -> str:
    if reason.limit is None:
        return "shown only"
    return f"{100 * reason.limit:g} %" if reason.limit else "0 % (always asks)"


def with_table(page: str) -> str:
    """Return a page of the docs with a newly generated table between its marks.

    Raises:
        ValueError: The page does not have both marks.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page has no {BEGIN} … {END}")
    return f"{before}{BEGIN}\n{reasons_table()}{END}{after}"


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(with_table(file.read_text(encoding="utf-8")), encoding="utf-8")
