"""The colours of curves, marks and texts, derived from a theme so that all of them are legible.

A theme says little: a few colours and a background. Each colour of a text or of a curve is moved
towards white or black until its contrast with the background is large enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from textual.color import Color

LEGIBLE = 3.0
"""Least contrast ratio of texts, curves and marks with their background (WCAG 2, large text)."""
PALE = 1.7
"""Least contrast ratio of what lies behind another curve: raw loss, bands and abandoned steps."""
STACK = 7
"""Number of colours of a stacked bar."""
HEAT = 9
"""Number of colours of a heat map, from far below the median to far above it; an odd number."""
_STEPS = 25
_TURN = 0.14
"""Distance of the hues of neighbouring parts of a stacked bar, as a share of the colour circle."""


def luminance(colour: Color) -> float:
    """Return the relative luminance of a colour, from 0 for black to 1 for white."""

    def linear(channel: int) -> float:
        share = channel / 255
        return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4

    red, green, blue = (linear(channel) for channel in colour.rgb)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: Color, other: Color) -> float:
    """Return the contrast ratio of two colours, from 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def legible(colour: Color, grounds: Sequence[Color], ratio: float = LEGIBLE) -> Color:
    """Return the colour nearest to the given one that has a contrast with all backgrounds.

    If no colour has it, that is black or white, whichever has the larger contrast.
    """
    ends = sorted(
        (Color(0, 0, 0), Color(255, 255, 255)),
        key=lambda end: min(contrast(end, ground) for ground in grounds),
    )
    for step in range(_STEPS + 1):
        moved = colour.blend(ends[1], step / _STEPS)
        if min(contrast(moved, ground) for ground in grounds) >= ratio:
            return moved
    return ends[1]


def derived(variables: Mapping[str, str], *, blends: bool = True) -> dict[str, str]:
    """Return the CSS variables that fttui adds to those of a theme, or has instead of them.

    Args:
        variables: the variables of the theme, such as `background`, as colours.
        blends: whether colours may be mixed; without, each is one of the theme's own.
    """
    if not blends:
        own = {**_direct(variables), **_stack_of(variables), **_heat_of(variables)}
        return {**own, **{look: own[part] for look, part in _AREAS.items()}}
    given = {name: Color.parse(variables[name]) for name in _GIVEN}
    ground, panel = given["background"], given["panel"]
    grounds = (ground, panel)
    found = {name: legible(given[name], grounds) for name in _TEXTS}
    text = found["foreground"]
    found["dim"] = legible(text.blend(ground, 0.42), grounds)
    found |= {f"plot-{look}": found[name] for look, name in _CURVES.items()}
    found["plot-raw"] = legible(found["primary"].blend(ground, 0.55), (ground,), PALE)
    found["plot-band"] = legible(found["primary"].blend(ground, 0.7), (ground,), PALE)
    found["plot-old"] = legible(text.blend(ground, 0.7), (ground,), PALE)
    found["plot-undone"] = ground.blend(text, 0.07)
    found |= {f"stack-{n}": legible(c, (ground,)) for n, c in enumerate(_hues(found["primary"]))}
    found |= {look: found[part] for look, part in _AREAS.items()}
    found |= {f"heat-{n}": colour for n, colour in enumerate(_heat(found, ground))}
    return {name: colour.hex6 for name, colour in found.items()}


_TEXTS = ("foreground", "primary", "secondary", "accent", "warning", "error", "success")
_GIVEN = ("background", "panel", *_TEXTS)
_CURVES = {
    "ema": "foreground", "live": "primary", "eval": "success", "clip": "warning",
    "limit": "error", "run1": "primary", "run2": "warning", "run3": "success",
    "run4": "secondary", "axis": "dim", "mark": "foreground", "alarm": "error",
    "watch": "warning", "cursor": "dim", "gone": "dim",
}  # fmt: skip

_AREAS = {"plot-held": "stack-0", "plot-kept": "stack-1"}
"""Colour of an area in a plot → the part of a stacked bar that has the same colour."""


def _hues(first: Color) -> list[Color]:
    """Return the colours of the parts of a stacked bar: the same colour turned round the circle."""
    hue, saturation, lightness = first.hsl
    full = max(0.45, saturation)
    return [Color.from_hsl((hue + n * _TURN) % 1.0, full, lightness) for n in range(STACK)]


def _heat(found: Mapping[str, Color], ground: Color) -> list[Color]:
    """Return the colours of a heat map: cold, grey at the median, hot."""
    middle, half = found["dim"], HEAT // 2
    cold = [found["plot-live"].blend(middle, n / half) for n in range(half)]
    hot = [middle.blend(found["error"], n / half) for n in range(half + 1)]
    return [legible(colour, (ground,)) for colour in (*cold, *hot)]


def _direct(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the colours of curves without any mixing, for terminals with sixteen colours."""
    found = {f"plot-{look}": variables[name] for look, name in _CURVES.items()}
    pale = dict.fromkeys(("plot-raw", "plot-band"), variables["primary"])
    return {**found, **pale, "plot-old": variables["dim"], "plot-undone": variables["background"]}


def _stack_of(variables: Mapping[str, str]) -> dict[str, str]:
    names = ("primary", "success", "warning", "secondary", "foreground", "error", "dim")
    return {f"stack-{n}": variables[name] for n, name in enumerate(names)}


def _heat_of(variables: Mapping[str, str]) -> dict[str, str]:
    half = HEAT // 2
    names = ["primary"] * half + ["foreground"] + ["warning"] * (half - 1) + ["error"]
    return {f"heat-{n}": variables[name] for n, name in enumerate(names)}
