"""The part of the app that its screens, action handlers and command palette use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from textual.app import App
from textual.notifications import SeverityLevel

from fttui.engine.protocol.commands import AnyCommand
from fttui.engine.run.run_dir import RunDirectory

from .actions import Action
from .connection.race.race_process import StartedBench
from .connection.run_list import RunListing
from .view_model.app_state import AppState
from .view_model.connection_port import Session
from .view_model.plot_view import PlotView


class AppBase(App[int]):
    """The app as its screens see it, so that they need not import the module that builds them."""

    session: Session
    state: AppState
    actions: Sequence[Action]
    """The action table with the user's keys."""
    run_directory: RunDirectory | None
    """The folder of the run, if it is on this machine."""
    runs_root: Path
    """The folder whose runs are listed."""
    started_bench: StartedBench | None = None
    """The newest process that the app has started to measure benchmarks."""
    clock: Callable[[], float]
    """Returns Unix seconds."""
    count: str
    """Digits typed as the count of the next key."""
    counting: bool
    """Whether the count key was pressed and the next key takes the count."""

    @property
    def ascii_only(self) -> bool:
        """Whether to draw with ASCII characters only."""
        raise NotImplementedError

    def redraw(self) -> None:
        """Draw the visible screen."""
        raise NotImplementedError

    def action_act(self, action_id: str) -> None:
        """Perform an action of the action table; every key of the table is bound to this."""
        raise NotImplementedError

    def take_count(self) -> int:
        """Return the count typed before this key (1 if none was), and reset it."""
        raise NotImplementedError

    def send(self, command: AnyCommand, *, reason: str = "", guarded: bool = False) -> None:
        """Send a command to the run; it is listed as sent at once.

        With `guarded` it is rejected if the run's settings were changed after the newest heartbeat.
        """
        raise NotImplementedError

    def look(self, plot: PlotView) -> None:
        """Apply a changed plot view and redraw."""
        raise NotImplementedError

    def tell(self, text: str, severity: SeverityLevel = "warning", *, title: str = "") -> None:
        """Show a notification for a few seconds."""
        raise NotImplementedError

    def go(self, mode: str) -> None:
        """Show a screen by its name in `SCREENS`; if it is shown already, show all its plots."""
        raise NotImplementedError

    def back(self) -> None:
        """Close the first that is open of filter, page, maximised plot and cursor.

        If none is open, go to the dashboard.
        """
        raise NotImplementedError

    def choose_theme(self) -> None:
        """Open the list of themes; the one that the user chooses is kept in the user's file."""
        raise NotImplementedError

    def open_report(self, anomaly_id: str) -> None:
        """Fetch the report of an anomaly and show it."""
        raise NotImplementedError

    def open_run(self, item: RunListing) -> None:
        """Exit, so that the command line opens another run; for this run, go to the dashboard."""
        raise NotImplementedError
