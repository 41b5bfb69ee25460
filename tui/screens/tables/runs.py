"""The screen of all runs, live and ended, on this machine and on known remote hosts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from textual import work
from textual.binding import BindingType

from fttui.engine.protocol.states import RunState
from fttui.engine.run.run_index import RunSummary, unreadable_runs

from ...actions import bindings
from ...connection.run_list import RunListing, local_runs, remote_runs
from ...text import format as fmt
from ...text.glyphs import STATE_COLOUR, STATE_SHAPE
from ...view_model.app_state import AppState
from ...widgets.table import TableRow, cell
from ...widgets.text_line import ACCENT, DIM, assemble
from .table_screen import TableScreen

REFRESH_S = 5.0


class RunsScreen(TableScreen):
    """The table of runs; enter opens one, the mark key marks it for comparison."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("runs")]
    COLUMNS = ("", "state", "run", "step", "loss", "age", "host")
    NAME = "runs"
    EMPTY = "searching for runs…"

    def __init__(self) -> None:
        super().__init__()
        self._here: list[RunListing] = []
        self._there: list[RunListing] = []
        self._damaged: list[str] = []
        self._faults: list[str] = []
        self._looked = False
        self.marked: set[str] = set()

    def on_mount(self) -> None:
        """Start listing runs; those of this machine are listed again every 5 s."""
        self.look()
        self.look_elsewhere()
        self.set_interval(REFRESH_S, self.look)

    @work(thread=True, exclusive=True, group="runs-here")
    def look(self) -> None:
        """List the runs of this machine, in a thread, and redraw."""
        found, damaged = local_runs(self.fttui.runs_root), unreadable_runs(self.fttui.runs_root)
        self.app.call_from_thread(self._found_here, found, damaged)

    def _found_here(self, found: list[RunListing], damaged: list[Path]) -> None:
        self._here = found
        self._damaged = [f"{file.parent.name}: run.json is damaged" for file in damaged]
        self._looked = True
        self.fttui.redraw()

    @work(exclusive=True, group="runs-there")
    async def look_elsewhere(self) -> None:
        """List the runs of the known remote hosts, without blocking the app, and redraw."""
        self._there, self._faults = await remote_runs()
        self.fttui.redraw()

    @property
    def listed(self) -> list[RunListing]:
        """All runs, in the order shown."""
        return [*self._here, *self._there]

    def columns(self) -> Sequence[str]:
        """Return the column names; a narrow terminal has no host column without remote runs."""
        here = self.has_class("-narrow") and not any(item.host for item in self.listed)
        return self.COLUMNS[:-1] if here else self.COLUMNS

    def rows(self, state: AppState, now: float) -> list[TableRow]:
        """Return one row per run of this machine and of the known remote hosts."""
        return [self._row(item, state, now) for item in self.listed]

    def _row(self, item: RunListing, state: AppState, now: float) -> TableRow:
        run = item.summary
        sign = "✱" if item.key in self.marked else "▸" if run.id == state.run_id else " "
        age = fmt.age(now - run.last_time) if run.last_time else "–"
        colour = STATE_COLOUR.get(run.state, "")
        return TableRow(
            item.key,
            (
                cell(sign, ACCENT),
                cell(f"{STATE_SHAPE[run.state]} {run.state_text}", colour),
                cell(run.id),
                cell(_distance(run, brief=self.has_class("-narrow"))),
                cell(f"{fmt.number(run.loss):>7}"),
                cell(f"{age:>6}", DIM),
                cell(item.host or "local", DIM),
            ),
        )

    def show_body(self, state: AppState, now: float) -> None:
        """Draw the table; the note names damaged runs and hosts that did not answer."""
        super().show_body(state, now)
        if self._looked and not self.listed:
            self.put_note(assemble("No runs yet; start one with: fttui run CONFIG"))
        missing = [*self._damaged, *self._faults]
        if missing:
            more = f"   (and {len(missing) - 1} more)" if missing[1:] else ""
            self.put_note(assemble((f"△ {missing[0]}{more}", "$warning")))

    def chosen(self, key: str) -> None:
        """Open the run with this key, unless it is no longer listed."""
        item = next((item for item in self.listed if item.key == key), None)
        if item is not None:
            self.fttui.open_run(item)

    def mark(self) -> None:
        """Mark the run under the cursor, or unmark it."""
        key = self.key_under_cursor()
        if key is not None:
            self.marked ^= {key}
            self.fttui.redraw()

    def chosen_to_compare(self) -> list[RunListing]:
        """Return the marked runs, or the run under the cursor if none is marked."""
        keys = self.marked or {self.key_under_cursor() or ""}
        return [item for item in self.listed if item.key in keys]


def _distance(run: RunSummary, *, brief: bool) -> str:
    step = f"{run.step:>{7 if brief else 9},}"
    if not run.total_steps or (run.state is RunState.FINISHED and not brief):
        return step
    # A resumed run may have been given fewer steps than it has made.
    share = fmt.percent(min(run.step / run.total_steps, 1.0), 0)
    return f"{step} {share:>5}" if brief else f"{step} / {run.total_steps:,}  {share:>5}"
