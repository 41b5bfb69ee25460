"""The one place that talks to plotext: layers of points in, rows of tagged text out.

plotext draws the canvas only; axes, labels and colours are ours. Each layer is drawn in a palette
colour that stands for its number, and the ANSI codes in plotext's output are read back as that
number. Two rules protect the process, because plotext's C++ kernel aborts it otherwise: only finite
points reach it, and only points inside the limits.
"""

from __future__ import annotations

import re
from typing import Any

from ..state.picture import Layer, Picture

Row = list[tuple[str, int]]
"""Text and the number of the layer it belongs to; -1 is blank."""

_CODES = re.compile(r"\x1b\[([0-9;]*)m")
_DOT = "•"
_ASCII_MARKERS = {"raw": ".", "old": ",", "eval": "o"}


def load() -> Any:
    """plotext, imported on first use: it takes a quarter of a second."""
    import plotext

    plotext.terminal.limit(False, False)
    return plotext


def draw(picture: Picture, width: int, height: int, *, ascii_only: bool = False) -> list[Row]:
    """Draw a picture into `width` × `height` cells, one row of tagged text per line."""
    plt = load()
    figure = plt.figure
    figure.clear.data()
    figure.plot_size(width, height)
    figure.axes(False)
    figure.legend(False)
    figure.canvas("default")
    figure.ruler("both", "both").frequency(0)
    figure.ruler("x", 0).lim(*picture.x)
    figure.ruler("y", 0).lim(*picture.y)
    for number, layer in enumerate(picture.layers):
        marker = plt.marker(_symbol(layer, ascii_only), plt.pixel(foreground=number))
        _add(figure, layer, marker)
    return [_read(line) for line in figure.build().string().split("\n")[:height]]


def _symbol(layer: Layer, ascii_only: bool) -> str:
    if ascii_only:
        return _ASCII_MARKERS.get(layer.style, "*")
    return _DOT if layer.dots else "braille"


def _add(figure: Any, layer: Layer, marker: Any) -> None:
    xs = [x for run in layer.runs for x, _ in run]
    if not xs:
        return
    ys = [y for run in layer.runs for _, y in run]
    signal = figure.signal(xs, ys, marker=marker)
    if not layer.dots:
        signal.lines(True)
        at = 0
        for run in layer.runs:
            signal.line(at, False)
            at += len(run)
    figure.draw(signal)


def _read(line: str) -> Row:
    """Split a line of plotext's output at its colour codes."""
    row: Row = []
    number = -1
    for index, piece in enumerate(_CODES.split(line)):
        if index % 2:
            number = int(piece.rsplit(";", 1)[1]) if piece.startswith("38;5;") else -1
        elif piece:
            row.append((piece, number))
    return row
