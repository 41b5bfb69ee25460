"""Handlers of the actions that change only the view: plot window, cursor, tables, marked runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...app_base import AppBase
from ...dialogs.prompts import ParsedInput
from ...plot.panels import chosen_metrics, metrics_of
from ...view_model.plot_view import PlotView
from ..modals.prompt import PromptScreen
from ..plots.compare import CompareScreen
from ..plots.metrics import MetricsScreen
from ..plots.plot_screen import PlotScreen
from ..tables.ranks import RanksScreen
from ..tables.runs import RunsScreen
from ..tables.table_screen import TableScreen
from .background import compare_runs

Handler = Callable[[AppBase], None]
MOST_ZOOMS = 30
"""Largest count typed before a zoom key that has an effect."""


def _look(change: Callable[[PlotView, AppBase, PlotScreen], PlotView]) -> Handler:
    def act(app: AppBase) -> None:
        screen = app.screen
        if isinstance(screen, PlotScreen):
            app.look(change(app.state.plot, app, screen))

    return act


def _on_plots(do: Callable[[PlotScreen], None]) -> Handler:
    def act(app: AppBase) -> None:
        if isinstance(app.screen, PlotScreen):
            do(app.screen)

    return act


def _filter(app: AppBase) -> None:
    if isinstance(app.screen, TableScreen | CompareScreen):
        app.screen.open_filter()
    elif isinstance(app.screen, MetricsScreen):
        _choose_metrics(app)
    else:
        app.tell("nothing to filter here; tables, metrics and comparison have a filter")


def _choose_metrics(app: AppBase) -> None:
    def answer(found: ParsedInput | None) -> None:
        if found is not None:
            app.look(replace(app.state.plot, only=found.text or ""))

    def read(text: str) -> ParsedInput:
        names = chosen_metrics(metrics_of(app.state.run), text)
        return ParsedInput(text=text, preview=f"shows {len(names)}: {', '.join(names)[:60]}")

    prompt = PromptScreen("filter metrics", "words; a metric with any of them is shown", read)
    app.push_screen(prompt, answer)


def _compare(app: AppBase) -> None:
    if isinstance(app.screen, RunsScreen):
        compare_runs(app, app.screen.chosen_to_compare())


def _mark(app: AppBase) -> None:
    if isinstance(app.screen, RunsScreen):
        app.screen.mark()
    elif isinstance(app.screen, CompareScreen):
        app.screen.pick()


def _order_ranks(app: AppBase) -> None:
    if isinstance(app.screen, RanksScreen):
        app.screen.next_order()


def _on_table(rows: int) -> Handler:
    def act(app: AppBase) -> None:
        if isinstance(app.screen, TableScreen):
            app.screen.move(rows * app.take_count())

    return act


def _zoom(view: PlotView, app: AppBase, *, inwards: bool) -> PlotView:
    for _ in range(min(app.take_count(), MOST_ZOOMS)):
        view = view.zoomed(inwards, app.state.run.step)
    return view


def _event(view: PlotView, app: AppBase, *, forward: bool) -> PlotView:
    run = app.state.run
    marks = run.marks if view.undone else run.live_marks()
    for _ in range(min(app.take_count(), len(marks))):
        view = view.at_mark(marks, forward, run.step)
    return view


def _cursor(view: PlotView, app: AppBase, screen: PlotScreen, *, columns: int) -> PlotView:
    return view.moved(columns * app.take_count(), screen.canvas_columns, app.state.run.step)


VIEW_HANDLERS: dict[str, Handler] = {
    "runs.mark": _mark,
    "runs.compare": _compare,
    "view.axis": _look(lambda view, app, screen: view.next_axis()),
    "view.pan-left": _look(
        lambda view, app, screen: view.panned(-0.5 * app.take_count(), app.state.run.step)
    ),
    "view.pan-right": _look(
        lambda view, app, screen: view.panned(0.5 * app.take_count(), app.state.run.step)
    ),
    "list.down": _on_table(1),
    "list.up": _on_table(-1),
    "view.follow": _look(lambda view, app, screen: view.followed()),
    "view.log": _look(lambda view, app, screen: view.with_log(not view.log_y)),
    "view.undone": _look(lambda view, app, screen: view.with_undone(not view.undone)),
    "view.smooth": _look(lambda view, app, screen: view.smoothed()),
    "view.part": _look(lambda view, app, screen: view.next_part()),
    "view.zoom-in": _look(lambda view, app, screen: _zoom(view, app, inwards=True)),
    "view.zoom-out": _look(lambda view, app, screen: _zoom(view, app, inwards=False)),
    "view.left": _look(lambda view, app, screen: _cursor(view, app, screen, columns=-1)),
    "view.right": _look(lambda view, app, screen: _cursor(view, app, screen, columns=1)),
    "view.previous-event": _look(
        lambda view, app, screen: _event(view, app, forward=False)
    ),
    "view.next-event": _look(
        lambda view, app, screen: _event(view, app, forward=True)
    ),
    "view.up": _on_plots(lambda screen: screen.choose(-1)),
    "view.down": _on_plots(lambda screen: screen.choose(1)),
    "view.maximise": _on_plots(lambda screen: screen.toggle_maximised()),
    "list.filter": _filter,
    "ranks.order": _order_ranks,
    "app.theme": lambda app: app.choose_theme(),
}  # fmt: skip
