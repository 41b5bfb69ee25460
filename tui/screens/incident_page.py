"""The report of an incident: a diagnosis whose actions can be sent, with the figures folded."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import wrap
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.css.query import NoMatches
from textual.widgets import Collapsible, Static

from ..actions import refusal_of
from ..dialogs.diagnosis import Diagnosis, diagnose, to_markdown
from ..text.control_characters import escape_control_characters
from ..view_model.app_state import AppState
from ..view_model.incidents.incident import Advice, Incident
from ..widgets.text_line import ACCENT, BOLD, DIM, WATCH, TextLine, assemble, lines, plain
from .base import RunScreen
from .report_keys import key_of_advice

INDENT = " " * 5
"""In front of the lines that say what the chosen action will do."""


class ActionRow(TextLine):
    """One numbered action; a click sends it."""

    def __init__(self, index: int) -> None:
        super().__init__(classes="action")
        self.index = index

    def on_click(self, event: events.Click) -> None:
        """Choose and send the action that was clicked."""
        screen = self.screen
        if isinstance(screen, IncidentPage):
            screen.action_run(self.index)


class IncidentPage(RunScreen):
    """Shows an incident as a diagnosis.

    `enter` or a digit sends an action after a confirmation. The arrows choose an action, then
    scroll; `d` unfolds the figures.
    """

    AUTO_FOCUS = "#text"
    MODE = "page"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "move(1)", show=False, priority=True),
        Binding("up,k", "move(-1)", show=False, priority=True),
        Binding("enter", "choose", show=False),
        Binding("d", "unfold", show=False),
        *(Binding(str(n), f"run({n - 1})", show=False) for n in range(1, 10)),
    ]

    def __init__(self, incident_id: str, reports: Mapping[str, str]) -> None:
        """Show the incident of an id, with its alarms' reports in Markdown by their names."""
        super().__init__()
        self._id = incident_id
        self._reports = reports
        self._chosen = 0

    @property
    def incident(self) -> Incident | None:
        """The incident as it is now; None if it is no longer known."""
        return next((i for i in self.fttui.state.run.incidents if i.id == self._id), None)

    def diagnosis(self) -> Diagnosis | None:
        """Return the diagnosis as it is now; None if the incident is no longer known."""
        found = self.incident
        return None if found is None else diagnose(self.fttui.state.run, found, self._reports)

    def text_to_copy(self) -> str:
        """Return the report as Markdown."""
        found = self.diagnosis()
        return "" if found is None else to_markdown(found)

    def compose_body(self) -> ComposeResult:
        """Compose diagnosis, actions and folded figures."""
        page = VerticalScroll(id="text", can_focus=True)
        page.border_title = "incident"
        page.border_subtitle = "⏎ or digit: send   ↑ ↓ choose, scroll   d: figures   esc: back"
        with page:
            yield TextLine(id="cause")
            yield TextLine(id="curve")
            yield Vertical(id="actions")
            yield TextLine(id="done")
            found = self.diagnosis()
            for section in found.sections if found else ():
                with Collapsible(title=section.title, collapsed=True):
                    yield self._body(section.markdown)

    def _body(self, markdown: str) -> Static:
        from textual.widgets import Markdown  # deferred: importing its parser takes 0.1 s

        return Markdown(escape_control_characters(markdown), open_links=False)  # type: ignore[return-value]

    def show_body(self, state: AppState, now: float) -> None:
        """Draw what may have changed: state, actions, and what was done."""
        found = self.diagnosis()
        if found is None:
            return
        active = self.incident is not None and self.incident.active
        head = [assemble((found.title, BOLD)), assemble((found.state, WATCH if active else DIM))]
        head += [plain(found.what.replace("`", ""))] if found.what else []
        self.query_one("#cause", TextLine).put(lines(*head))
        self.query_one("#curve", TextLine).put(plain(found.plot))
        self.query_one("#curve").display = bool(found.plot)
        self._show_actions(found, state)
        past = [assemble((f"{a.label}: ", DIM), a.text) for a in found.answers]
        self.query_one("#done", TextLine).put(lines(*past))
        self.query_one("#done").display = bool(past)

    def _show_actions(self, found: Diagnosis, state: AppState) -> None:
        rows = list(self.query(ActionRow))
        home = self.query_one("#actions", Vertical)
        for surplus in rows[len(found.actions) :]:
            surplus.remove()
        added = [ActionRow(at) for at in range(len(rows), len(found.actions))]
        if added:
            home.mount(*added)
        self._chosen = min(self._chosen, max(0, len(found.actions) - 1))
        shown = [*rows, *added][: len(found.actions)]
        for row, advice in zip(shown, found.actions, strict=True):
            row.put(self._action(row.index, advice, state))

    def _action(self, index: int, advice: Advice, state: AppState) -> Content:
        """Return an action as its number, command and key, or why it cannot be sent.

        What the chosen one will do stands below it.
        """
        chosen = index == self._chosen
        why_not = refusal_of(advice.way.typed, state)
        key = key_of_advice(advice, self.incident, state)
        command = advice.way.text + (f" [{key}]" if key else "")
        look = DIM if why_not else f"{BOLD} {ACCENT}" if chosen else ACCENT
        head = assemble(
            (f"{'▸' if chosen else ' '} {index + 1}. {command}", look),
            (f"  not possible: {why_not}" if why_not else "", DIM),
        )
        if not chosen or not advice.way.why:
            return head
        width = max(20, self.query_one("#text").scrollable_content_region.width - len(INDENT))
        return lines(head, *(assemble((INDENT + row, DIM)) for row in wrap(advice.way.why, width)))

    def action_move(self, by: int) -> None:
        """Choose the next or previous action; beyond the last one, scroll."""
        page = self.query_one("#text", VerticalScroll)
        last = len(self.query(ActionRow)) - 1
        if by > 0 and self._chosen < last:
            self._chosen += 1
        elif by < 0 and page.scroll_offset.y == 0 and self._chosen > 0:
            self._chosen -= 1
        else:
            page.scroll_relative(y=by, animate=False)
            return
        self.fttui.redraw()
        self.query(ActionRow)[self._chosen].scroll_visible(animate=False)

    def action_choose(self) -> None:
        """Send the chosen action after a confirmation."""
        self.action_run(self._chosen)

    def action_run(self, index: int) -> None:
        """Send the action of an index, counted from 0, after a confirmation."""
        from .handlers.action_handlers import follow  # deferred: the handlers know this page

        found, incident = self.diagnosis(), self.incident
        if found is not None and incident is not None and index < len(found.actions):
            self._chosen = index
            follow(self.fttui, incident, found.actions[index])

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave digits without an action, and enter without any, to the app and its widgets."""
        if action not in {"run", "choose"}:
            return True
        index = parameters[0] if action == "run" else self._chosen
        try:
            return isinstance(index, int) and index < len(self.query(ActionRow))
        except NoMatches:
            return False

    def action_unfold(self) -> None:
        """Unfold all figures, or fold them again."""
        parts = list(self.query(Collapsible))
        folded = any(part.collapsed for part in parts)
        for part in parts:
            part.collapsed = not folded
