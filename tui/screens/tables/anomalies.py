"""The screen of incidents; enter opens the report of one."""

from __future__ import annotations

from textual.content import Content

from ...dialogs.incident_text import ending, short
from ...text.glyphs import SEVERITY_COLOUR, SEVERITY_SHAPE
from ...view_model.app_state import AppState
from ...view_model.incidents.incident import Incident
from ...view_model.run_view import RunView
from ...widgets.event_panels import STATE_LOOK
from ...widgets.table import TableRow, cell
from ...widgets.text_line import DIM
from ..handlers.background import open_report
from .table_screen import TableScreen


class AnomaliesScreen(TableScreen):
    """The table of incidents, each with the alarms of one cause; enter opens the report."""

    COLUMNS = ("", "steps", "incident", "alarms", "state", "how it ended")
    NARROW = ("", "steps", "incident")
    FLEXIBLE = "incident"
    WIDE_FLEXIBLE = FLEXIBLE
    NAME = "incidents"
    DETAIL = "incident"
    EMPTY = "No anomaly so far. Loss and gradients are checked before every update."

    def rows(self, state: AppState, now: float) -> list[TableRow]:
        """Return one row per incident: the current one, then the others, newest first."""
        current = state.run.current_incident
        others = [one for one in reversed(state.run.incidents) if one is not current]
        ordered = others if current is None else [current, *others]
        return [_row(state.run, incident) for incident in ordered]

    def chosen(self, key: str) -> None:
        """Open the report of the incident that has this id."""
        open_report(self.fttui, key)


def _row(run: RunView, incident: Incident) -> TableRow:
    colour = SEVERITY_COLOUR.get(incident.severity, DIM) if incident.active else DIM
    look = STATE_LOOK.get(incident.state, DIM)
    cells: tuple[Content, ...] = (
        cell(SEVERITY_SHAPE.get(incident.severity, "·"), colour),
        cell(f"{_steps(incident):>11}"),
        cell(short(run, incident), "" if incident.active else DIM),
        cell(f"{len(incident.alarms):>6,}", DIM),
        cell(incident.state.value, look),
        cell(ending(incident), DIM),
    )
    return TableRow(incident.id, cells, below=cell(ending(incident), look))


def _steps(incident: Incident) -> str:
    first, last = incident.first_step, incident.last_step
    return f"{first:,}" if first == last else f"{first:,}–{last:,}"
