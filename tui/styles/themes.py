"""The themes: dark, light and 16 colours of its own, and those of the toolkit.

In its own, blue is for live, amber for watch alerts, red for alarms; colour-blind users can tell
them apart.
"""

from __future__ import annotations

from collections.abc import Mapping

from textual.theme import BUILTIN_THEMES, Theme

from .colours import derived

DARK = Theme(
    name="fttui-dark",
    primary="#6cb6ff",
    secondary="#8b98a9",
    accent="#6cb6ff",
    warning="#e3b341",
    error="#ff6a69",
    success="#7ee2b8",
    foreground="#d6dde6",
    background="#0e1217",
    surface="#0e1217",
    panel="#18202a",
    dark=True,
    variables={"border": "#33404f", "border-blurred": "#33404f", "dim": "#7f8c9b"},
)
LIGHT = Theme(
    name="fttui-light",
    primary="#0b5cad",
    secondary="#5a6673",
    accent="#0b5cad",
    warning="#8f5a00",
    error="#b3261e",
    success="#0a6b4b",
    foreground="#1c232b",
    background="#fbfcfd",
    surface="#fbfcfd",
    panel="#e9edf1",
    dark=False,
    variables={"border": "#b6c0ca", "border-blurred": "#b6c0ca", "dim": "#66727e"},
)
SIXTEEN = Theme(
    name="fttui-16",
    primary="#55ffff",
    secondary="#ff55ff",
    accent="#55ffff",
    warning="#ffff55",
    error="#ff5555",
    success="#55ff55",
    foreground="#aaaaaa",
    background="#000000",
    surface="#000000",
    panel="#000000",
    dark=True,
    variables={"border": "#555555", "border-blurred": "#555555", "dim": "#555555"},
)
"""Every colour is one of the sixteen, so that none is guessed by the terminal."""
THEMES = (DARK, LIGHT, SIXTEEN)
OWN_COLOURS = SIXTEEN.name
"""The theme whose colours are never mixed."""
LEFT_OUT = ("ansi-dark", "ansi-light")
"""Themes of the toolkit whose colours only the terminal knows; `SIXTEEN` is for such terminals."""


SHORT_NAMES = {"dark": DARK.name, "light": LIGHT.name}


def names() -> list[str]:
    """Return the names of all themes, in alphabetical order."""
    return sorted({*BUILTIN_THEMES, *(theme.name for theme in THEMES)} - {*LEFT_OUT})


def theme_named(given: object) -> str | None:
    """Return the name of the theme that the user gave, or gave a short name of; None if unknown."""
    name = SHORT_NAMES.get(str(given), given)
    return name if isinstance(name, str) and name in names() else None


def with_derived(theme: Theme, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the CSS variables of a theme with the colours of curves and legible texts."""
    if theme.name in LEFT_OUT:  # Textual builds with one of them before the app can take it away
        return dict(variables)
    return {**variables, **derived({**_DIM, **variables}, blends=theme.name != OWN_COLOURS)}


_DIM = {"dim": "#808080"}
"""The colour of subdued text for a theme that has none; without mixing it is used as it is."""
