"""The base of all screens made of plots: focus, maximising and the colours of curves."""

from __future__ import annotations

from typing import ClassVar

from ...plot.frame import LOOKS
from ...widgets.plot import UNDONE, Plot
from ..base import RunScreen


class PlotScreen(RunScreen):
    """A screen of plots that share window, cursor and scale, and the styles of their curves.

    | Component class | Used for |
    | :- | :- |
    | `plot--raw`, `--ema`, `--live`, `--eval`, `--clip`, `--old`, `--band`, `--limit` | curves |
    | `plot--run1` … `plot--run4` | curves of compared runs |
    | `plot--axis`, `--mark`, `--alarm`, `--watch`, `--cursor`, `--gone` | axes and marks |
    | `plot--undone` | the shade behind abandoned steps |
    """

    # Defined here and not per plot, because looking up the styles is most of a plot's cost.
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"plot--{look}" for look in (*LOOKS, UNDONE)}

    def plots(self) -> list[Plot]:
        """Return the plots in reading order."""
        return list(self.query(Plot))

    @property
    def canvas_columns(self) -> int:
        """Width in cells of the focused plot's canvas, by one of which a cursor key moves.

        It is 1 if the screen has no plots.
        """
        return self.chosen_plot().columns if self.plots() else 1

    def chosen_plot(self) -> Plot:
        """Return the focused plot, or the first if none is focused."""
        return self.focused if isinstance(self.focused, Plot) else self.plots()[0]

    def on_plot_pointed(self, message: Plot.Pointed) -> None:
        """Move the cursor of all plots to the step that was clicked."""
        state = self.fttui.state
        self.fttui.look(state.plot.at(message.step, state.run.step))

    def choose(self, offset: int) -> None:
        """Focus the plot `offset` places after the focused one, beyond the last the first again.

        Without a focused plot it is the first. If the focused plot is maximised, the other one is
        maximised in its place.
        """
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
        """Show only the focused plot, or all plots again."""
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
        """Show only this plot, over the whole screen."""
        self.add_class("-maximised")
        for plot in self.plots():
            plot.set_class(plot is chosen, "-alone")
            if plot.parent is not None:
                plot.parent.set_class(plot.parent is not chosen.parent, "-aside")
        chosen.focus()
