"""The screen of interventions: who changed what, when, why, and its effect."""

from __future__ import annotations

from textual.content import Content

from ...text import format as fmt
from ...view_model.app_state import AppState
from ...view_model.interventions import Intervention, Phase
from ...widgets.table import TableRow, cell, clock_time
from ...widgets.text_line import ACCENT, ALARM, DIM, assemble
from .table_screen import TableScreen

_PHASE_STYLE = {Phase.APPLIED: ACCENT, Phase.FAILED: ALARM, Phase.REJECTED: ALARM, Phase.SENT: DIM}


class InterventionsScreen(TableScreen):
    """The table of interventions: who changed what, when, why, and with what effect."""

    COLUMNS = ("step", "who", "command", "outcome", "reason", "took", "at")
    NARROW = ("step", "command")
    FLEXIBLE = "command"
    NAME = "interventions"
    DETAIL = "intervention"
    EMPTY = "No intervention so far; {lr.change} changes the learning rate, {clip.change} the clip."

    def shows_outcomes(self) -> bool:
        """Always true, as the table lists every command with its outcome."""
        return True

    def rows(self, state: AppState, now: float) -> list[TableRow]:
        """Return one row per command, newest first."""
        return [
            TableRow(
                item.id,
                (
                    cell("–" if item.step is None else f"{item.step:>7,}"),
                    cell(item.issuer, DIM),
                    cell(item.text),
                    cell(item.outcome(), _PHASE_STYLE.get(item.phase, "")),
                    cell(state.run.interventions.why(item), DIM),
                    cell(fmt.duration(item.seconds) if item.seconds else "", DIM),
                    cell(clock_time(item.time or item.sent_at), DIM),
                ),
                below=_below(item),
            )
            for item in reversed(state.run.interventions.items)
        ]


def _below(item: Intervention) -> Content:
    """Return outcome and issuer as the second line of a row."""
    outcome = assemble((item.outcome(), _PHASE_STYLE.get(item.phase, "")))
    return assemble(outcome, (f"  {item.issuer}", DIM))
