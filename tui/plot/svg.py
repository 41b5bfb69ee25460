"""Draw the panels of a run as one SVG, from the same pictures as the plots of the app.

All lengths are in pixels. Each panel has the labels of the y axis on the left and those of the x
axis beneath.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from ..text.control_characters import escape_control_characters
from ..text.glyphs import STATE_SHAPE
from ..view_model.app_state import AppState
from .frame import MARK_SHAPE, signs_of, x_labels, y_labels
from .layers import Layer, PlotPicture, SignPlace, YAxis, picture
from .panels import Panel

WIDTH, HEIGHT = 460, 220
"""Size of a panel in pixels."""
PER_ROW = 2
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 28, 40
_HEAD = 44
_COLUMNS = (WIDTH - _LEFT - _RIGHT) // 2
"""Columns for which curves are thinned, with two points each, so that each pixel has a point."""
_FONT = "ui-monospace, Menlo, Consolas, monospace"
_LINE = {"raw": 1.0, "ema": 2.0, "eval": 1.5, "old": 1.0, "limit": 1.0}
_DASHED = frozenset({"clip", "limit"})


def svg_of(state: AppState, panels: Sequence[Panel], colours: Mapping[str, str]) -> str:
    """Return the state of a run and the curves of its panels as an SVG.

    Args:
        state: the run and the view of its curves.
        panels: the panels, row by row.
        colours: the colours of a theme by their names, such as `plot-live`.
    """
    rows = math.ceil(len(panels) / PER_ROW)
    width, height = PER_ROW * WIDTH, _HEAD + rows * HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        # A cell that is narrower shows the picture smaller, not cut.
        f'height="{height}" style="max-width: 100%; height: auto" font-family="{_FONT}" '
        'font-size="12">',
        f'<rect width="{width}" height="{height}" fill="{colours["background"]}"/>',
        *_head(state, colours),
    ]
    for index, panel in enumerate(panels):
        row, column = divmod(index, PER_ROW)
        parts.append(f'<g transform="translate({column * WIDTH} {_HEAD + row * HEIGHT})">')
        parts += _Drawing(state, panel, colours).parts()
        parts.append("</g>")
    return "".join([*parts, "</svg>"])


def summary(state: AppState) -> str:
    """Return the state of a run in one line, such as `demo  running  step 40 of 200  loss 1.2`."""
    run = state.run
    of = f" of {run.total_steps:,}" if run.total_steps else ""
    last = run.last.loss if run.last else None
    loss = "" if last is None else f"  loss {last:.4g}"
    return f"{state.name}  {state.state.value}  step {run.step:,}{of}{loss}"


def _head(state: AppState, colours: Mapping[str, str]) -> Iterator[str]:
    shape = STATE_SHAPE[state.state]
    yield _text(12, 18, f"{shape} {summary(state)}", colours["foreground"], bold=True)
    incident = state.run.current_incident
    if incident is not None:
        headline = f"▲ {incident.first_step:,}  {incident.main.event.headline}"
        yield _text(12, 36, headline, colours["plot-alarm"])
    elif state.run.ended is not None and state.run.ended.error:
        yield _text(12, 36, state.run.ended.error.splitlines()[0], colours["plot-alarm"])


class _Drawing:
    """One panel."""

    def __init__(self, state: AppState, panel: Panel, colours: Mapping[str, str]) -> None:
        self._state, self._panel, self._colours = state, panel, colours
        self._width, self._height = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
        self._drawn = picture(
            state.run.branches,
            panel.curves(state),
            state.plot.window(float(max(state.run.step, 1))),
            _COLUMNS,
            axis=state.plot.axis,
            y=YAxis(
                log=state.plot.log_y and panel.can_log,
                floor=panel.floor,
                limits=panel.limits(state),
            ),
            undone=state.plot.undone,
        )

    def parts(self) -> Iterator[str]:
        """Yield the elements, those drawn over others last."""
        yield self._title()
        axis, drawn = self._colours["plot-axis"], self._drawn
        yield (
            f'<path d="M{_LEFT} {_TOP}v{self._height}h{self._width}" fill="none" stroke="{axis}"/>'
        )
        if drawn.empty:
            middle = _LEFT + self._width / 2
            yield _text(middle, HEIGHT / 2, self._panel.empty, axis, anchor="middle")
            return
        yield from self._labels(drawn, axis)
        for span in drawn.undone:
            left, right = self._x(span.left), self._x(span.right)
            shade = self._colours["plot-undone"]
            yield (
                f'<rect x="{left:.1f}" y="{_TOP}" width="{max(1.0, right - left):.1f}" '
                f'height="{self._height}" fill="{shade}"/>'
            )
        for layer in drawn.layers:
            yield from self._layer(layer)
        yield from self._signs(drawn)

    def _title(self) -> str:
        state, colours = self._state, self._colours
        spans = [f'<tspan font-weight="bold">{_safe(self._panel.name_in(state))}</tspan>']
        for entry in self._panel.entries(state):
            look = {"": "dim", "raw": "plot-live"}.get(entry.look, f"plot-{entry.look}")
            spans.append(f'<tspan dx="10" fill="{colours[look]}">{_safe(entry.text)}</tspan>')
        return f'<text x="{_LEFT}" y="18" fill="{colours["foreground"]}">{"".join(spans)}</text>'

    def _labels(self, drawn: PlotPicture, colour: str) -> Iterator[str]:
        for share, text in y_labels(self._panel, drawn, 5):
            yield _text(_LEFT - 6, self._y(share) + 4, text, colour, anchor="end")
        for place, text in x_labels(drawn, self._state, self._width // 90):
            yield _text(self._x(place), _TOP + self._height + 34, text, colour, anchor="middle")

    def _layer(self, layer: Layer) -> Iterator[str]:
        colour = self._colours[f"plot-{layer.style}"]
        for run in layer.runs:
            shares = self._drawn.scale.shares([y for _, y in run]).tolist()
            points = [
                (self._x(x), self._y(share)) for (x, _), share in zip(run, shares, strict=True)
            ]
            if layer.dots or len(points) == 1:
                for x, y in points:
                    yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>'
                continue
            dashes = ' stroke-dasharray="5 4"' if layer.style in _DASHED else ""
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            if layer.filled:
                foot = f"{self._y(0.0):.1f}"
                area = f"{points[0][0]:.1f},{foot} {line} {points[-1][0]:.1f},{foot}"
                yield f'<polygon points="{area}" fill="{colour}" fill-opacity="0.3"/>'
            yield (
                f'<polyline points="{line}" fill="none" stroke="{colour}" '
                f'stroke-width="{_LINE.get(layer.style, 1.5)}"{dashes}/>'
            )

    def _signs(self, drawn: PlotPicture) -> Iterator[str]:
        foot = _TOP + self._height
        yield from self._put(drawn.over, "↑", _TOP + 10)
        yield from self._put(drawn.gaps, "✗", foot - 2)
        for sign in signs_of(self._state):
            if drawn.x[0] <= sign.place.x <= drawn.x[1]:
                look = sign.kind if sign.kind in ("alarm", "watch") else "mark"
                colour = self._colours[f"plot-{look if sign.place.live else 'gone'}"]
                at = self._x(sign.place.x)
                yield _text(at, foot + 14, MARK_SHAPE[sign.kind], colour, anchor="middle")

    def _put(self, places: Sequence[SignPlace], sign: str, y: float) -> Iterator[str]:
        for place in places:
            colour = self._colours["plot-alarm" if place.live else "plot-gone"]
            yield _text(self._x(place.x), y, sign, colour, anchor="middle")

    def _x(self, place: float) -> float:
        low, high = self._drawn.x
        return _LEFT + self._width * (place - low) / (high - low)

    def _y(self, share: float) -> float:
        """Return the y coordinate of a share of the y axis; others than 0 to 1 are at its ends."""
        return _TOP + self._height * (1.0 - min(1.0, max(0.0, share)))


def _text(
    x: float, y: float, text: str, colour: str, *, anchor: str = "start", bold: bool = False
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}"{weight}>'
        f"{_safe(text)}</text>"
    )


def _safe(text: str) -> str:
    return escape(escape_control_characters(text))
