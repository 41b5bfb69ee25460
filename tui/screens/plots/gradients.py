"""The gradient screen: the newest measurement of gradient norms, by layer and kind of module."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content

from fttui.engine.protocol.events import GradientsMeasured

from ...actions import bindings, key_of, keyed
from ...plot.gradient_map import (
    DEAD,
    EXPLODING,
    LEVELS,
    SIGNS,
    Cell,
    GradientMap,
    faults_named,
    gradient_map,
)
from ...text import format as fmt
from ...view_model.app_state import AppState
from ...widgets.text_line import ALARM, BOLD, DIM, WATCH, Piece, TextLine, assemble, lines
from ..base import RunScreen

_COLOUR = {"dead": WATCH, "exploding": ALARM}
_EDGE = 6
"""Columns that border and padding take."""


class GradientsScreen(RunScreen):
    """A heat map of the gradient norms, and the modules that are dead or exploding."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings()]
    AUTO_FOCUS = ""

    def compose_body(self) -> ComposeResult:
        """Compose the panel."""
        with VerticalScroll(id="gradients", classes="panel"):
            yield TextLine(id="map")

    def show_body(self, state: AppState, now: float) -> None:
        """Draw the newest measurement."""
        flow = state.run.gradients
        panel = self.query_one("#gradients")
        key = (f"[{key_of('go.gradients', state)}] ", DIM)
        if flow is None:
            panel.border_title = assemble(key, "gradient flow")
            hint = keyed("nothing measured yet; {run.gradients} measures the next step", state)
            self.query_one("#map", TextLine).put(assemble((hint, DIM)))
            return
        undone = "" if state.run.gradients_live else ", undone"
        title = f"gradient flow at step {state.run.gradients_at:,}{undone}"
        panel.border_title = assemble(key, title)
        rows = gradient_rows(flow, max(20, self.app.size.width - _EDGE))
        self.query_one("#map", TextLine).put(lines(*rows))


def gradient_rows(flow: GradientsMeasured, width: int) -> list[Content]:
    """Return legend, map and faults of a measurement in lines of at most `width` cells.

    A line with the names of faulty modules may be twice as long.
    """
    room = max((len(m.module.rpartition(".")[2]) for m in flow.modules), default=0) + 2
    found = gradient_map(flow, max(1, width - room))
    room = max([room, *(len(kind) + 2 for kind in found.rows)])
    if room + len(found.layers) * found.width > width:
        found = gradient_map(flow, max(1, width - room))
    head = f"{fmt.plural(len(flow.modules), 'module')}, median gradient norm "
    rows = [assemble(head, (fmt.number(found.median_norm), BOLD)), _legend(), Content("")]
    rows += [_row(kind, cells, room, found) for kind, cells in found.rows.items()]
    rows += [_layers(found, room), Content("")]
    for fault, names in faults_named(flow):
        rows += _named(fault, names, width)
    return rows


def _legend() -> Content:
    half = LEVELS // 2
    scale: list[Piece] = [(SIGNS[n], f"$heat-{n}") for n in range(LEVELS)]
    return assemble(
        ("1/100 ", DIM), *scale[:half], scale[half], (" median ", DIM), *scale[half + 1 :],
        (" ×100   ", DIM), (f"{DEAD} dead", WATCH), "   ", (f"{EXPLODING} exploding", ALARM),
    )  # fmt: skip


def _row(kind: str, cells: tuple[Cell | None, ...], room: int, found: GradientMap) -> Content:
    pieces: list[Piece] = [f"{kind:<{room}}"]
    for cell in cells:
        if cell is None:
            pieces.append(" " * found.width)
        else:
            style = _COLOUR.get(cell.fault, f"$heat-{cell.level}")
            pieces.append((cell.sign * found.width, style))
    return assemble(*pieces)


def _layers(found: GradientMap, room: int) -> Content:
    """Return the numbers of the layers beneath their columns, as many as there is room for."""
    text = ""
    for index, layer in enumerate(found.layers):
        at = index * found.width
        if at == 0 or (at >= len(text) + 2 and index % 5 == 0):
            text = f"{text:<{at}}{layer}"
    return assemble((f"{'layer':<{room}}{text}", DIM))


def _named(fault: str, names: list[str], width: int) -> list[Content]:
    head = f"{fault}: "
    if not names:
        return [assemble((f"{head}none", DIM))]
    shown: list[str] = []
    for name in names:
        more = f", and {len(names) - len(shown)} more"
        if len(head + ", ".join([*shown, name]) + more) > 2 * width and shown:
            break
        shown.append(name)
    rest = len(names) - len(shown)
    text = ", ".join(shown) + (f", and {rest} more" if rest else "")
    return [assemble((head, f"bold {_COLOUR[fault]}"), text)]
