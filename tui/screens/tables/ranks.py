"""The screen of ranks: the slow ones by name, a strip per figure, and a row for each rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content

from ...actions import bindings, key_of
from ...dialogs.rank_text import slow_words, spread
from ...plot.strip import strip
from ...text import format as fmt
from ...view_model.app_state import AppState
from ...view_model.ranks.standing import ORDERS, Order, Standing, by_node, standings
from ...widgets.table import TableRow, cell
from ...widgets.text_line import ACCENT, BOLD, DIM, WATCH, Piece, TextLine, assemble, lines
from .table_screen import TableScreen

ORDER_WORDS: dict[Order, str] = {
    "slowest": "slowest first",
    "rank": "by rank",
    "memory": "most memory first",
    "throughput": "lowest throughput first",
}
MARGIN = 4
SHOWN = 0.0005
"""A rank that is less than this share behind the others is not behind."""


class RanksScreen(TableScreen):
    """The table of ranks, grouped by node; a node comes where its first rank would come."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("ranks")]
    COLUMNS = ("rank", "seconds", "behind", "slow for", "tokens/s", "memory", "GPU", "device")
    NARROW = ("rank", "seconds", "behind", "slow for", "tokens/s", "memory", "device")
    FLEXIBLE = "device"
    WIDE_FLEXIBLE = "device"
    NAME = "ranks"
    DETAIL = "rank"
    EMPTY = "The ranks are not known yet; they report when the model is loaded."
    EXAMPLE = "slow, or: node 2"

    def __init__(self) -> None:
        super().__init__()
        self._order: Order = "slowest"

    def compose_body(self) -> ComposeResult:
        """Compose the strips above the table."""
        yield TextLine(id="strips")
        yield from super().compose_body()

    def next_order(self) -> None:
        """Order the ranks by the next figure."""
        self._order = ORDERS[(ORDERS.index(self._order) + 1) % len(ORDERS)]
        self.fttui.redraw()

    def show_body(self, state: AppState, now: float) -> None:
        """Draw the strips and the table."""
        ranks = standings(state.run)
        room = self.app.size.width - MARGIN
        strips = self.query_one("#strips", TextLine)
        strips.display = len(ranks) > 1
        slow = [assemble((f"△ {words}", WATCH)) for words in slow_words(ranks)]
        strips.put(lines(*slow, *_strips(ranks, room)))
        super().show_body(state, now)
        if not self._filter and ranks:
            key = key_of("ranks.order", state)
            note = f"{ORDER_WORDS[self._order]}   {key} next order"
            self.put_note(assemble((note if len(ranks) > 1 else "a single rank", DIM)))

    def rows(self, state: AppState, now: float) -> list[TableRow]:
        """Return a row for each node, if there are several, followed by its ranks."""
        nodes = by_node(standings(state.run), self._order)
        return [row for node in nodes for row in _node(node, several=len(nodes) > 1)]


def _node(node: Sequence[Standing], *, several: bool) -> Iterator[TableRow]:
    if several:
        yield _head(node)
    for one in node:
        look = WATCH if one.slow else ""
        gpu = [f"{value:.0f} {unit}" for value, unit in _readings(one) if value is not None]
        where = f" node {one.node} {one.host}" if several else ""
        cells: tuple[Content, ...] = (
            cell(f"{one.rank:>6}", ACCENT),
            cell(f"{fmt.duration(one.seconds):>7}" if one.seconds is not None else "", look),
            cell(f"{fmt.percent(one.behind, 1):>7}" if one.behind >= SHOWN else "", look),
            cell(f"{fmt.plural(one.slow_steps, 'step'):>11}" if one.slow else "", WATCH),
            cell(f"{one.tokens_per_s:>8,.0f}" if one.tokens_per_s is not None else ""),
            cell(f"{fmt.size(one.mem_bytes):>9}" if one.mem_bytes is not None else ""),
            cell("  ".join(gpu)),
            cell(one.device or "device not known yet", DIM),
            cell(("slow" if one.slow else "") + where),
        )
        yield TableRow(f"rank {one.rank}", cells)


def _head(node: Sequence[Standing]) -> TableRow:
    """Return the row of a node: its worst time, its whole throughput, its fullest device."""
    first = node[0]
    times = [one.seconds for one in node if one.seconds is not None]
    memory = [one.mem_bytes for one in node if one.mem_bytes is not None]
    rates = [one.tokens_per_s for one in node if one.tokens_per_s is not None]
    slow = sum(one.slow for one in node)
    behind = max(one.behind for one in node)
    cells: tuple[Content, ...] = (
        cell(f"node {first.node}", BOLD),
        cell(f"{fmt.duration(max(times)):>7}" if times else "", DIM),
        cell(f"{fmt.percent(behind, 1):>7}" if behind >= SHOWN else "", DIM),
        cell(f"{slow} slow" if slow else "", WATCH),
        cell(f"{sum(rates):>8,.0f}" if rates else "", DIM),
        cell(f"{fmt.size(max(memory)):>9}" if memory else "", DIM),
        cell(""),
        cell(f"{first.host}, {fmt.plural(len(node), 'rank')}", BOLD),
        cell(f"node {first.node} {first.host}"),
    )
    return TableRow(f"node {first.node}", cells)


def _readings(one: Standing) -> tuple[tuple[float | None, str], ...]:
    return (one.util, "%"), (one.temp_c, "°C"), (one.power_w, "W")


def _strips(ranks: Sequence[Standing], room: int) -> Iterator[Content]:
    """Yield two lines per figure: its range over the ranks, and a bar for each rank."""
    rates = [one.tokens_per_s for one in ranks]
    memory = [one.mem_bytes for one in ranks]
    marked, nodes = [one.slow for one in ranks], [one.node for one in ranks]
    for name, values, words, high in (
        ("tokens/s", rates, spread(rates, lambda value: f"{value:,.0f}"), False),
        ("memory", memory, spread(memory, fmt.size), True),
    ):
        cells, share = strip(values, marked, nodes, room, highest_is_worst=high)
        worst = f"; a bar is the worst of {share} ranks" if share > 1 else ""
        yield assemble((f"{name} ", BOLD), (f"of ranks 0 to {len(ranks) - 1}: {words}{worst}", DIM))
        if any(value is not None for value in values):
            pieces: list[Piece] = [
                (" " * one.gap + one.sign, WATCH if one.marked else ACCENT) for one in cells
            ]
            yield assemble(*pieces)
