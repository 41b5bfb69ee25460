"""Panels about the state of the run, the disk, the connection, and a terminal that is too small."""

from __future__ import annotations

import math
from shlex import quote

from textual.content import Content

from fttui.engine.protocol.states import RunState

from ..actions import key_of, keyed
from ..dialogs.command_text import name_of, recommended
from ..text import format as fmt
from ..text.glyphs import STATE_SHAPE
from ..view_model.app_state import AppState
from ..view_model.disk_warning import DiskWarning
from ..view_model.run_view import RunView
from .event_panels import log_line
from .text_line import ACCENT, ALARM, BOLD, DIM, WATCH, Piece, TextLine, assemble, lines

LOG_LINES = 6


class OutcomePanel(TextLine):
    """Shows why the run ended or halted, its result and what to do next.

    If the connection failed, it shows why the screen is no longer updated. While
    the run trains, it shows the warning about disk space, if there is one.
    """

    def show(self, state: AppState) -> None:
        """Draw the panel; it is hidden while the run trains without a problem."""
        shown, trouble = state.state, state.trouble
        over = (shown.ended or shown is RunState.HALTED) and not state.connecting
        self.display = over or bool(state.fault) or trouble is not None
        if state.fault:
            self._put("connection", _fault(state), alarming=True)
        elif over:
            alarming = shown in {
                RunState.FAILED,
                RunState.UNSAVED,
                RunState.LOST,
                RunState.HALTED,
            }
            self._put(f"{STATE_SHAPE[shown]} {shown.value}", _ROWS[shown](state), alarming=alarming)
        elif trouble is not None:
            self._put(trouble.short, _trouble(trouble, state), alarming=trouble.full)

    def _put(self, title: str, rows: list[Content], *, alarming: bool) -> None:
        self.set_class(alarming, "-alarm")
        self.border_title = title
        self.put(lines(*rows))


def _trouble(trouble: DiskWarning, state: AppState) -> list[Content]:
    colour = ALARM if trouble.full else WATCH
    return [assemble((trouble.words, colour)), assemble((keyed(trouble.advice, state), DIM))]


def _fault(state: AppState) -> list[Content]:
    return [
        assemble((state.fault, ALARM)),
        assemble(
            "The screen is no longer updated. ",
            (keyed("Leave with {app.detach} and attach again.", state), DIM),
        ),
    ]


def _resume_hint(state: AppState) -> Content:
    if state.run.started is not None and state.run.started.script:
        script = state.run.started.script
        return assemble("start its script again for a new run: ", (script, f"{BOLD} {ACCENT}"))
    ended = state.run.ended
    newest = state.run.checkpoints[-1] if state.run.checkpoints else None
    name = (ended.checkpoint if ended else None) or (newest.name if newest else None)
    known = next((c for c in state.run.checkpoints if c.name == name), None)
    start = f" (from step {fmt.count(known.step)})" if known else ""
    if name is None:
        start = " (from step 0: there is no checkpoint)"
    command = f"fttui run --resume {quote(state.run_id)}"
    return assemble("resume with: ", (command, f"{BOLD} {ACCENT}"), (start, DIM))


def _log_end(state: AppState) -> list[Content]:
    """Return the newest log lines, from the engine's log file if the heartbeat has its end."""
    beat = state.link.beat
    if beat is not None and beat.engine_log_tail:
        return [assemble((text, DIM)) for text in beat.engine_log_tail[-LOG_LINES:]]
    return [log_line(line, 200) for line in state.run.log[-LOG_LINES:]]


def _failed(state: AppState) -> list[Content]:
    ended = state.run.ended
    error = (
        ended.error if ended else ""
    ) or "no error was recorded; see logs/engine.log in the run folder"
    head: Piece = (error, ALARM)
    return [assemble(head), *_log_end(state), _resume_hint(state)]


def _lost(state: AppState) -> list[Content]:
    beat = state.link.beat
    if beat is not None and state.run.seq < beat.last_seq:
        return [assemble(("The engine process is gone; loading the rest of its journal", ALARM))]
    step = fmt.count(state.run.step)
    words = f"The engine exited without recording how the run ended; its last step was {step}."
    return [assemble((words, ALARM)), *_log_end(state), _resume_hint(state)]


def _halted(state: AppState) -> list[Content]:
    why = state.run.detail or "the guard halted training"
    advised = recommended(state.run.current_incident)
    choices = (
        ("run.rollback", "roll back"),
        *([("anomaly.recover", f"{name_of(advised)} (recommended)")] if advised else ()),
        ("run.pause", "resume anyway"),
        ("run.stop", "stop"),
    )
    keys: list[Piece] = []
    for id_, words in choices:
        keys += [(f"{key_of(id_, state)} ", ACCENT), f"{words}   "]
    held = f"{why[:1].upper()}{why[1:]}. The model stays loaded."
    return [assemble((held, WATCH)), assemble(*keys)]


def _stopped(state: AppState) -> list[Content]:
    return [*_summary(state.run), *_damage(state), _resume_hint(state)]


def _damage(state: AppState) -> list[Content]:
    """Return a line on how much of the journal is damaged, since the curves lack that part.

    There is none without damage.
    """
    beat = state.link.beat
    if beat is None or not beat.damaged_bytes:
        return []
    size = f"{beat.damaged_bytes:,} bytes"
    text = f"{size} of the journal are damaged and left out; a resume moves them to a new file"
    return [assemble((text, WATCH))]


def _summary(run: RunView) -> list[Content]:
    took = fmt.duration(run.time - run.started_at) if run.time and run.started_at else "–"
    pieces: list[Piece] = [(fmt.plural(run.step, "step"), BOLD), f" in {took}"]
    losses = _loss_ends(run)
    if losses:
        pieces.append(f"   loss {fmt.number(losses[0])} → {fmt.number(losses[1])}")
    evaluated = run.live_value("eval.loss")
    if evaluated is not None:
        pieces.append(f"   eval loss {fmt.number(evaluated)}")
    if run.tokens_seen:
        pieces.append(f"   {fmt.short_count(run.tokens_seen)} tokens")
    kept = f"{fmt.plural(len(run.checkpoints), 'checkpoint')} kept"
    alarms = fmt.plural(len(run.incidents), "incident")
    changes = fmt.plural(len(run.interventions), "intervention")
    return [assemble(*pieces), assemble((f"{kept} · {alarms} · {changes}", DIM))]


def _loss_ends(run: RunView) -> tuple[float, float] | None:
    """Return the mean loss of the first and of the last five steps; None without steps.

    Non-finite losses are left out of the mean, which is NaN if all five are.
    """
    first = next((b.curves.get("loss") for b in run.branches if b.curves.get("loss")), None)
    newest = run.branch.curves.get("loss") or first
    if not first or not newest:
        return None
    ends = []
    for values in (first.head(5), newest.tail(5)):
        finite = [v for v in values if math.isfinite(v)]
        ends.append(sum(finite) / len(finite) if finite else math.nan)
    return ends[0], ends[1]


_ROWS = {
    RunState.FAILED: _failed,
    RunState.UNSAVED: _failed,
    RunState.LOST: _lost,
    RunState.HALTED: _halted,
    RunState.FINISHED: lambda state: _summary(state.run),
    RunState.STOPPED: _stopped,
}


class TooSmall(TextLine):
    """Replaces the whole screen in a terminal that is too small."""

    def show(self, state: AppState, width: int, height: int) -> None:
        """Show the size of the terminal and the size needed."""
        rows = [
            assemble(("too small", BOLD)),
            assemble(f"this terminal: {width}×{height}"),
            assemble(f"needed: {MIN_WIDTH}×{MIN_HEIGHT}"),
            assemble((keyed("training continues · {app.detach} detaches", state), DIM)),
        ]
        self.put(lines(*rows))


MIN_WIDTH, MIN_HEIGHT = 60, 16
