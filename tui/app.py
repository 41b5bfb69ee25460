"""The composition root: a session on one side, screens on the other, one frozen state between.

The session's deliveries are collected and folded into the state in slices; a timer redraws the
visible screen when the state has changed. Nothing here, and nothing a person does here short of
sending a command, touches the run.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from textual import on
from textual.app import App
from textual.binding import Binding, BindingType
from textual.command import Provider
from textual.notifications import SeverityLevel
from textual.screen import Screen

from fttui.engine.errors import FttuiError
from fttui.engine.protocol.commands import AnyCommand
from fttui.engine.run.run_dir import RunDirectory, runs_root

from .actions import ACTION_OF, bindings, keyed, rebound, why_not
from .connection.run_list import RunListing
from .messages import DeliveriesWaiting, ListeningEnded, RoomChanged
from .palette import ActionCommands
from .screens.base import PlotScreen, RunScreen
from .screens.handlers.action_handlers import ask_rollback, perform
from .screens.handlers.background import change_control, compare, learn_about, open_report
from .screens.lists import ListScreen
from .screens.modals.modal import Palette
from .screens.registry import SCREENS
from .screens.text_page import TextPage
from .screens.welcome import WelcomeScreen
from .settings import Settings, note_seen, present_settings
from .styles.themes import THEMES
from .view_model.app_state import AppState, fold, submitted, take_slice
from .view_model.connection_port import Delivery, Session
from .view_model.interventions import Phase
from .view_model.plot_view import PlotView
from .widgets.ascii import AsciiFilter

SLICE = 500
"""Records folded before the event loop gets its turn."""
TELL_S = 5.0
TICK_S = 1.0
SETTLED_S = 1.0
"""What exists then is there to stay."""
_REFLEX = "ctrl+c does not touch the run. {app.detach} leaves, it goes on; {run.stop} stops it."


class FttuiApp(App[int]):
    """Shows a run and sends a person's commands to it."""

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

    def __init__(
        self,
        session: Session,
        *,
        run: RunDirectory | None = None,
        settings: Settings | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Make the app of a session; `clock` gives Unix seconds."""
        self.settings = settings or Settings()
        super().__init__()
        self.session = session
        self.run_directory = run
        self.clock = clock
        self.runs_root = run.path.parent if run else runs_root()
        self.wanted: RunListing | None = None
        """The run to show next, when the person left for another one."""
        self.count = ""
        """Digits typed for the next key; empty when none were asked for."""
        self.counting = False
        self.actions = rebound(self.settings.keys)
        self.state: AppState = AppState(
            keys={a.id: a.key for a in self.actions},
            run_id=session.run_id,
            viewer=session.viewer,
            issuer=session.issuer,
            read_only=session.read_only,
        )
        self._waiting: list[Delivery] = []
        self._changed = True
        self._drawn_at = 0.0
        self._asked: list[str] = []
        """Commands sent from here whose outcome is not known yet."""
        self._listening: asyncio.Task[None]
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = self.settings.theme
        self.stylesheet.set_variables(self.get_css_variables())
        self._restyled = False
        if self.ascii_only:
            self._filters.append(AsciiFilter())

    @property
    def ascii_only(self) -> bool:
        """Draw with ASCII."""
        return self.settings.ascii

    def on_mount(self) -> None:
        """Start listening and redrawing."""
        # No worker: those are cancelled before the session can say goodbye over its link.
        self._listening = asyncio.create_task(self.listen())
        for number in (signal.SIGHUP, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self.exit, 128 + number)
        self.set_keymap(dict(self.settings.keys))
        for fault in self.settings.faults:
            self.tell(fault, title="settings")
        if self.settings.first_time:
            self.push_screen(WelcomeScreen(self.state), lambda _: note_seen())
        self.run_worker(learn_about(self), group="about")
        self.set_interval(self.settings.redraw_s, self._redraw_if_due)
        self.set_timer(SETTLED_S, collect_garbage)

    def refresh_css(self, animate: bool = True) -> None:
        """Style everything anew; not at start, for the theme the styles were just read with."""
        self._restyled |= self.theme != self.settings.theme
        if self._restyled:
            super().refresh_css(animate)

    async def on_unmount(self) -> None:
        """However the app ends: give control up, then stop listening."""
        await self.session.close()
        self._listening.cancel()
        await asyncio.wait([self._listening])

    # deliveries → state → screen

    async def listen(self) -> None:
        """Collect what the session delivers; the fault that ends it is shown, never raised."""
        fault = ""
        try:
            await self.session.listen(self._deliver)
        except FttuiError as error:
            fault = str(error)
        except Exception as error:  # noqa: BLE001 - a broken link must not take the screen away
            fault = f"the connection failed: {type(error).__name__}: {error}"
        self.post_message(ListeningEnded(fault))

    def _deliver(self, delivery: Delivery) -> None:
        self._waiting.append(delivery)
        self.post_message(DeliveriesWaiting())

    @on(DeliveriesWaiting)
    def fold_waiting(self) -> None:
        """Fold one slice of what is waiting."""
        if not self.screen_stack:  # the app is being taken down
            return
        batch = take_slice(self._waiting, SLICE)
        if batch:
            empty = self.state.run.last is None
            self.state = fold(self.state, batch, self.clock())
            self._tell_outcomes()
            self._changed = True
            if empty and self.state.run.last is not None:
                self.redraw()  # the first picture waits for no timer
        if self._waiting:
            self.post_message(DeliveriesWaiting())

    def _tell_outcomes(self) -> None:
        """Say what became of this viewer's commands where the screen does not show it."""
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
        """Say why nothing comes any more."""
        self.state = replace(self.state, fault=message.fault)
        self._changed = True

    def _redraw_if_due(self) -> None:
        """After news, and once a second for the ages and durations that are shown."""
        if self._changed or time.monotonic() - self._drawn_at >= TICK_S:
            self.redraw()

    @on(RoomChanged)
    def redraw(self) -> None:
        """Draw the visible screen."""
        self._changed = False
        self._drawn_at = time.monotonic()
        screen = self._run_screen()
        if screen is not None and screen.is_mounted:
            screen.show(self.state, self.clock())

    def _run_screen(self) -> RunScreen | None:
        """The topmost screen about the run, behind any dialog."""
        return next((s for s in reversed(self.screen_stack) if isinstance(s, RunScreen)), None)

    # what a person does

    def action_act(self, action_id: str) -> None:
        """Bound to every key of the action table."""
        self.perform(action_id)

    def perform(self, action_id: str) -> None:
        """Do an action of the table, or say why not."""
        perform(self, ACTION_OF[action_id])

    def take_count(self) -> int:
        """The number typed for this key, 1 when none was."""
        count, self.count, self.counting = self.count, "", False
        return int(count or 1)

    def send(self, command: AnyCommand, *, reason: str = "", guarded: bool = False) -> None:
        """Ask the run to do something; it shows as sent at once.

        `guarded` commands are refused when someone changed the settings since they were seen.
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
        """Show the curves in another way."""
        self.state = replace(self.state, plot=plot)
        self.redraw()

    def tell(self, text: str, severity: SeverityLevel = "warning", *, title: str = "") -> None:
        """A remark that goes away by itself."""
        self.notify(text, title=title, severity=severity, timeout=TELL_S, markup=False)

    def action_interrupt(self) -> None:
        """ctrl+c is a reflex; here it must cost nothing."""
        text = (
            "ctrl+c does not touch the run. {app.detach} detaches and training goes on; {run.stop} "
        )
        self.tell(keyed(text + "stops it.", self.state))

    # screens

    def go(self, mode: str) -> None:
        """Show a screen by its mode."""
        if self.current_mode != mode:
            self.switch_mode(mode)
        elif isinstance(self.screen, PlotScreen) and self.screen.has_class("-maximised"):
            self.screen.toggle_maximised()

    def back(self) -> None:
        """Drop the cursor, the filter, the page, then go to the dashboard."""
        self.clear_notifications()
        screen = self.screen
        if isinstance(screen, ListScreen) and screen.close_filter():
            return
        if len(self.screen_stack) > 1:
            self.pop_screen()
        elif isinstance(screen, PlotScreen) and screen.has_class("-maximised"):
            screen.toggle_maximised()
        elif self.state.plot.cursor is not None:
            self.look(replace(self.state.plot, cursor=None))
        else:
            self.go("dashboard")

    def ask_rollback(self, checkpoint: str | None) -> None:
        """Choose a checkpoint and confirm."""
        reason = why_not(ACTION_OF["run.rollback"], self.state)
        if reason is None:
            ask_rollback(self, checkpoint)
        else:
            self.tell(reason, title="rollback")

    def open_sample(self, index: int) -> None:
        """A sample in full."""
        sample = self.state.run.samples[index]
        text = f"{sample.prompt}\n\n{sample.text}"
        self.push_screen(TextPage(f"sample at step {sample.step:,}", text))

    def open_report(self, anomaly_id: str) -> None:
        """Fetch an anomaly's report and show it."""
        self.run_worker(open_report(self, anomaly_id), group="report", exclusive=True)

    def change_control(self, *, take: bool) -> None:
        """Take or give up control."""
        self.run_worker(change_control(self, take=take), group="control", exclusive=True)

    def compare(self, chosen: list[RunListing]) -> None:
        """Show runs over this one."""
        self.run_worker(compare(self, chosen), group="compare", exclusive=True)

    def action_command_palette(self) -> None:
        """Every action by name."""
        if not isinstance(self.screen, Palette):
            self.push_screen(Palette(id="--command-palette"))

    def open_run(self, item: RunListing) -> None:
        """Leave this run for another one."""
        if not item.host and item.summary.id == self.state.run_id:
            self.go("dashboard")
        else:
            self.wanted = item
            self.exit(0)


def collect_garbage() -> None:
    """From here on, if the command has put it off; without what made the start ever again."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def run_app(session: Session, *, run: RunDirectory | None = None) -> FttuiApp:
    """Show a run until the person leaves; training goes on. The app knows where they want to."""
    app = FttuiApp(session, run=run, settings=present_settings())
    app.run()
    return app
