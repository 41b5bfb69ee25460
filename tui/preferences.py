"""The user's preferences of the app: ASCII, theme, redraw rate, own keys; read once at start."""

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
class Preferences:
    """Settings of the app: drawing and key bindings."""

    ascii: bool = False
    """Whether to draw with ASCII only, for terminals without UTF-8."""
    theme: str = "fttui-dark"
    redraw_s: float = 0.15
    """Least seconds between two redraws."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """The user's own keys: action id → comma-separated Textual key names."""
    faults: tuple[str, ...] = ()
    """Errors in the user's file, shown at start."""
    first_time: bool = False
    """Whether the app has not been opened on this machine before."""


def read_preferences(environ: Mapping[str, str], encoding: str) -> Preferences:
    """Read the preferences from the environment and the terminal's encoding.

    `FTTUI_ASCII=1` forces ASCII and `0` forbids it; `FTTUI_THEME=light|dark` sets the theme.
    Textual itself reads `NO_COLOR` and `TEXTUAL_FPS`.
    """
    utf8 = encoding.lower().replace("-", "") in {"utf8", "utf"}
    bare = environ.get("TERM") == "linux" or _plain_locale(environ)
    wanted = environ.get("FTTUI_ASCII", "")
    theme = "fttui-light" if environ.get("FTTUI_THEME") == "light" else "fttui-dark"
    return Preferences(
        ascii=wanted != "0" if wanted else bare or not utf8,
        theme="fttui-16" if _sixteen_colours(environ) else theme,
    )


def _plain_locale(environ: Mapping[str, str]) -> bool:
    """Whether the locale is C or POSIX; Python assumes UTF-8 for these, terminals do not."""
    values = (environ.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    return next((name for name in values if name), "") in {"C", "POSIX"}


def _sixteen_colours(environ: Mapping[str, str]) -> bool:
    """Whether the terminal has fewer than 256 colours, by the rule that Textual uses."""
    rich = environ.get("COLORTERM", "").lower() in {"truecolor", "24bit"}
    term = environ.get("TERM", "")
    return bool(term) and not rich and term.rpartition("-")[2] not in {"256color", "kitty"}


def config_file(environ: Mapping[str, str]) -> Path:
    """Return `$XDG_CONFIG_HOME/fttui/app.toml`, by default `~/.config/fttui/app.toml`."""
    base = environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "fttui" / "app.toml"


def with_file(preferences: Preferences, file: Path) -> Preferences:
    """Return the preferences with the user's file applied; errors in it go into `faults`."""
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return preferences
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        return replace(preferences, faults=(f"{file}: {error}",))
    given = tree.get("keys", {})
    keys = {}
    for id_, value in given.items() if isinstance(given, dict) else ():
        names = value if isinstance(value, list) else [value]
        keys[id_] = ",".join(textual_key(str(name)) for name in names)
    faults = [f"{file}: {fault}" for fault in key_faults(keys)]
    faults += [f"{file}: unknown table {name!r}" for name in tree if name not in ("keys", "theme")]
    theme = {"dark": "fttui-dark", "light": "fttui-light"}.get(str(tree.get("theme")))
    return replace(
        preferences,
        keys={} if faults else keys,
        faults=tuple(faults),
        theme=theme or preferences.theme,
    )


def user_preferences() -> Preferences:
    """Read the preferences of this process's user from the environment and the user's file."""
    preferences = read_preferences(os.environ, locale.getpreferredencoding(False))
    try:
        preferences = with_file(preferences, config_file(os.environ))
        return replace(preferences, first_time=not seen_file().exists())
    except (OSError, RuntimeError):  # the user has no home folder
        return preferences


def seen_file() -> Path:
    """Return the file that exists once the app has been opened on this machine."""
    return state_folder() / "seen"


def note_seen() -> None:
    """Record that the app has been opened; a home that cannot be written is ignored."""
    with suppress(OSError, RuntimeError):
        seen_file().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        seen_file().touch()
