"""Draw the layers of a picture into cells of 2 × 4 dots, as braille or as ASCII signs.

All work is done on arrays, so that a picture takes a fraction of a millisecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..view_model.series import Floats, Indices, Point
from .layers import Layer, PlotPicture

BLANK = ord(" ")
_BRAILLE = 0x2800
_DOT = ord("•")
_WEIGHTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]], dtype=np.uint8)
_THICK = frozenset({"ema"})
"""Styles of curves that are two dots high, so that they stand out from a curve behind them."""
_ASCII_SIGNS = {
    "raw": ".", "old": ",", "eval": "o", "band": ":", "limit": "-", "clip": "-", "held": "#",
    "kept": ":",
}  # fmt: skip
_SPARSE = "kept"
"""Style of an area drawn with every fourth dot, so that it differs from others without colours."""


@dataclass(frozen=True)
class Sheet:
    """Cells of a picture `[height, width]`: their code points, and their layers (-1 for none)."""

    chars: NDArray[np.uint32]
    layers: NDArray[np.int16]


def blank(width: int, height: int) -> Sheet:
    """Return an empty drawing area of `width` × `height` cells."""
    return Sheet(
        np.full((height, width), BLANK, dtype=np.uint32), np.full((height, width), -1, np.int16)
    )


def draw(picture: PlotPicture, width: int, height: int, *, ascii_only: bool = False) -> Sheet:
    """Draw a picture into `width` × `height` cells; later layers cover earlier ones."""
    sheet = blank(width, height)
    for number, layer in enumerate(picture.layers):
        rows, columns = _dots(layer, picture, width, height)
        if not len(rows):
            continue
        if layer.style in _THICK:
            rows, columns = np.concatenate([rows, np.maximum(rows - 1, 0)]), np.tile(columns, 2)
        if layer.dots:
            cells = np.zeros((height, width), dtype=np.uint32)
            cells[rows // 4, columns // 2] = ord("o") if ascii_only else _DOT
        else:
            cells = _cells(rows, columns, width, height, layer)
            sign = ord(_ASCII_SIGNS.get(layer.style, "*"))
            cells = np.where(cells > 0, sign if ascii_only else cells + _BRAILLE, 0)
        covered = cells > 0
        sheet.chars[covered] = cells[covered]
        sheet.layers[covered] = number
    return sheet


def _dots(layer: Layer, picture: PlotPicture, width: int, height: int) -> tuple[Indices, Indices]:
    """Return the rows (from the top) and the columns of all dots of a layer, each `[N]`."""
    found = [_line(_places(run, picture, width, height), layer) for run in layer.runs if run]
    if not found:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    places = np.concatenate(found)
    return 4 * height - 1 - places[:, 1], places[:, 0]


def _places(run: Sequence[Point], picture: PlotPicture, width: int, height: int) -> Floats:
    """Return points as positions in whole dots from the lower left, `[N, 2]`.

    Points outside the picture are moved to its edge.
    """
    points = np.array(run, dtype=np.float64)
    left, right = picture.x
    shares = np.empty_like(points)
    shares[:, 0] = (points[:, 0] - left) / (right - left)
    shares[:, 1] = picture.scale.shares(points[:, 1])
    dots = np.array([2 * width, 4 * height])
    found: Floats = np.clip(np.floor(shares * dots), 0, dots - 1)
    return found


def _line(places: Floats, layer: Layer) -> Indices:
    """Return the positions `[N, 2]` and, unless the layer is dots, all those on lines between them.

    In a band, lines connect the two positions of each pair.
    """
    if layer.dots or len(places) == 1:
        return places.astype(np.int64)
    if layer.style == "band":
        places = places.reshape(-1, 2, 2)
        starts, moves = places[:, 0], places[:, 1] - places[:, 0]
    else:
        starts, moves = places[:-1], np.diff(places, axis=0)
    amounts = np.maximum(np.abs(moves).max(axis=1), 1).astype(np.int64) + 1
    which = np.repeat(np.arange(len(amounts)), amounts)
    along = np.arange(len(which)) - np.repeat(np.cumsum(amounts) - amounts, amounts)
    share = along / (amounts - 1)[which]
    found: Indices = np.rint(starts[which] + moves[which] * share[:, None]).astype(np.int64)
    return found


def _cells(
    rows: Indices, columns: Indices, width: int, height: int, layer: Layer
) -> NDArray[np.uint32]:
    """Return the braille pattern of every cell from its dots, `[height, width]`."""
    grid = np.zeros((4 * height, 2 * width), dtype=np.uint8)
    grid[rows, columns] = 1
    if layer.filled:
        area = np.maximum.accumulate(grid, axis=0)  # every other dot, so that the edge stands out
        area[::2, ::2] = area[1::2, 1::2] = 0
        if layer.style == _SPARSE:
            area[::2] = 0
        grid |= area
    blocks = grid.reshape(height, 4, width, 2).transpose(0, 2, 1, 3)
    cells: NDArray[np.uint32] = (blocks * _WEIGHTS).sum(axis=(2, 3), dtype=np.uint32)
    return cells
