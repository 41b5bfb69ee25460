"""The panel before the first step: a checklist with seconds, facts, and something to try."""

from __future__ import annotations

from textual.content import Content

from fttui.engine.protocol.events import RunStarted

from ..actions import key_of
from ..text import format as fmt
from ..view_model.app_state import AppState
from ..view_model.connection_port import Link
from ..view_model.start.stages import StartStage, ahead
from .event_panels import log_line
from .text_line import ACCENT, BOLD, DIM, WATCH, TextLine, assemble, bar, lines, spread

_TIME, _LABEL, _MOST = 9, 38, 76
"""Columns of a duration, of a stage's name, and of a line of the checklist."""
FACTS = (
    "weights", "precision", "adapter", "attention", "memory", "fast mode", "train records",
    "eval records", "tokens per record", "tokenized data",
)  # fmt: skip
"""Facts of a start that are shown, in this order; the config and data screens have all of them."""


class StartPanel(TextLine):
    """The panel before the first step: what is loaded, what it is, and what to try meanwhile."""

    BORDER_TITLE = "starting"

    def show(self, state: AppState, now: float) -> None:
        """Draw the start as of `now` (Unix seconds), until the first step.

        From the top, as far as there is room: what is trained, the checklist, facts of model and
        data, what to try, the log.
        """
        width, height = max(20, self.content_size.width), max(1, self.content_size.height)
        here = now + state.link.clock_offset_s
        rows = [*run_lines(state), Content(""), *checklist(state, here, min(width, _MOST))]
        rows += _block(facts(state, width), height - len(rows))
        rows += _block(to_try(state, width), height - len(rows))
        room = height - len(rows) - 1
        newest = state.run.log[-room:] if room > 0 else ()
        rows += _block([log_line(line, width) for line in newest], room + 1)
        self.put(lines(*rows[:height]))


def _block(rows: list[Content], room: int) -> list[Content]:
    """Return as many rows as fit after an empty one; none if there is no room for two."""
    return [Content(""), *rows][:room] if rows and room > 2 else []


def run_lines(state: AppState) -> list[Content]:
    """Return what is trained, on what and for how long, as far as it is known."""
    started = state.run.started
    if started is None:
        connecting = state.link.link is Link.CONNECTING
        beat = state.link.beat
        words = "no data from the run yet" if connecting else "the engine is starting"
        if beat is not None and beat.last_seq > state.run.seq:
            words = "loading the history of the run"
        return [assemble((words, DIM))]
    size = f"{fmt.short_count(started.trainable_params)} of {fmt.short_count(started.total_params)}"
    params = f"   {size} parameters trainable" if started.total_params else ""
    devices = ", ".join(started.devices) or fmt.plural(started.world_size, "rank")
    plan = f"{fmt.count(started.total_steps)} steps of {started.micro_batch_size}"
    return [
        assemble((started.model, BOLD), (params, DIM)),
        assemble((f"{started.task} · {plan} × {started.accumulation} samples · {devices}", DIM)),
    ]


def checklist(state: AppState, now: float, width: int) -> list[Content]:
    """Return the stages of the start, one a line of `width` cells, as of `now` (Unix seconds).

    Those done have their seconds, the present one what is known of its progress; those ahead
    follow. The last line has the time of all.
    """
    stages = state.run.stages
    rows = [_stage(stage, now, width) for stage in stages]
    over = bool(stages) and stages[-1].until is not None
    if over and stages[-1].until is not None:
        rows.append(_stage(StartStage("preparing the next stage", stages[-1].until), now, width))
    rows += [assemble((f"· {name}", DIM)) for name in ahead(stages)]
    if stages:
        total = fmt.duration(max(0.0, now - stages[0].since))
        rows.append(spread(assemble(("  so far", DIM)), assemble((total, DIM)), width))
    return rows


def _stage(stage: StartStage, now: float, width: int) -> Content:
    took = f"{fmt.duration(stage.seconds(now)):>{_TIME}}"
    if stage.until is not None:
        return spread(assemble(("✓ ", ACCENT), stage.name), assemble((took, DIM)), width)
    label = fmt.clip_to(stage.name, _LABEL)
    pieces = [assemble(("▸ ", ACCENT), (f"{label:<{_LABEL}}", BOLD))]
    if stage.share is not None and width >= _MOST:
        share = f" {fmt.percent(stage.share, 0):>5}"
        pieces.append(assemble(bar(stage.share, width - _LABEL - _TIME - 10), share))
    return spread(assemble(*pieces), assemble(took), width)


def facts(state: AppState, width: int) -> list[Content]:
    """Return what the start has found out about model and data, findings in the data first."""
    started = state.run.started
    rows = [assemble(("△ ", WATCH), (found.line, WATCH)) for found in state.run.findings]
    if started is not None:
        rows += _packed([_fact(started, name) for name in FACTS if name in started.facts], width)
    return [row.truncate(width, ellipsis=True) for row in rows]


def _fact(started: RunStarted, name: str) -> tuple[str, str]:
    return name, started.facts[name]


def _packed(pairs: list[tuple[str, str]], width: int) -> list[Content]:
    """Return names and values, as many to a line as fit."""
    rows: list[Content] = []
    for name, value in pairs:
        item = assemble((f"{name} ", DIM), value)
        if rows and rows[-1].cell_length + 3 + item.cell_length <= width:
            rows[-1] = assemble(rows[-1], assemble((" · ", DIM)), item)
        else:
            rows.append(item)
    return rows


def to_try(state: AppState, width: int) -> list[Content]:
    """Return what to do while waiting and when the run trains, with the user's own keys."""
    tries = (
        ("while you wait", ("go.data", "go.config", "app.help", "app.commands"),
         ("records as the model sees them", "every key and its source", "keys", "actions by name")),
        ("when it trains", ("lr.change", "run.pause", "run.rollback", "app.detach"),
         ("x0.5 enter halves the rate", "pauses", "rolls back", "leaves; training continues")),
    )  # fmt: skip
    rows = []
    for when, ids, words in tries:
        row = assemble((f"{when}: ", DIM))
        for id_, word in zip(ids, words, strict=True):
            item = assemble((f"{key_of(id_, state)} ", ACCENT), f"{word}   ")
            if row.cell_length + item.cell_length - 3 <= width:
                row = assemble(row, item)
        rows.append(row)
    return rows
