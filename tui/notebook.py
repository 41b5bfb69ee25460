"""A run in a notebook: the curves of the app as a picture that follows the run.

It reads the files of the run and nothing else, so that the training never waits for a notebook.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from .connection.run_follower import RunFollower
from .plot.panels import GRAD_NORM, LEARNING_RATE, LOSS, MEMORY, THROUGHPUT, Panel, panel_for
from .plot.svg import summary, svg_of
from .styles.themes import DARK, LIGHT, with_derived

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .view_model.app_state import AppState

PANELS = (LOSS, GRAD_NORM, LEARNING_RATE, MEMORY, THROUGHPUT)
"""The panels of the dashboard."""
SHORTEST_S = 0.5
"""Least seconds between two pictures."""


def show(
    run: str | None,
    *,
    seconds: float | None,
    every_s: float,
    theme: str,
    metrics: Sequence[str],
    runs_dir: str | None,
) -> None:
    """Show a run in the output of a cell; the arguments are those of `fttui.show`.

    Raises:
        ImportError: IPython is not installed.
        NoSuchRun: no run or several runs match.
        ValueError: there is no such theme.
    """
    from IPython.display import display, update_display

    colours, follower = _colours(theme), RunFollower.named(run, runs_dir)
    panels = [*PANELS, *(panel_for(metric) for metric in metrics)]
    pictures = f"fttui-{id(follower)}"
    state = follower.refresh()
    display(_bundle(state, panels, colours), raw=True, display_id=pictures)
    until = math.inf if seconds is None else time.monotonic() + seconds
    try:
        while not follower.ended and time.monotonic() < until:
            time.sleep(max(SHORTEST_S, every_s))
            state = follower.refresh()
            update_display(_bundle(state, panels, colours), raw=True, display_id=pictures)
    except KeyboardInterrupt:
        pass  # the picture stays as it is


def _bundle(state: AppState, panels: Sequence[Panel], colours: Mapping[str, str]) -> dict[str, Any]:
    return {"image/svg+xml": svg_of(state, panels, colours), "text/plain": summary(state)}


def _colours(theme: str) -> dict[str, str]:
    known = {"light": LIGHT, "dark": DARK}
    if theme not in known:
        raise ValueError(f"theme: got {theme!r}, expected light or dark")
    return with_derived(known[theme], known[theme].to_color_system().generate())
