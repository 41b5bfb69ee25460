"""What the terminal can show and what the person wants, decided once at start."""

from __future__ import annotations

import locale
import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """How to draw."""

    ascii: bool = False
    """Draw with ASCII only: the terminal's encoding is not UTF-8."""
    theme: str = "fttui-dark"
    redraw_s: float = 0.15
    """Least time between two redraws of the curves."""


def read_settings(environ: Mapping[str, str], encoding: str) -> Settings:
    """Settings from the environment.

    `FTTUI_ASCII=1` forces ASCII, `FTTUI_THEME=light|dark` the theme. `NO_COLOR` and `TEXTUAL_FPS`
    are honoured by Textual itself.
    """
    utf8 = encoding.lower().replace("-", "") in {"utf8", "utf"}
    bare = environ.get("TERM") == "linux"
    wanted = environ.get("FTTUI_ASCII", "")
    return Settings(
        ascii=wanted not in {"", "0"} or not utf8 or bare,
        theme="fttui-light" if environ.get("FTTUI_THEME") == "light" else "fttui-dark",
    )


def present_settings() -> Settings:
    """Settings of this process."""
    return read_settings(os.environ, locale.getpreferredencoding(False))
