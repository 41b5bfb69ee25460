"""The base of all screens made of plots: focus, maximising and the colours of curves."""

from __future__ import annotations

from typing import ClassVar

from ...widgets.plot import Plot
from ..base import RunScreen


class PlotScreen(RunScreen):
    """A screen of plots that share window, cursor and scale, and so their looks.

    | Component class | What |
    | :- | :- |
    | `plot--raw`, `--ema`, `--live`, `--eval`, `--clip`, `--old`, `--band`, `--limit` | curves |
    | `plot--run1` … `plot--run4` | curves of compared runs |
    | `plot--axis`, `--mark`, `--alarm`, `--cursor` | around and over them |
    """

    # Held here, not by each plot: looking up sixteen styles is most of what a plot would cost.
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"plot--{look}" for look in Plot.LOOKS}

    def plots(self) -> list[Plot]:
        """The plots in reading order."""
        return list(self.query(Plot))

    @property
    def canvas_columns(self) -> int:
        """Columns of the focused plot, for cursor steps."""
        return self.chosen_plot().columns if self.plots() else 1

    def chosen_plot(self) -> Plot:
        """The focused plot, else the first."""
        return self.focused if isinstance(self.focused, Plot) else self.plots()[0]

    def on_plot_pointed(self, message: Plot.Pointed) -> None:
        """A click on a plot puts the cursor there on all of them."""
        state = self.fttui.state
        self.fttui.look(state.plot.at(message.step, state.run.step))

    def choose(self, offset: int) -> None:
        """Focus the next or previous plot."""
        shown = [plot for plot in self.plots() if plot.display]
        if not shown:
            return
        if self.has_class("-maximised"):
            shown = self.plots()
        focused = self.focused
        at = shown.index(focused) if isinstance(focused, Plot) and focused in shown else -offset
        chosen = shown[(at + offset) % len(shown)]
        if self.has_class("-maximised"):
            self.maximise_plot(chosen)
        chosen.focus()

    def toggle_maximised(self) -> None:
        """The focused plot alone, or all again."""
        if self.has_class("-maximised"):
            self.remove_class("-maximised")
            for plot in self.plots():
                plot.remove_class("-alone")
                if plot.parent is not None:
                    plot.parent.remove_class("-aside")
        elif self.plots():
            self.maximise_plot(self.chosen_plot())
        self.call_after_refresh(self.fttui.redraw)

    def maximise_plot(self, chosen: Plot) -> None:
        """Show one plot alone."""
        self.add_class("-maximised")
        for plot in self.plots():
            plot.set_class(plot is chosen, "-alone")
            if plot.parent is not None:
                plot.parent.set_class(plot.parent is not chosen.parent, "-aside")
        chosen.focus()
