"""The Textual app: folds the session's deliveries into one frozen state and draws the screens.

Deliveries are collected and folded in slices; a timer redraws the visible screen when the state has
changed. The app changes the run only by commands that the user sends.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.command import Provider
from textual.driver import Driver
from textual.notifications import SeverityLevel
from textual.screen import Screen
from textual.theme import Theme

from fttui.engine.errors import FttuiError
from fttui.engine.protocol.commands import AnyCommand
from fttui.engine.run.run_dir import RunDirectory, runs_root

from .actions import bindings, keyed, rebound
from .app_base import AppBase
from .connection.run_list import RunListing
from .messages import DeliveriesWaiting, ListeningEnded, TextLineResized
from .palette import ActionCommands, ThemeCommands
from .preferences import Preferences, keep_theme, note_seen, user_preferences
from .screens.base import RunScreen
from .screens.handlers.action_handlers import perform
from .screens.handlers.background import load_config, open_report
from .screens.modals.modal import Palette
from .screens.plots.compare import CompareScreen
from .screens.plots.plot_screen import PlotScreen
from .screens.registry import SCREENS
from .screens.tables.table_screen import TableScreen
from .styles.themes import LEFT_OUT, THEMES, with_derived
from .terminal_driver import TerminalDriver
from .text.control_characters import escape_control_characters
from .view_model.app_state import AppState, fold, submitted, take_slice
from .view_model.connection_port import Delivery, HistoryArrived, RecordsArrived, Session
from .view_model.interventions import Phase
from .view_model.plot_view import PlotView
from .widgets.ascii_filter import AsciiFilter
from .widgets.visible_filter import VisibleFilter

SLICE = 500
"""Records folded at a time, so that the event loop stays responsive."""
TELL_S = 5.0
"""Seconds for which a notification is shown."""
WELCOME_S = 20.0
"""Seconds for which the first start on a machine shows how to begin."""
FIRST_TIME = (
    "{app.help} shows all keys, {app.commands} finds an action by name. Every change shows the "
    "step at which it took effect. {app.detach} leaves; training continues."
)
MANY, MANY_S = 12, 0.6
"""When records come so many times within so many seconds, they wait for the next redraw.

To fold one record costs nearly as much as to fold a hundred.
"""
BUSY_S = 0.3
"""Seconds between redraws while that is so."""
TICK_S = 1.0
"""Seconds between redraws without new records, for the ages and durations on the screen."""
LARGE_BYTES = 128 * 1024
_M_MMAP_THRESHOLD = -3
"""The parameter of glibc's `mallopt`."""
SETTLED_S = 1.0
"""Seconds after the start at which garbage collection begins; objects made before are exempt."""


class FttuiApp(AppBase):
    """The app that shows one run and sends the user's commands to it."""

    TITLE = "fttui"
    CSS_PATH = "styles/app.tcss"
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {ActionCommands}
    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings("run"),
        Binding("ctrl+c", "interrupt", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False, priority=True),
        Binding("ctrl+q", "app.act('app.detach')", show=False, priority=True),
    ]
    MODES: ClassVar[dict[str, str | Callable[[], Screen[Any]]]] = {**SCREENS}
    DEFAULT_MODE = "dashboard"
    _drawn_at = 0.0
    _welcomes = False
    """Whether the words of welcome may still be on the screen."""

    def __init__(
        self,
        session: Session,
        *,
        run: RunDirectory | None = None,
        preferences: Preferences | None = None,
        first: str = "dashboard",
        clock: Callable[[], float] = time.time,
        driver: type[Driver] = TerminalDriver,
        confined: bool = False,
    ) -> None:
        """Build the app for a session.

        Args:
            session: the session of the run.
            run: the run folder if it is on this machine.
            preferences: what the user prefers.
            first: the screen that is shown first.
            clock: returns Unix seconds.
            driver: draws the app and reads its keys.
            confined: whether the app shows this run alone and writes no file, as in a browser.
        """
        self.preferences = preferences or Preferences()
        super().__init__(driver_class=driver)
        self.session = session
        self.run_directory = run
        self._first = first
        self.clock = clock
        self.runs_root = run.path.parent if run else runs_root()
        self.wanted: RunListing | None = None
        """The run that the user opened from the list of runs, to show after this app exits."""
        self.count = ""
        """Digits typed as the count of the next key."""
        self.counting = False
        """Whether the count key was pressed and the next key takes the count."""
        self.actions = rebound(self.preferences.keys)
        self.state: AppState = AppState(
            keys={a.id: a.key for a in self.actions},
            run_id=session.run_id,
            viewer=session.viewer,
            issuer=session.issuer,
            read_only=session.read_only,
            confined=confined,
        )
        self._waiting: list[Delivery] = []
        self._records_at: deque[float] = deque(maxlen=MANY)
        self._changed = True
        self._asked: list[str] = []
        """Ids of the commands this viewer sent whose outcome is still open."""
        self._listening: asyncio.Task[None]
        for theme in THEMES:
            self.register_theme(theme)
        for name in LEFT_OUT:
            self.unregister_theme(name)
        self.theme = self.preferences.theme
        self.stylesheet.set_variables(self.get_css_variables())
        self._restyled = False
        self._filters.append(VisibleFilter())
        if self.ascii_only:
            self._filters.append(AsciiFilter())

    def get_css_variables(self) -> dict[str, str]:
        """Return the variables of the theme with the colours that fttui derives from them."""
        self.theme_variables = with_derived(self.current_theme, super().get_css_variables())
        return self.theme_variables

    @property
    def ascii_only(self) -> bool:
        """Whether to draw with ASCII characters only."""
        return self.preferences.ascii

    def on_mount(self) -> None:
        """Start listening to the session and redrawing, and read the configuration of the run.

        Faults of the preferences are shown, and at the first start on a machine how to begin.
        """
        # A Textual worker would be cancelled before the session can close its connection.
        self._listening = asyncio.create_task(self.listen())
        for number in (signal.SIGHUP, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self.exit, 128 + number)
        self.set_keymap(dict(self.preferences.keys))
        self.theme_changed_signal.subscribe(self, self._keep_theme)
        for fault in self.preferences.faults:
            self.tell(fault, title="preferences")
        if self.preferences.first_time:
            self.tell(
                keyed(FIRST_TIME, self.state), "information", title="fttui", seconds=WELCOME_S
            )
            note_seen()
            self._welcomes = True
        if self._first != self.current_mode:
            self.go(self._first)
        load_config(self)
        self.set_interval(self.preferences.redraw_s, self._redraw_if_due)
        self.set_timer(SETTLED_S, settle)

    def refresh_css(self, animate: bool = True) -> None:
        """Restyle all widgets; before the theme first changes, do nothing, as they are styled."""
        self._restyled |= self.theme != self.preferences.theme
        if self._restyled:
            super().refresh_css(animate)

    async def on_unmount(self) -> None:
        """Close the session, which releases control, then stop listening."""
        await self.session.close()
        self._listening.cancel()
        await asyncio.wait([self._listening])

    # deliveries → state → screen

    async def listen(self) -> None:
        """Collect what the session delivers; an error that ends it is shown and not raised."""
        fault = ""
        try:
            await self.session.listen(self._deliver)
        except FttuiError as error:
            fault = str(error)
        except Exception as error:  # noqa: BLE001 - a broken connection must not close the app
            fault = f"the connection failed: {type(error).__name__}: {error}"
        self.post_message(ListeningEnded(fault))

    def _deliver(self, delivery: Delivery) -> None:
        self._waiting.append(delivery)
        waits = isinstance(delivery, RecordsArrived) and self._busy()
        if isinstance(delivery, RecordsArrived | HistoryArrived):
            self._records_at.append(time.monotonic())
        if not waits:
            self.post_message(DeliveriesWaiting())

    def _busy(self) -> bool:
        """Whether records come so often that they are folded together before the next redraw."""
        came = self._records_at
        return len(came) == MANY and time.monotonic() - came[0] < MANY_S

    @on(DeliveriesWaiting)
    def fold_waiting(self) -> None:
        """Fold one slice of the waiting deliveries into the state."""
        if not self.screen_stack:  # the app is shutting down
            return
        batch = take_slice(self._waiting, SLICE)
        if batch:
            empty = self.state.run.last is None
            self.state = fold(self.state, batch, self.clock())
            self._tell_outcomes()
            self._changed = True
            if empty and self.state.run.last is not None:
                self.redraw()  # draw the first step at once, without waiting for the timer
        if self._waiting:
            self.post_message(DeliveriesWaiting())

    def _tell_outcomes(self) -> None:
        """Notify of the outcome of this viewer's commands where the screen does not show it."""
        found = [self.state.run.interventions.find(id_) for id_ in self._asked]
        screen = self.screen
        seen = isinstance(screen, RunScreen) and screen.shows_outcomes()
        for item in (item for item in found if item is not None and item.settled):
            self._asked.remove(item.id)
            if not seen:
                done = item.phase is Phase.APPLIED
                self.tell(f"{item.text}: {item.outcome()}", "information" if done else "error")

    @on(ListeningEnded)
    def note_end(self, message: ListeningEnded) -> None:
        """Store the error that ended listening, for the status panel."""
        self.state = replace(self.state, fault=message.fault)
        self._changed = True

    def _redraw_if_due(self) -> None:
        """Redraw if the state has changed, or if the last redraw was `TICK_S` ago.

        Records that wait are folded before. While many come, a redraw follows the one before after
        `BUSY_S` at the earliest.
        """
        since_s = time.monotonic() - self._drawn_at
        if self._busy() and since_s < BUSY_S:
            return
        if self._waiting:
            self.fold_waiting()
        if self._changed or since_s >= TICK_S:
            self.redraw()

    @on(TextLineResized)
    def redraw(self) -> None:
        """Draw the visible screen."""
        self._changed = False
        self._drawn_at = time.monotonic()
        screen = self._run_screen()
        if screen is not None and screen.is_mounted:
            screen.show(self.state, self.clock())

    def _run_screen(self) -> RunScreen | None:
        """Return the topmost screen that shows the run; dialogs above it do not count."""
        return next((s for s in reversed(self.screen_stack) if isinstance(s, RunScreen)), None)

    # user input

    def action_act(self, action_id: str) -> None:
        """Perform an action of the action table; every key of the table is bound to this.

        The first one ends the words of welcome, which would lie over what it opens.
        """
        if self._welcomes:
            self._welcomes = False
            self.clear_notifications()
        perform(self, action_id)

    def take_count(self) -> int:
        """Return the count typed before this key (1 if none was), and reset it."""
        count, self.count, self.counting = self.count, "", False
        return int(count or 1)

    def send(self, command: AnyCommand, *, reason: str = "", guarded: bool = False) -> None:
        """Send a command to the run and list it as sent, or show why it was not sent.

        Args:
            command: the command.
            reason: why it is sent, for the journal of the run.
            guarded: whether the run rejects it if its settings were changed after the newest
                heartbeat.
        """
        generation = self.state.generation if guarded else None
        try:
            command_id = self.session.submit(command, reason=reason, if_generation=generation)
        except FttuiError as error:
            self.tell(str(error))
            return
        self._asked.append(command_id)
        self.state = submitted(self.state, command_id, command, reason, self.clock())
        self.redraw()

    def look(self, plot: PlotView) -> None:
        """Apply a changed plot view and redraw."""
        self.state = replace(self.state, plot=plot)
        self.redraw()

    def tell(
        self,
        text: str,
        severity: SeverityLevel = "warning",
        *,
        title: str = "",
        seconds: float = TELL_S,
    ) -> None:
        """Show a notification for some seconds."""
        self.notify(
            escape_control_characters(text),
            title=title,
            severity=severity,
            timeout=seconds,
            markup=False,
        )

    def action_interrupt(self) -> None:
        """Explain on ctrl+c how to detach and how to stop; a reflex must not end the run."""
        text = "ctrl+c does not stop the run. {app.detach} detaches, training continues; "
        self.tell(keyed(text + "{run.stop} stops it.", self.state))

    # screens

    def go(self, mode: str) -> None:
        """Show a screen by its name in `SCREENS`; if it is shown already, show all its plots."""
        if self.current_mode != mode:
            self.switch_mode(mode)
        elif isinstance(self.screen, PlotScreen) and self.screen.has_class("-maximised"):
            self.screen.toggle_maximised()

    def back(self) -> None:
        """Close the first that is open of filter, page, maximised plot and cursor.

        If none is open, go to the dashboard.
        """
        self.clear_notifications()
        screen = self.screen
        if isinstance(screen, TableScreen | CompareScreen) and screen.close_filter():
            return
        if len(self.screen_stack) > 1:
            self.pop_screen()
        elif isinstance(screen, PlotScreen) and screen.has_class("-maximised"):
            screen.toggle_maximised()
        elif self.state.plot.cursor is not None:
            self.look(replace(self.state.plot, cursor=None))
        else:
            self.go("dashboard")

    def action_command_palette(self) -> None:
        """Open the command palette, unless it is open."""
        if not isinstance(self.screen, Palette):
            self.push_screen(Palette(id="--command-palette"))

    def choose_theme(self) -> None:
        """Open the list of themes; the one that the user chooses is kept in the user's file."""
        if not isinstance(self.screen, Palette):
            chosen = Palette(providers=[ThemeCommands], placeholder="Search for themes…")
            self.push_screen(chosen)

    def _keep_theme(self, theme: Theme) -> None:
        """Save a theme that differs from the preferred one, or show why it cannot be saved."""
        if theme.name == self.preferences.theme:
            return
        self.preferences = replace(self.preferences, theme=theme.name)
        file = self.preferences.file
        try:
            if file is not None:
                keep_theme(file, theme.name)
        except (OSError, ValueError) as error:
            self.tell(f"the theme could not be saved in {file}: {error}")

    def open_report(self, anomaly_id: str) -> None:
        """Fetch the report of an anomaly and show it."""
        open_report(self, anomaly_id)

    def open_run(self, item: RunListing) -> None:
        """Exit, so that the command line opens another run; for this run, go to the dashboard."""
        if not item.host and item.summary.id == self.state.run_id:
            self.go("dashboard")
        else:
            self.wanted = item
            self.exit(0)


def settle() -> None:
    """Prepare for a long day: enable garbage collection, and let freed arrays leave the process.

    Collection exempts all objects made until now; nothing changes if it is enabled already.
    """
    return_large_blocks()
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def return_large_blocks() -> bool:
    """Let the allocator return freed blocks of 128 KiB and more; False where it cannot be told.

    glibc raises its limit for such blocks with each one that is freed. From then on the growing
    buffers of the curves leave gaps behind, a quarter of the app in an hour at 100 steps a second.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES) == 1


def run_app(
    session: Session, *, run: RunDirectory | None = None, first: str = "dashboard"
) -> FttuiApp:
    """Show a run until the user leaves.

    `wanted` of the returned app is the run to show next, or None if the user left the app.
    """
    app = FttuiApp(session, run=run, preferences=user_preferences(), first=first)
    app.run()
    return app
