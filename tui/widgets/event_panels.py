"""Panels and lines of events: incidents, interventions, log, and the newest of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from textual.content import Content

from ..actions import ACTION_OF, key_of, keyed, why_not
from ..dialogs.incident_text import answers, cause, short
from ..dialogs.status_text import Status, status_of
from ..text import format as fmt
from ..text.glyphs import SEVERITY_COLOUR, SEVERITY_SHAPE
from ..view_model.app_state import AppState
from ..view_model.incidents.incident import Incident, IncidentState
from ..view_model.interventions import Intervention, Phase
from ..view_model.run_view import LogLine, RunView
from .text_line import ACCENT, ALARM, DIM, WATCH, Piece, TextLine, assemble, lines, spread

_LEVEL_COLOUR = {"error": ALARM, "warning": WATCH, "debug": DIM}
_PHASE_COLOUR = {
    Phase.SENT: DIM,
    Phase.ACCEPTED: "",
    Phase.APPLYING: "",
    Phase.APPLIED: ACCENT,
    Phase.FAILED: ALARM,
    Phase.REJECTED: ALARM,
}


STATE_LOOK = {
    IncidentState.OPEN: ALARM,
    IncidentState.UNSTABLE: WATCH,
    IncidentState.WATCHED: WATCH,
    IncidentState.RECOVERING: WATCH,
    IncidentState.RECOVERED: ACCENT,
}
"""Colours of the states of incidents; others are dimmed."""


def incident_line(run: RunView, incident: Incident, width: int) -> Content:
    """Return an incident as a line of `width` cells: `▲ 812  loss 1.4 → 9.1, 3 alarms   open`."""
    severity = incident.severity
    colour = SEVERITY_COLOUR.get(severity, DIM) if incident.active else DIM
    shape = SEVERITY_SHAPE.get(severity, "·")
    look = colour if incident.active else DIM
    left = assemble((f"{shape} {incident.first_step:>6,}  ", colour), (short(run, incident), look))
    state = incident.text if width >= 70 else incident.state.value
    return spread(left, assemble((state, STATE_LOOK.get(incident.state, DIM))), width)


def intervention_line(item: Intervention, width: int) -> Content:
    """Return a command as a line of `width` cells: `640  clip 0.5    applied from 641  ann`."""
    step = f"{item.step:>6,}" if item.step is not None else " " * 6
    left = assemble((f"{step}  ", DIM), item.text)
    colour = _PHASE_COLOUR[item.phase]
    who = item.issuer.split("@")[0] if width >= 50 else ""
    room = width - 9 - min(len(item.text), width // 4) - (len(who[:8]) + 2 if who else 0)
    outcome = fmt.clip_to(item.outcome(room), max(12, room))
    right: list[Piece] = [(outcome, colour) if colour else outcome]
    if who:
        right.append((f"  {fmt.clip_to(who, 8):>4}", DIM))
    return spread(left, assemble(*right), width)


def log_line(line: LogLine, width: int) -> Content:
    """Return a log line as `12:04:33  text` in the colour of its level, cut to `width` cells."""
    clock = fmt.clock(line.time)
    text = line.text.replace("\n", " ")
    colour = _LEVEL_COLOUR.get(line.level, "")
    body: Piece = (text, colour) if colour else text
    return assemble((f"{clock}  ", DIM), body).truncate(max(1, width), ellipsis=True)


class IncidentPanel(TextLine):
    """Shows the current incident as a card with cause and advice, then the newest others."""

    BORDER_TITLE = "incidents"

    def show(self, state: AppState) -> None:
        """Draw the current incident as a card, then the newest others."""
        width, height = self.content_size
        run, current = state.run, state.run.current_incident
        others = [incident for incident in reversed(run.incidents) if incident is not current]
        if current is None and not others:
            self.put(assemble(("none so far", DIM)))
            return
        card = [] if current is None else list(_card(state, current, width))[: max(1, height)]
        room = max(0, height - len(card)) if card else max(1, height)
        self.put(lines(*card, *(incident_line(run, one, width) for one in others[:room])))


def _card(state: AppState, incident: Incident, width: int) -> Iterator[Content]:
    """Yield the lines of the current incident: what, what to do, why, what was done."""
    yield incident_line(state.run, incident, width)
    if keys := _keys(incident, width, state):
        yield keys
    if why := cause(state.run, incident):
        yield assemble(" " * 10, (fmt.clip_to(why, max(10, width - 10)), DIM))
    if steps := [answer.line for answer in answers(incident)]:
        yield assemble(" " * 10, (fmt.clip_to(steps[-1], max(10, width - 10)), DIM))


def _keys(incident: Incident, width: int, state: AppState) -> Content | None:
    """Return what to do about an incident, with the keys that do it; None for nothing."""
    pieces: list[Piece] = []
    if incident.advice and not state.state.ended:
        if why_not(ACTION_OF["anomaly.recover"], state) is None:
            pieces.append((f"{key_of('anomaly.recover', state)} ", ACCENT))
        pieces.append(f"{fmt.clip_to(incident.advice[0].way.text, max(10, width - 24))}   ")
    if incident.main.event.report:
        pieces += [(f"{key_of('go.anomalies', state)} ", ACCENT), "report"]
    return assemble(" " * 10, *pieces) if pieces else None


class InterventionPanel(TextLine):
    """Shows the newest commands with their outcomes."""

    BORDER_TITLE = "interventions"

    def show(self, state: AppState) -> None:
        """Draw the newest commands with their outcomes."""
        width, height = self.content_size
        newest: Sequence[Intervention] = list(reversed(state.run.interventions.items))
        if not newest:
            hint = "none so far; {lr.change} changes the learning rate"
            hint = "none so far" if state.read_only else keyed(hint, state)
            self.put(assemble((hint, DIM)))
            return
        self.put(lines(*(intervention_line(item, width) for item in newest[: max(1, height)])))


class StatusLine(TextLine):
    """Shows the progress of a long operation, else the newest result or event while it is news."""

    def show(self, state: AppState, now: float) -> None:
        """Draw progress or news at `now` (Unix seconds)."""
        width = max(10, self.content_size.width)
        run = state.run
        if run.progress is not None:
            share = f" {run.progress.done / run.progress.total:.0%}" if run.progress.total else ""
            self.put(assemble(("… ", ACCENT), run.progress.label, (share, DIM)))
        elif (news := status_of(state, now)) is not None:
            self.put(status_line(state, news, width))
        else:
            self.put(Content(""))


def status_line(state: AppState, news: Status, width: int) -> Content:
    """Return news as `12:04:33  text` in the colour of its level, cut to `width` cells."""
    if not news.shown_by:
        return log_line(LogLine(news.time, news.level, news.text), width)
    more = assemble((f"  {key_of(news.shown_by, state)} ", ACCENT), ("all", DIM))
    line = log_line(LogLine(news.time, news.level, news.text), width - more.cell_length)
    return assemble(line, more)


class NewestEvent(TextLine):
    """Shows the most important event as one line, for small terminals.

    That is the running command, else the current incident, else the newest result or event while it
    is news, else the newest command.
    """

    def show(self, state: AppState, now: float) -> None:
        """Draw the most important event at `now` (Unix seconds)."""
        width = max(10, self.content_size.width)
        current = state.run.current_incident
        items = state.run.interventions.items
        if items and not items[-1].settled:
            self.put(intervention_line(items[-1], width))
        elif current is not None:
            self.put(incident_line(state.run, current, width))
        elif (news := status_of(state, now)) is not None:
            self.put(status_line(state, news, width))
        elif items:
            self.put(intervention_line(items[-1], width))
        else:
            self.put(assemble(("no open incident, and no intervention so far", DIM)))
