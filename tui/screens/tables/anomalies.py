"""The screen of anomalies; enter opens the report of one."""

from __future__ import annotations

from ...actions import ACTION_OF, label_of
from ...text.glyphs import SEVERITY_COLOUR, SEVERITY_SHAPE
from ...view_model.app_state import AppState
from ...widgets.table import TableRow, cell
from ...widgets.text_line import DIM
from ..handlers.background import open_report
from .table_screen import TableScreen


class AnomaliesScreen(TableScreen):
    """The table of anomalies; enter opens the report."""

    COLUMNS = ("", "step", "anomaly", "verdict", "good checkpoint")
    NAME = "anomalies"
    DETAIL = "anomaly"
    EMPTY = "No anomaly so far. Loss and gradients are checked before every update."
    HINT = "enter report   {anomaly.recover} ADVICE   {list.filter} filter   {app.back} back"

    def _keys(self, state: AppState) -> str:
        """Return the hint with the name of the recommended command, which need not be `recover`."""
        return super()._keys(state).replace("ADVICE", label_of(ACTION_OF["anomaly.recover"], state))

    def rows(self, state: AppState, now: float) -> list[TableRow]:
        """Return one row per anomaly, newest first."""
        found = []
        for anomaly in reversed(state.run.anomalies):
            event = anomaly.event
            colour = SEVERITY_COLOUR.get(event.severity, DIM)
            cells = (
                cell(SEVERITY_SHAPE.get(event.severity, "·"), colour),
                cell(f"{anomaly.step:>7,}"),
                cell(event.headline),
                cell(anomaly.verdict or "open", DIM if anomaly.verdict else colour),
                cell(event.checkpoint or "–", DIM),
            )
            found.append(TableRow(event.id, cells))
        return found

    def chosen(self, key: str) -> None:
        """Open the report of the anomaly that has this id."""
        open_report(self.fttui, key)
