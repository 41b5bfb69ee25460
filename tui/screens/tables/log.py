"""The log screen: a table of the run's log lines, newest first."""

from __future__ import annotations

from ...view_model.app_state import AppState
from ...widgets.table import TableRow, cell, clock_time, one_line
from ...widgets.text_line import ALARM, DIM, WATCH
from .table_screen import TableScreen


class LogScreen(TableScreen):
    """The table of log lines."""

    COLUMNS = ("time", "level", "rank", "text")
    NARROW = COLUMNS
    FLEXIBLE = "text"
    NAME = "log, newest first"
    EMPTY = "No log lines yet."
    EXAMPLE = "r1 error"

    def rows(self, state: AppState, now: float) -> list[TableRow]:
        """Return one row per log line, newest first."""
        colours = {"error": ALARM, "warning": WATCH, "debug": DIM}
        return [
            TableRow(
                f"{line.time}-{index}",
                (
                    cell(clock_time(line.time), DIM),
                    cell(line.level, colours.get(line.level, DIM)),
                    cell(f"r{line.rank}", DIM),
                    cell(one_line(line.text), colours.get(line.level, "")),
                ),
            )
            for index, line in reversed(list(enumerate(state.run.log)))
        ]
