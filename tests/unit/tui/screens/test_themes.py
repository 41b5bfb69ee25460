"""Every theme is legible: texts, curves and marks have a contrast with what they are drawn on."""

from __future__ import annotations

import pytest
from textual.color import Color
from textual.theme import BUILTIN_THEMES, Theme

from fttui.tui.styles.colours import HEAT, LEGIBLE, PALE, STACK, contrast, legible
from fttui.tui.styles.themes import LEFT_OUT, OWN_COLOURS, THEMES, with_derived

MIXED = [
    theme
    for theme in (*BUILTIN_THEMES.values(), *THEMES)
    if theme.name not in (*LEFT_OUT, OWN_COLOURS)
]
TEXTS = ("foreground", "accent", "warning", "error", "success", "secondary", "dim")
LINES = (
    "plot-ema", "plot-live", "plot-eval", "plot-clip", "plot-limit", "plot-axis", "plot-mark",
    "plot-alarm", "plot-watch", "plot-cursor", "plot-gone", "plot-run1", "plot-run2", "plot-run3",
    "plot-run4",
)  # fmt: skip


def _colours(theme: Theme) -> dict[str, Color]:
    variables = with_derived(theme, {**theme.to_color_system().generate(), **theme.variables})
    names = ("background", "panel", *TEXTS, *LINES, "plot-raw", "plot-band", "plot-old")
    more = [f"stack-{n}" for n in range(STACK)] + [f"heat-{n}" for n in range(HEAT)]
    return {name: Color.parse(variables[name]) for name in (*names, "plot-undone", *more)}


@pytest.mark.parametrize("theme", MIXED, ids=lambda theme: theme.name)
def test_a_theme_is_legible(theme: Theme) -> None:
    found = _colours(theme)
    for name in TEXTS:
        grounds = (found["background"], found["panel"])
        assert min(contrast(found[name], ground) for ground in grounds) >= LEGIBLE, name
    shown = [*LINES, *(name for name in found if name.startswith(("stack-", "heat-")))]
    for name in shown:
        assert contrast(found[name], found["background"]) >= LEGIBLE, name
    for name in ("plot-raw", "plot-band", "plot-old"):
        ratio = contrast(found[name], found["background"])
        assert ratio >= PALE, name
        assert ratio < contrast(found["plot-ema"], found["background"]), name
    assert contrast(found["plot-undone"], found["background"]) > 1.05, "a shade is seen"


@pytest.mark.parametrize("theme", MIXED, ids=lambda theme: theme.name)
def test_the_parts_of_a_stack_and_both_ends_of_the_heat_differ(theme: Theme) -> None:
    found = _colours(theme)
    assert len({found[f"stack-{n}"].hex for n in range(STACK)}) == STACK
    assert len({found["heat-0"].hex, found[f"heat-{HEAT // 2}"].hex, found["heat-8"].hex}) == 3


def test_sixteen_colours_are_never_mixed() -> None:
    (theme,) = (theme for theme in THEMES if theme.name == OWN_COLOURS)
    given = {**theme.to_color_system().generate(), **theme.variables}
    own = {given[name] for name in ("background", "primary", *TEXTS)}
    variables = with_derived(theme, given)
    added = {name: value for name, value in variables.items() if name not in given}
    assert set(added.values()) <= own


@pytest.mark.parametrize("ground", ["#000000", "#777777", "#ffffff", "#30343f"])
def test_a_colour_is_moved_no_further_than_needed(ground: str) -> None:
    on = Color.parse(ground)
    for name in ("#ff0000", "#00ff00", "#0000ff", "#888888"):
        colour = Color.parse(name)
        moved = legible(colour, (on,))
        assert contrast(moved, on) >= LEGIBLE
        if contrast(colour, on) >= LEGIBLE:
            assert moved == colour
