"""The header: run name, state and progress on the left, connection and control on the right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.content import Content

from fttui.engine.protocol.usage.cost import WARN_AT

from ..actions import key_of
from ..dialogs.usage_text import nearest_limit
from ..text import format as fmt
from ..text.usage import energy_and_money
from ..view_model.app_state import AppState
from ..view_model.connection_port import Link
from .text_line import ALARM, BOLD, DIM, WATCH, Piece, TextLine, assemble, lines, spread, state_text

ONE_LINE = 118
"""Least number of columns for a header of one line."""
SHORT_NAME = 24
"""Characters that the name of a run keeps where there is no room for every part."""


@dataclass(frozen=True)
class Part:
    """A part of the header."""

    content: Content
    rank: int = 0
    """If there is no room for all parts, those of the highest rank are dropped first; 0 is always
    kept."""
    short: Content | None = None
    """A shorter form, which replaces the content before any part is dropped."""


class RunHeader(TextLine):
    """Shows the header in one line, or in two lines in narrow terminals."""

    def show(self, state: AppState, now: float) -> None:
        """Draw the state as of `now` (Unix seconds)."""
        width = max(20, self.app.size.width - 2)
        if width >= ONE_LINE - 2:
            right = Content("  ").join([link_text(state, now), control_text(state)])
            left = fitting(
                [*name_parts(state), *progress_parts(state, now)], width - right.cell_length - 2
            )
            self.put(spread(left, right, width))
            return
        link, control = link_text(state, now), control_text(state)
        above = fitting([*name_parts(state), *_best(state)], width - link.cell_length - 2)
        progress = [part for part in progress_parts(state, now) if part not in _best(state)]
        if fitting(progress, 0).cell_length + control.cell_length + 2 > width:
            control = control_text(state, brief=True)
        below = fitting(progress, width - control.cell_length - 2)
        self.put(lines(spread(above, link, width), spread(below, control, width)))


def fitting(parts: Sequence[Part], room: int) -> Content:
    """Return the parts in their order, without those for which there is no room of `room` cells.

    Parts of rank 0 stay even then. Before a part goes, all take their short forms.
    """
    text = Content("  ").join([part.content for part in parts])
    if text.cell_length <= room:
        return text
    left = list(parts)
    while True:
        text = Content("  ").join([part.short or part.content for part in left])
        last = max(left, key=lambda part: part.rank, default=None)
        if text.cell_length <= room or last is None or last.rank == 0:
            return text
        left.remove(last)


def name_parts(state: AppState) -> list[Part]:
    """Return the name of the run and its timeline, its task and its model."""
    more: list[Piece] = []
    if state.run.timeline > 1:
        more.append((f" ▸ timeline {state.run.timeline}", DIM))
    short = fmt.clip_middle(state.name, SHORT_NAME)
    named = (assemble((name, BOLD), *more) for name in (state.name, short))
    parts = [Part(content=next(named), short=next(named))]
    started = state.run.started
    if started is not None:
        model = started.model.rstrip("/").rpartition("/")[2]
        parts.append(Part(assemble((" · ".join(filter(None, (started.task, model))), DIM)), 5))
    return parts


def _best(state: AppState) -> list[Part]:
    best = state.run.best_eval_loss
    if best is None:
        return []
    return [Part(assemble((f"best eval {fmt.number(best)}", "$plot-eval")), 3)]


def progress_parts(state: AppState, now: float) -> list[Part]:
    """Return state, steps, epoch, times and the best evaluation as of `now` (Unix seconds)."""
    run = state.run
    now_is = assemble(("◌ CONNECTING", DIM)) if state.connecting else state_text(state.state)
    parts = [Part(now_is)]
    if run.total_steps:
        total = fmt.count(run.total_steps)
        step = fmt.count(run.step).rjust(len(total))
        share = f" {fmt.percent(run.step / run.total_steps):>6}"
        parts.append(Part(assemble((f"{step} / {total}", BOLD), share)))
    if run.last:
        parts.append(Part(assemble(f"epoch {run.last.epoch:.2f}"), 6))
    return [*parts, *_times(state, now), *_used(state), *_best(state)]


def _used(state: AppState) -> list[Part]:
    """Return known energy and money so far, and a budget that is nearly used up."""
    run = state.run
    known = energy_and_money(run.used, run.tally.price)
    parts = [Part(assemble((", ".join(known), DIM)), 7)] if known else []
    limit = nearest_limit(run)
    if limit is not None and limit.share >= WARN_AT:
        parts.append(Part(assemble((f"△ {limit.words}", WATCH)), 1))
    return parts


def _times(state: AppState, now: float) -> list[Part]:
    """Return how long the run has taken, and while it trains, how long it will take."""
    run = state.run
    if not run.started_at or not run.time:
        return []
    if state.state.ended:
        return [Part(assemble((f"after {fmt.duration(run.time - run.started_at)}", DIM)))]
    elapsed = now + state.link.clock_offset_s - run.started_at
    parts = [Part(assemble((f"elapsed {fmt.duration(elapsed)}", DIM)), 4)]
    if run.last and not state.state.held and run.step < run.total_steps:
        parts.append(Part(assemble(f"ETA {fmt.duration(run.eta_s)}")))
    return parts


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


def control_text(state: AppState, *, brief: bool = False) -> Content:
    """Return who has control of the run, or `read-only` for a viewer that sends no commands.

    If nobody has control, it names the key that takes it; that nobody has control is said only if
    there are several viewers, and not in the brief form. The text is empty if the run has ended or
    nothing is known yet.
    """
    if state.read_only:
        return assemble(("read-only", DIM))
    if state.state.ended or state.link.beat is None:
        return Content("")
    if state.controls:
        return assemble("you control")
    if state.controller:
        return assemble((f"{state.controller} controls", WATCH))
    shared = "nobody controls · " if state.link.beat.viewers > 1 and not brief else ""
    return assemble((f"{shared}{key_of('control.toggle', state)} takes control", DIM))
