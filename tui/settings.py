"""What the terminal can show and what the person wants, decided once at start."""

from __future__ import annotations

import locale
import os
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from fttui.engine.run.known_runs import state_folder

from .actions import key_faults, textual_key


@dataclass(frozen=True)
class Settings:
    """How to draw."""

    ascii: bool = False
    """Draw with ASCII only: the terminal's encoding is not UTF-8."""
    theme: str = "fttui-dark"
    redraw_s: float = 0.15
    """Least time between two redraws of the curves."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """The person's own keys: action id → comma-separated keys."""
    faults: tuple[str, ...] = ()
    """What in the person's file could not be used."""
    first_time: bool = False
    """Nobody has seen the app here before."""


def read_settings(environ: Mapping[str, str], encoding: str) -> Settings:
    """Settings from the environment.

    `FTTUI_ASCII=1` forces ASCII, 0 the contrary; `FTTUI_THEME=light|dark` the theme. `NO_COLOR` and
    `TEXTUAL_FPS` are honoured by Textual itself.
    """
    utf8 = encoding.lower().replace("-", "") in {"utf8", "utf"}
    bare = environ.get("TERM") == "linux" or _plain_locale(environ)
    wanted = environ.get("FTTUI_ASCII", "")
    theme = "fttui-light" if environ.get("FTTUI_THEME") == "light" else "fttui-dark"
    return Settings(
        ascii=wanted != "0" if wanted else bare or not utf8,
        theme="fttui-16" if _sixteen_colours(environ) else theme,
    )


def _plain_locale(environ: Mapping[str, str]) -> bool:
    """The locale is said to be C or POSIX; Python calls that UTF-8, terminals and tmux do not."""
    said = (environ.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    return next((name for name in said if name), "") in {"C", "POSIX"}


def _sixteen_colours(environ: Mapping[str, str]) -> bool:
    """The terminal says neither 24-bit nor 256 colours (decided as Textual decides it)."""
    rich = environ.get("COLORTERM", "").lower() in {"truecolor", "24bit"}
    term = environ.get("TERM", "")
    return bool(term) and not rich and term.rpartition("-")[2] not in {"256color", "kitty"}


def config_file(environ: Mapping[str, str]) -> Path:
    """`$XDG_CONFIG_HOME/fttui/app.toml`, else `~/.config/fttui/app.toml`."""
    base = environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "fttui" / "app.toml"


def with_file(settings: Settings, file: Path) -> Settings:
    """The settings with what the person's file says; a fault in it is told, never fatal."""
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return settings
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        return replace(settings, faults=(f"{file}: {error}",))
    given = tree.get("keys", {})
    keys = {}
    for id_, value in given.items() if isinstance(given, dict) else ():
        names = value if isinstance(value, list) else [value]
        keys[id_] = ",".join(textual_key(str(name)) for name in names)
    faults = [f"{file}: {fault}" for fault in key_faults(keys)]
    faults += [f"{file}: unknown table {name!r}" for name in tree if name not in ("keys", "theme")]
    theme = {"dark": "fttui-dark", "light": "fttui-light"}.get(str(tree.get("theme")))
    return replace(
        settings,
        keys={} if faults else keys,
        faults=tuple(faults),
        theme=theme or settings.theme,
    )


def present_settings() -> Settings:
    """Settings of this process."""
    settings = read_settings(os.environ, locale.getpreferredencoding(False))
    try:
        settings = with_file(settings, config_file(os.environ))
        return replace(settings, first_time=not seen_file().exists())
    except (OSError, RuntimeError):  # a user without a home
        return settings


def seen_file() -> Path:
    """There when the app has been seen on this machine."""
    return state_folder() / "seen"


def note_seen() -> None:
    """The app has been seen; a home that cannot be written only costs another greeting."""
    with suppress(OSError, RuntimeError):
        seen_file().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        seen_file().touch()
