"""The system screen: memory plan, GPU readings, ranks, connection, usage, profile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content

from fttui.engine.protocol.events import StepFinished
from fttui.engine.protocol.thresholds import SLOW_STEP_RATIO

from ...actions import bindings, key_of
from ...dialogs.profile_text import profile_lines
from ...dialogs.rank_text import slow_words
from ...dialogs.usage_text import UsageRow, usage_rows
from ...plot.panels import memory_now
from ...plot.system_panels import SYSTEM, UNMEASURED_HIDDEN, measured, memory_plan
from ...styles.colours import STACK
from ...text import format as fmt
from ...view_model.app_state import AppState
from ...view_model.ranks.standing import Standing, standings
from ...widgets.plot import Plot
from ...widgets.text_line import ACCENT, DIM, WATCH, Piece, TextLine, assemble, lines
from .plot_screen import PlotScreen

BLOCKS = "█▓▒░▚▞▀▄"
"""One sign per term of the memory plan, so that the terms differ in a terminal without colour."""
FILLED = "█" * len(BLOCKS)
FAR_LARGER = 3
"""The bar shows the plan within the device's memory, unless that is this many times as large."""
BESIDE_BAR = 50
"""Cells of a line of the profile that are not its bar: frame, name, share and two times."""


class SystemScreen(PlotScreen):
    """Plots of the system's readings; below them memory plan, ranks, connection, usage, profile."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("plots")]
    AUTO_FOCUS = ""

    def compose_body(self) -> ComposeResult:
        """Compose the grid of plots and the panels of text."""
        with VerticalScroll(id="grid", can_focus=False):
            for panel in SYSTEM:
                yield Plot(panel)
        with Horizontal(id="facts"):
            yield TextLine(id="plan", classes="panel")
            yield TextLine(id="ranks", classes="panel")
            yield TextLine(id="link", classes="panel")
        yield TextLine(id="usage", classes="panel")
        yield TextLine(id="profile", classes="panel")

    def show_body(self, state: AppState, now: float) -> None:
        """Draw the plots in view and the panels."""
        for plot in self.plots():
            plot.display = plot.panel.id not in UNMEASURED_HIDDEN or measured(plot.panel, state)
            plot.offer(state)
        colourless = self.app.no_color or self.fttui.ascii_only
        for name, title, rows in (
            (
                "#plan",
                "memory plan per rank",
                _plan(state, self.app.size.width // 3 - 4, BLOCKS if colourless else FILLED),
            ),
            ("#ranks", "ranks", _ranks(state)),
            ("#link", "connection", _connection(state, now)),
        ):
            line = self.query_one(name, TextLine)
            line.border_title = title
            line.put(lines(*rows))
        self._show_usage(state)
        self._show_profile(state)

    def _show_usage(self, state: AppState) -> None:
        line, rows = self.query_one("#usage", TextLine), list(usage_rows(state.run))
        line.border_title = "usage over all starts of the run"
        line.display = state.run.started is not None
        compact = self.has_class("-short") or state.run.profile is not None
        line.set_class(compact, "-compact")
        if compact:
            line.put(assemble(*_joined(rows)))
            return
        looks = [assemble((f"{r.name:<14}", DIM), (r.text, WATCH if r.warns else "")) for r in rows]
        line.put(lines(*looks))

    def _show_profile(self, state: AppState) -> None:
        found, line = state.run.profile, self.query_one("#profile", TextLine)
        line.display = found is not None
        if found is not None:
            line.border_title = f"profile at step {state.run.profiled_at:,}"
            room = max(10, self.app.size.width - BESIDE_BAR)
            line.put(lines(*(assemble(text) for text in profile_lines(found, bar_cells=room))))


def _joined(rows: list[UsageRow]) -> Iterator[Piece]:
    """Yield the pieces of all rows of the usage as one line, the limits of the budget first."""
    for number, row in enumerate(sorted(rows, key=lambda row: "." not in row.name)):
        yield (f"{'   ' if number else ''}{row.name} ", DIM)
        yield (row.text.replace("   ", ", "), WATCH if row.warns else "")


def _plan(state: AppState, width: int, signs: str) -> list[Content]:
    terms = memory_plan(state)
    if not terms:
        return [assemble(("no memory plan available", DIM))]
    total = sum(size for _, size in terms)
    now = memory_now(state.run)
    shown = f"planned {fmt.size(total)}"
    if now is not None:
        shown = f"{fmt.size_of(now[0], total)} planned ({fmt.percent(now[0] / total, 0)})"
    device = now[1] if now and now[1] else total
    whole = max(total, device) if device <= FAR_LARGER * total else total
    cells = max(10, width)
    pieces: list[Piece] = []
    free = cells
    for number, (sign, (_, size)) in enumerate(zip(signs, terms, strict=False)):
        length = min(free, round(cells * size / whole))
        pieces.append((sign * length, _stack(number)))
        free -= length
    if whole > total:
        pieces.append(("─" * free, DIM))
    rows = [assemble(shown), assemble(*pieces)]
    for number, (sign, (name, size)) in enumerate(zip(signs, terms, strict=False)):
        rows.append(assemble((f"{sign} ", _stack(number)), f"{fmt.size(size):>9}  ", (name, DIM)))
    return rows


def _stack(number: int) -> str:
    return f"$stack-{number % STACK}"


SHOWN_IN_ORDER = 4
"""Up to so many ranks fit into the panel; more come slowest first, and have a screen."""


def _ranks(state: AppState) -> list[Content]:
    """Return the rows of the panel of ranks: of many, which are slow and where all are shown."""
    ranks = standings(state.run) or (Standing(0),)
    median = sorted(one.seconds or 0.0 for one in ranks)[len(ranks) // 2]
    rows: list[Content] = []
    if len(ranks) > SHOWN_IN_ORDER:
        ranks = tuple(sorted(ranks, key=lambda one: (-one.behind, one.rank)))
        key = key_of("go.ranks", state)
        rows.append(assemble((f"{len(ranks)} ranks, slowest first; {key} shows all", DIM)))
        rows += [assemble((f"△ {words}", WATCH)) for words in slow_words(ranks)]
    alone = len(ranks) < 2
    for one in ranks:
        rows += _rank(_of_device(one, state.run.last) if alone else one, median)
    return [*rows, assemble(("single rank", DIM))] if alone else rows


def _rank(one: Standing, median: float) -> list[Content]:
    pieces: list[Piece] = [(f"{one.rank:>3}  ", ACCENT)]
    slow = one.seconds is not None and one.seconds > SLOW_STEP_RATIO * median
    if one.seconds is not None:
        pieces.append((f"{fmt.duration(one.seconds):>7}  ", WATCH if slow else ""))
    if one.mem_bytes is not None:
        pieces.append(f"{fmt.size(one.mem_bytes):>9}  ")
    readings = ((one.util, "%"), (one.temp_c, "°C"), (one.power_w, "W"))
    pieces += [f"{value:.0f} {unit}  " for value, unit in readings if value is not None]
    mark = ("△ slow in this step  ", WATCH) if slow else ""
    device = (one.device or "device not known yet", DIM)
    return [assemble(*pieces), assemble("     ", mark, device)]


def _of_device(one: Standing, last: StepFinished | None) -> Standing:
    """Return a single rank with the readings of the step, which has no lists by rank."""
    if last is None:
        return one
    return replace(one, util=last.gpu_util, temp_c=last.gpu_temp_c, power_w=last.gpu_power_w)


def _connection(state: AppState, now: float) -> list[Content]:
    """Return the rows about the state and the delays of the viewer's connection to the run."""
    link, run = state.link, state.run
    behind = None if run.time is None else max(0.0, now + link.clock_offset_s - run.time)
    commands = [item for item in run.interventions if item.seconds is not None]
    rows = [
        ("last received", f"{fmt.age(link.age_s(now))} ago, {link.link.value}"),
        ("newest record", f"{run.seq:,}, {fmt.age(behind)} old"),
        ("records refetched", f"{fmt.plural(link.refills, 'time')}"),
        ("unknown records", f"{run.unknown:,}"),
        ("hub answered in", fmt.duration(link.answer_s)),
        ("last command took", fmt.duration(commands[-1].seconds) if commands else "–"),
        ("control", state.controller or "nobody"),
    ]
    return [assemble((f"{name:<18}", DIM), text) for name, text in rows]
