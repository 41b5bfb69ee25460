"""The page of a measurement of benchmarks: its progress, then its results."""

from __future__ import annotations

import asyncio

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.css.query import NoMatches

from ..connection.race.race_process import BENCH_LOG, StartedBench, last_words
from ..dialogs.bench_prompt import bench_lines
from ..view_model.app_state import AppState
from ..widgets.text_line import TextLine, lines, plain
from .base import RunScreen

LOOK_S = 1.0
"""Seconds between two looks at the output of the process."""
LINES = 200
"""Lines of that output which are read; most of them are about progress, and only one is shown."""


class BenchPage(RunScreen):
    """Follows a process that measures benchmarks; it continues when the page is closed."""

    AUTO_FOCUS = "#text"
    MODE = "page"

    def __init__(self, started: StartedBench) -> None:
        """Show the output of a process that measures benchmarks of a run."""
        super().__init__()
        self._run = started.run
        self._started = started
        self._said: list[str] = []
        self._runs = True

    def compose_body(self) -> ComposeResult:
        """Compose the text of the page."""
        page = VerticalScroll(id="text", can_focus=True)
        page.border_title = "benchmarks"
        page.border_subtitle = "esc: back, the measurement continues"
        with page:
            yield TextLine(id="bench")

    def on_mount(self) -> None:
        """Begin to follow the process."""
        self.run_worker(self._look(), group="bench", exclusive=True)
        self.set_interval(LOOK_S, self._look)

    async def _look(self) -> None:
        self._runs = await asyncio.to_thread(lambda: self._started.runs)
        self._said = await asyncio.to_thread(last_words, self._run, BENCH_LOG, LINES)
        if not self._runs:
            self.query_one("#text").border_subtitle = "esc: back"
        self.fttui.redraw()

    def text_to_copy(self) -> str:
        """Return the text of the page."""
        return "\n".join(self._lines(self.fttui.state))

    def _lines(self, state: AppState) -> list[str]:
        started = self._started
        results = state.run.benchmarks[started.earlier :]
        code = None if self._runs else started.exit_code
        return list(bench_lines(started.command, self._runs, code, self._said, results))

    def show_body(self, state: AppState, now: float) -> None:
        """Draw the current state of the measurement."""
        try:
            text = self.query_one("#bench", TextLine)
        except NoMatches:
            return
        text.put(lines(*(plain(row) for row in self._lines(state))))
