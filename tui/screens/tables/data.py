"""The screen of the data: findings, facts, and records as the model sees them."""

from __future__ import annotations

from collections.abc import Iterator

from fttui.engine.protocol.data.sample import SampleRecord

from ...view_model.app_state import AppState
from ...widgets.table import TableRow, cell, one_line
from ...widgets.text_line import ACCENT, DIM, WATCH, lines
from ..handlers.background import load_data_sample
from ..text_page import TextPage
from . import details
from .table_screen import TableScreen

FACTS = (
    "train records",
    "eval records",
    "tokens per record",
    "scores",
    "packed rows",
    "mix per epoch",
    "mix by phases",
    "mix over the run",
    "tokenized data",
)
"""Facts of a run that concern its data."""
HASHES = "sha256 of "
"""Beginning of the facts that have the hash of a data file."""

NOTHING = "every record is used as it is stored"
"""Text of the row if there are no findings."""


class DataScreen(TableScreen):
    """The table of findings, facts and sample records; enter shows a finding or record in full."""

    COLUMNS = ("", "how much", "what and where")
    NARROW = ("", "how much")
    FLEXIBLE = "how much"
    NAME = "data"
    DETAIL = "data"
    EMPTY = "No information about the data yet; it appears when the data is loaded."
    EXAMPLE = "finding, or: record"

    def __init__(self) -> None:
        super().__init__()
        self._read_for: tuple[int, bool] | None = None
        """For which start of the engine the sample was read, and whether its data was loaded."""

    def show_body(self, state: AppState, now: float) -> None:
        """Update the table, and read the sample once the run has loaded its data."""
        started = state.run.started
        wanted = (started.incarnation, bool(started.devices)) if started else None
        if wanted != self._read_for:
            self._read_for = wanted
            load_data_sample(self.fttui)
        super().show_body(state, now)

    def rows(self, state: AppState, now: float) -> list[TableRow]:
        """Return the findings, then the facts, then the records."""
        return [*_findings(state), *_facts(state), *_records(state)]

    def chosen(self, key: str) -> None:
        """Show a finding or a record in full; a fact has nothing more to show."""
        shown = list(details.data(self.fttui.state, key))
        if shown:
            self.fttui.push_screen(TextPage(key.partition(" ")[0], lines(*shown)))


def _findings(state: AppState) -> Iterator[TableRow]:
    for found in state.run.findings:
        first = ", ".join(part for part in (_short(found.place), found.detail) if part)
        what = one_line(found.text + (f"; first: {first}" if first else ""))
        cells = (cell("finding", WATCH), cell(found.amount), cell(what))
        yield TableRow(f"finding {found.reason}", cells, below=cells[-1])
    started = state.run.started
    if started is not None and started.devices and not state.run.findings:
        cells = (
            cell("finding", DIM),
            cell("none"),
            cell(NOTHING),
        )
        yield TableRow("none", cells, below=cells[-1])


def _facts(state: AppState) -> Iterator[TableRow]:
    facts = state.run.started.facts if state.run.started else {}
    for name, value in facts.items():
        if name in FACTS or name.startswith(HASHES):
            cells = (cell("fact", DIM), cell(name), cell(value))
            yield TableRow(f"fact {name}", cells, below=cells[-1])


def _records(state: AppState) -> Iterator[TableRow]:
    for number, record in enumerate(state.data_sample):
        shown = "; ".join(record.notes) or _learned(record)
        what = one_line(f"{_short(record.place)}: {shown}")
        cells = (
            cell("record", ACCENT),
            cell(_targets(record)),
            cell(what, WATCH if record.notes else ""),
        )
        yield TableRow(f"record {number}", cells, below=cells[-1])


def _short(place: str) -> str:
    """Return a place without the folders of its file; the details of a row show the whole path."""
    return place.rpartition("/")[2]


def _targets(record: SampleRecord) -> str:
    learned = sum(text.learned for text in record.texts)
    tokens = sum(text.tokens for text in record.texts)
    return f"{learned:,} of {tokens:,} tokens" if record.texts else "not learned"


def _learned(record: SampleRecord) -> str:
    """Return the texts of all targets of a record, with `…` between them."""
    return " … ".join(s.text for text in record.texts for s in text.spans if s.learned)
