"""The screen of the resolved configuration."""

from __future__ import annotations

from ...text import format as fmt
from ...view_model.app_state import AppState
from ...widgets.table import TableRow, cell, one_line
from ...widgets.text_line import ACCENT, DIM, WATCH
from .table_screen import TableScreen


class ConfigScreen(TableScreen):
    """The table of the resolved configuration: every key, its value and the value's source."""

    COLUMNS = ("key", "value", "source", "in the file")
    NARROW = ("key", "value")
    FLEXIBLE = "value"
    NAME = "configuration"
    EMPTY = "No configuration has been read yet; the run of a watched script has none."
    EXAMPLE = "train file, or: default"

    def rows(self, state: AppState, now: float) -> list[TableRow]:
        """Return one row per key, in the order of the configuration."""
        looks = {"file": ACCENT, "--set": WATCH}
        return [
            TableRow(
                s.key,
                (
                    cell(s.key),
                    cell(fmt.clip_to(one_line(s.value), 60)),
                    cell(s.origin, looks.get(s.origin, DIM)),
                    cell(fmt.clip_to(s.written, 30), DIM),
                ),
                below=cell(s.origin, looks.get(s.origin, DIM)) if s.origin in looks else None,
            )
            for s in state.config.resolved
        ]
