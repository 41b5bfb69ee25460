"""The header: run name, state and progress on the left, connection and control on the right."""

from __future__ import annotations

from textual.content import Content

from ..text import format as fmt
from ..view_model.app_state import AppState
from ..view_model.connection_port import Link
from .text_line import ALARM, BOLD, DIM, WATCH, Piece, TextLine, assemble, lines, spread, state_text

ONE_LINE = 118
"""Least number of columns for a header of one line."""


class RunHeader(TextLine):
    """Shows the header in one line, or in two lines in narrow terminals."""

    def show(self, state: AppState, now: float) -> None:
        """Draw the state as of `now` (Unix seconds)."""
        width = max(20, self.app.size.width - 2)
        if width >= ONE_LINE - 2:
            right = Content("  ").join([link_text(state, now), control_text(state)])
            room = width - right.cell_length - 2 - _name(state).cell_length - 3
            left = Content("   ").join([_name(state), _fitting(state, room)])
            self.put(spread(left, right, width))
        else:
            top = spread(_name(state), link_text(state, now), width)
            right = control_text(state)
            left = _fitting(state, width - right.cell_length - 2)
            self.put(lines(top, spread(left, right, width)))


def _name(state: AppState) -> Content:
    pieces: list[Piece] = [("fttui  ", DIM), (state.name, BOLD)]
    if state.run.timeline > 1:
        pieces.append((f" ▸ timeline {state.run.timeline}", DIM))
    return assemble(*pieces)


def _fitting(state: AppState, room: int) -> Content:
    """Return the progress, without the epoch if it would not fit."""
    full = _progress(state, brief=False)
    return full if full.cell_length <= room else _progress(state, brief=True)


def _progress(state: AppState, *, brief: bool) -> Content:
    run = state.run
    now_is = assemble(("◌ CONNECTING", DIM)) if state.connecting else state_text(state.state)
    pieces: list[Piece | Content] = [now_is]
    if run.total_steps:
        total = fmt.count(run.total_steps)
        step = fmt.count(run.step).rjust(len(total))
        pieces.append((f"  {step} / {total}", BOLD))
        pieces.append(f" {fmt.percent(run.step / run.total_steps):>7}")
    if run.last and not brief:
        pieces.append(f"  epoch {run.last.epoch:.2f}")
    if run.last and not state.state.ended and run.step < run.total_steps:
        pieces.append(f"  ETA {fmt.duration(run.eta_s)}")
    elif run.started_at and run.time and state.state.ended:
        pieces.append((f"  after {fmt.duration(run.time - run.started_at)}", DIM))
    return assemble(*pieces)


def link_text(state: AppState, now: float) -> Content:
    """Return the text about the connection.

    That is the first of these that applies: the disk is full, the run makes no steps, the history
    is being loaded, the state of the connection.
    """
    link, age = state.link, fmt.age(state.link.age_s(now))
    trouble = state.trouble
    if trouble is not None and trouble.full and link.link is Link.LIVE:
        return assemble((f"▲ {trouble.short}", ALARM), (f"  live {age}", DIM))
    stalled = state.stalled_s(now)
    if stalled is not None:
        return assemble((f"△ no step for {fmt.age(stalled)}", WATCH), (f"  live {age}", DIM))
    if link.catching_up:
        share = fmt.percent(link.read_seq / link.head_seq, 0)
        preview = "preview · " if state.reading is not None else ""
        return assemble((f"{preview}loading history {share}", DIM))
    text, colour = _LINK_WORDS[link.link]
    return assemble((text.format(age=age), colour))


_LINK_WORDS = {
    Link.CONNECTING: ("connecting…", DIM),
    Link.LIVE: ("live {age}", "$success"),
    Link.STALE: ("△ nothing received for {age}", WATCH),
    Link.LOST: ("▲ connection lost {age} ago, reconnecting", ALARM),
    Link.ENDED: ("read from disk", DIM),
}


def control_text(state: AppState) -> Content:
    """Return who has control of the run, or `read-only` for a viewer that sends no commands.

    The text is empty if the run has ended or nothing is known yet.
    """
    if state.read_only:
        return assemble(("read-only", DIM))
    if state.state.ended or state.link.beat is None:
        return Content("")
    if state.controls:
        return assemble("you control")
    if state.controller:
        return assemble((f"{state.controller} controls", WATCH))
    return assemble(("nobody controls", DIM))
