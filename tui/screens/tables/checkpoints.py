"""The screen of checkpoints; enter asks to roll back to one."""

from __future__ import annotations

import math

from textual.content import Content

from ...actions import ACTION_OF, key_of, why_not
from ...dialogs.command_cost import given_up
from ...plot.panels import value_at
from ...text import format as fmt
from ...view_model.app_state import AppState
from ...view_model.branches import SMOOTHINGS, smoothed
from ...view_model.run_view import CheckpointView
from ...widgets.table import TableRow, cell
from ...widgets.text_line import ACCENT, DIM, WATCH, Piece, assemble
from ..modals.rollback import ask_rollback
from .table_screen import TableScreen


class CheckpointsScreen(TableScreen):
    """The table of checkpoints; enter opens the rollback dialog."""

    COLUMNS = ("step", "age", "loss", "change", "lost work", "", "note", "name", "size")
    NARROW = ("step", "loss", "lost work", "", "name")
    FLEXIBLE = "name"
    NAME = "checkpoints"
    DETAIL = "checkpoint: then and now"
    EMPTY = "No checkpoint yet; {checkpoint.save} writes one."

    def rows(self, state: AppState, now: float) -> list[TableRow]:
        """Return one row per checkpoint on disk, newest first, then one per copy of one."""
        here = now + state.link.clock_offset_s
        current = value_at(state.run, smoothed(SMOOTHINGS[0]), None)
        return [
            TableRow(
                c.name,
                (
                    cell(f"{c.step:>7,}"),
                    cell(f"{fmt.age(here - c.time):>5}", DIM),
                    cell(f"{fmt.number(c.loss):>7}"),
                    cell(_since(c.loss, current)),
                    cell(given_up(state, c).words, DIM),
                    _standing(c),
                    cell(c.note, DIM),
                    cell(c.name),
                    cell(f"{fmt.size(c.size_bytes):>9}", DIM),
                ),
            )
            for c in reversed(state.run.checkpoints)
        ] + [_copy_row(name, original) for name, original in sorted(_copies(state).items())]

    def chosen(self, key: str) -> None:
        """Open the rollback dialog with this checkpoint chosen, or say why that is not possible."""
        if (original := _copies(self.fttui.state).get(key)) is not None:
            prompt = key_of("app.command", self.fttui.state)
            way = f"to use it, press {prompt} and type: rollback {key}"
            self.fttui.tell(f"{key} is a copy of {original}; {way}", title="rollback")
            return
        reason = why_not(ACTION_OF["run.rollback"], self.fttui.state)
        if reason is None:
            ask_rollback(self.fttui, key)
        else:
            self.fttui.tell(reason, title="rollback")


def _copies(state: AppState) -> dict[str, str]:
    """Return the copies of checkpoints: name of the copy → name of the checkpoint."""
    return state.link.beat.checkpoint_copies if state.link.beat else {}


def _copy_row(name: str, original: str) -> TableRow:
    """Return the row of a copy, which retention neither counts nor removes."""
    empty = [cell("") for _ in range(5)]
    return TableRow(
        name,
        (*empty, cell("copy", DIM), cell(f"of {original}", DIM), cell(name), cell("")),
    )


def _since(then: float | None, now: float | None) -> str:
    """Return the change of the loss since a checkpoint, such as `▾ 0.12`.

    It is `–` if the loss has not changed, or if one of the two values is unknown or not finite.
    """
    if then is None or now is None or not math.isfinite(then - now):
        return "–"
    if math.isclose(then, now, rel_tol=1e-9):  # equal up to rounding in the smoothing
        return "–"
    return f"{'▾' if now <= then else '▴'} {fmt.number(abs(now - then))}"


def _standing(found: CheckpointView) -> Content:
    """Return whether a checkpoint is good, doubtful or a mean, after `✓` for verified."""
    kind: Piece = ("good", ACCENT) if found.good else ("△ doubtful", WATCH)
    pieces: list[Piece] = ["✓ ", ("mean", ACCENT) if found.mean else kind]
    if found.pinned:
        pieces.append(" pinned")
    return assemble(*pieces)
