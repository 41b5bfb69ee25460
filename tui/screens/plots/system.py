"""The system screen: memory plan, GPU readings, ranks, connection, usage, profile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content

from fttui.engine.protocol.events import StepFinished
from fttui.engine.protocol.thresholds import SLOW_STEP_RATIO

from ...actions import bindings
from ...dialogs.profile_text import profile_lines
from ...dialogs.usage_text import UsageRow, usage_rows
from ...plot.panels import memory_now
from ...plot.system_panels import SYSTEM, UNMEASURED_HIDDEN, measured, memory_plan
from ...styles.colours import STACK
from ...text import format as fmt
from ...view_model.app_state import AppState
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


def _ranks(state: AppState) -> list[Content]:
    started, last = state.run.started, state.run.last
    devices = list(started.devices) if started else []
    times = list(last.rank_s) if last else []
    memory = list(last.rank_mem_bytes) if last else []
    rows = []
    median = sorted(times)[len(times) // 2] if times else 0.0
    readings = _readings(last)
    for rank in range(max(len(devices), len(times), 1)):
        device = devices[rank] if rank < len(devices) else "device not known yet"
        pieces: list[Piece] = [(f"{rank:>3}  ", ACCENT)]
        slow = rank < len(times) and times[rank] > SLOW_STEP_RATIO * median
        if rank < len(times):
            text = f"{fmt.duration(times[rank]):>7}  "
            pieces.append((text, WATCH) if slow else text)
        if rank < len(memory):
            pieces.append(f"{fmt.size(memory[rank]):>9}  ")
        pieces += [
            f"{values[rank]:.0f} {unit}  " for values, unit in readings if rank < len(values)
        ]
        mark = ("△ slow in this step  ", WATCH) if slow else ""
        rows += [assemble(*pieces), assemble("     ", mark, (device, DIM))]
    if len(times) < 2:
        rows.append(assemble(("single rank", DIM)))
    return rows


def _readings(last: StepFinished | None) -> list[tuple[list[float], str]]:
    """Return utilisation, temperature and power, each as one value per rank with its unit."""
    if last is None:
        return []
    by_rank = [last.rank_util, last.rank_temp_c, last.rank_power_w]
    if len(last.rank_s) < 2:
        own = (last.gpu_util, last.gpu_temp_c, last.gpu_power_w)
        by_rank = [[] if value is None else [value] for value in own]
    return list(zip(by_rank, ("%", "°C", "W"), strict=True))


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
