"""Panels and lines of events: anomalies, interventions, log, and the newest of them."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from ..actions import key_of, keyed
from ..text import format as fmt
from ..text.glyphs import SEVERITY_COLOUR, SEVERITY_SHAPE
from ..view_model.app_state import AppState
from ..view_model.interventions import Intervention, Phase
from ..view_model.run_view import Anomaly, LogLine
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


def anomaly_line(anomaly: Anomaly, width: int) -> Content:
    """Return an anomaly as a line of `width` cells: `▲ 812  loss spike ×6.5     not recovered`."""
    event = anomaly.event
    colour = SEVERITY_COLOUR.get(event.severity, DIM)
    shape = SEVERITY_SHAPE.get(event.severity, "·")
    look = colour if anomaly.open else DIM
    left = assemble((f"{shape} {anomaly.step:>6,}  ", colour), (event.headline, look))
    verdict = anomaly.verdict or "open"
    return spread(left, assemble((verdict, DIM if anomaly.verdict else colour)), width)


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


class AnomalyPanel(TextLine):
    """Shows the newest anomalies, and below the current one the keys of its advice and report."""

    BORDER_TITLE = "anomalies"

    def show(self, state: AppState) -> None:
        """Draw the newest anomalies of the run."""
        width, height = self.content_size
        newest = list(reversed(state.run.anomalies))
        if not newest:
            self.put(assemble(("none so far", DIM)))
            return
        current = state.run.current_anomaly
        rows = max(1, height - (1 if current else 0))
        shown: list[Content] = []
        for anomaly in newest[:rows]:
            shown.append(anomaly_line(anomaly, width))
            if anomaly is current and height > 1:
                shown.append(_keys(current, width, state))
        self.put(lines(*shown))


def _keys(anomaly: Anomaly, width: int, state: AppState) -> Content:
    pieces: list[Piece] = []
    if anomaly.event.ways:
        room = max(10, width - 24)
        key = key_of("anomaly.recover", state)
        pieces += [(f"{key} ", ACCENT), f"{fmt.clip_to(anomaly.event.ways[0].text, room)}   "]
    if anomaly.event.report:
        pieces += [(f"{key_of('go.anomalies', state)} ", ACCENT), "report"]
    return assemble(" " * 10, *pieces)


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


class LogTail(TextLine):
    """Shows the newest log line, or the progress of a long operation."""

    def show(self, state: AppState) -> None:
        """Draw the newest log line or the progress of an operation."""
        width = max(10, self.content_size.width)
        run = state.run
        if run.progress is not None:
            share = f" {run.progress.done / run.progress.total:.0%}" if run.progress.total else ""
            self.put(assemble(("… ", ACCENT), run.progress.label, (share, DIM)))
        elif run.log:
            self.put(log_line(run.log[-1], width))
        else:
            self.put(Content(""))


class NewestEvent(TextLine):
    """Shows the most important event as one line, for small terminals.

    That is the running command, else the open anomaly, else the newest command, else the newest log
    line.
    """

    def show(self, state: AppState) -> None:
        """Draw the running command, else the open anomaly, else the newest command or log line."""
        width = max(10, self.content_size.width)
        current = state.run.current_anomaly
        items = state.run.interventions.items
        if items and (not items[-1].settled or current is None):
            self.put(intervention_line(items[-1], width))
        elif current is not None:
            self.put(anomaly_line(current, width))
        elif state.run.log:
            self.put(log_line(state.run.log[-1], width))
        else:
            self.put(assemble(("no anomaly and no intervention so far", DIM)))
