"""The screen of generated samples; enter shows one in full."""

from __future__ import annotations

from ...text import format as fmt
from ...view_model.app_state import AppState
from ...widgets.table import TableRow, cell, one_line
from ...widgets.text_line import DIM
from ..text_page import TextPage
from .table_screen import TableScreen


class SamplesScreen(TableScreen):
    """The table of generated samples; enter shows one in full."""

    COLUMNS = ("step", "prompt", "text")
    NARROW = ("step", "prompt")
    FLEXIBLE = "prompt"
    NAME = "samples"
    DETAIL = "sample"
    EMPTY = "No sample so far; {run.sample} generates one with the current weights."

    def rows(self, state: AppState, now: float) -> list[TableRow]:
        """Return one row per sample, newest first."""
        return [
            TableRow(
                str(index),
                (
                    cell(f"{s.step:>7,}"),
                    cell(fmt.clip_to(one_line(s.prompt), 40), DIM),
                    cell(one_line(s.text)),
                ),
                below=cell(one_line(s.text)),
            )
            for index, s in reversed(list(enumerate(state.run.samples)))
        ]

    def chosen(self, key: str) -> None:
        """Show the sample with this index in full; nothing happens if it is gone meanwhile."""
        samples = self.fttui.state.run.samples
        if int(key) >= len(samples):
            return
        sample = samples[int(key)]
        text = f"{sample.prompt}\n\n{sample.text}"
        self.fttui.push_screen(TextPage(f"sample at step {sample.step:,}", text))
