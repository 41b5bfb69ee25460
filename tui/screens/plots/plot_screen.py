"""The base of all screens made of plots: focus, maximising and the colours of curves."""

from __future__ import annotations

from typing import ClassVar

from textual import on

from ...plot.frame import LOOKS
from ...widgets.plot import UNDONE, Plot
from ...widgets.plot_mouse import PlotMouse
from ..base import RunScreen
from .pointing import anomaly_of, event_at, spanned, zoomed_around


class PlotScreen(RunScreen):
    """A screen of plots that share window, cursor and scale, and the styles of their curves.

    | Component class | Used for |
    | :- | :- |
    | `plot--raw`, `--ema`, `--live`, `--eval`, `--clip`, `--old`, `--band`, `--limit` | curves |
    | `plot--held`, `--kept` | parts of a stack: memory that is allocated; reserved, but not used |
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

    @on(PlotMouse.Pointed)
    def point(self, message: PlotMouse.Pointed) -> None:
        """Move the cursor of all plots to the step that was clicked, and open the event there."""
        run, view = self.fttui.state.run, self.fttui.state.plot
        marks = run.marks if view.undone else run.live_marks()
        mark = event_at(marks, message.steps) if message.on_axis else None
        self.fttui.look(view.at(message.step if mark is None else mark.step, run.step))
        if mark is None:
            return
        anomaly = anomaly_of(mark, run.anomalies)
        if anomaly is not None:
            self.fttui.open_report(anomaly)
        elif mark.kind == "checkpoint":
            self.fttui.go("checkpoints")
        else:
            self.fttui.tell(mark.text, "information", title=f"step {mark.step:,}")

    @on(PlotMouse.Spanned)
    def zoom_to(self, message: PlotMouse.Spanned) -> None:
        """Show the steps that were selected by dragging."""
        state = self.fttui.state
        self.fttui.look(spanned(state.plot, message.first, message.last, state.run.step))

    @on(PlotMouse.Wheeled)
    def zoom_around(self, message: PlotMouse.Wheeled) -> None:
        """Zoom around the step under the mouse."""
        view, newest = self.fttui.state.plot, self.fttui.state.run.step
        self.fttui.look(zoomed_around(view, message.step, newest, inwards=message.inwards))

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
