"""The user's preferences of the app: ASCII, theme and own keys; they are read once at start."""

from __future__ import annotations

import locale
import os
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path

from fttui.engine.run.known_runs import state_folder

from .actions import key_faults, textual_key
from .styles.themes import DARK, SHORT_NAMES, SIXTEEN, names, theme_named


@dataclass(frozen=True)
class Preferences:
    """Settings of the app: drawing and key bindings."""

    ascii: bool = False
    """Whether to draw with ASCII only, for terminals without UTF-8."""
    ascii_forced: bool = False
    """Whether the environment has decided on ASCII, which the user's file does not change."""
    theme: str = "fttui-dark"
    """Name of the theme, one of `fttui.tui.styles.themes.names()`."""
    theme_forced: bool = False
    """Whether the environment sets the theme, so that the user's file does not."""
    file: Path | None = None
    """The user's file, in which a theme chosen in the app is kept; None keeps it nowhere."""
    redraw_s: float = 0.15
    """Seconds between two looks whether new records need a redraw."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """The user's own keys: action id → comma-separated Textual key names."""
    faults: tuple[str, ...] = ()
    """Errors in the user's file and in the environment, shown at start."""
    first_time: bool = False
    """Whether the app has not been opened on this machine before."""


def read_preferences(environ: Mapping[str, str], encoding: str) -> Preferences:
    """Read the preferences from the environment and the terminal's encoding.

    `FTTUI_ASCII=1` forces ASCII and `0` forbids it; unset, ASCII is used if the encoding is not
    UTF-8, the locale is C or POSIX, or TERM is `linux`. `FTTUI_THEME` sets the theme and comes
    before the user's file; a terminal with fewer than 256 colours gets the theme of sixteen.
    Textual itself reads `NO_COLOR` and `TEXTUAL_FPS`.
    """
    utf8 = encoding.lower().replace("-", "") in {"utf8", "utf"}
    bare = environ.get("TERM") == "linux" or _plain_locale(environ)
    wanted = environ.get("FTTUI_ASCII", "")
    theme = environ.get("FTTUI_THEME") or DARK.name
    known = theme_named(theme)
    return Preferences(
        ascii=wanted != "0" if wanted else bare or not utf8,
        ascii_forced=bool(wanted),
        theme=SIXTEEN.name if _sixteen_colours(environ) else known or DARK.name,
        theme_forced=bool(environ.get("FTTUI_THEME")) and known is not None,
        faults=tuple(_theme_faults("FTTUI_THEME", theme)),
    )


def _theme_faults(name: str, given: object) -> list[str]:
    if theme_named(given) is not None:
        return []
    similar = get_close_matches(str(given), [*SHORT_NAMES, *names()], 1)
    hint = f"; did you mean {similar[0]}?" if similar else ""
    return [f"{name}: got {given!r}, expected dark, light or one of {', '.join(names())}{hint}"]


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
    """Return `$XDG_CONFIG_HOME/fttui/app.toml`, by default `~/.config/fttui/app.toml`.

    Raises:
        RuntimeError: the variable is not set, and the user has no home folder.
    """
    base = environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "fttui" / "app.toml"


def with_file(preferences: Preferences, file: Path) -> Preferences:
    """Return the preferences with the user's file applied; errors in it are added to `faults`.

    A file with errors changes no key.
    """
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return preferences
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        return replace(preferences, faults=(*preferences.faults, f"{file}: {error}"))
    keys = _keys(tree.get("keys", {}))
    found = [*_theme_faults("theme", tree.get("theme", "dark")), *_faults_of_keys(keys)]
    found += [
        f"unknown key {name!r}, expected theme, ascii or a table [keys]"
        for name in tree
        if name not in ("keys", "theme", "ascii")
    ]
    ascii_only = tree.get("ascii")
    if not isinstance(ascii_only, bool | None):
        found.append(f"ascii: got {ascii_only!r}, expected true or false")
    if found:
        found.append("until this is corrected, the app uses its own keys")
    return replace(
        preferences,
        ascii=ascii_only
        if isinstance(ascii_only, bool) and not preferences.ascii_forced
        else preferences.ascii,
        keys={} if found or keys is None else keys,
        faults=(*preferences.faults, *(f"{file}: {fault}" for fault in found)),
        theme=preferences.theme
        if preferences.theme_forced
        else theme_named(tree.get("theme")) or preferences.theme,
    )


_THEME_LINE = re.compile(r"^theme[ \t]*=.*$", re.MULTILINE)
_FIRST_TABLE = re.compile(r"^[ \t]*\[", re.MULTILINE)


def keep_theme(file: Path, name: str) -> None:
    """Write the name of a theme into the user's file, and leave the rest of the file as it is.

    Raises:
        OSError: the file cannot be written.
        ValueError: the file is not a valid TOML or no UTF-8, so it is left as it is.
    """
    try:
        text = file.read_text(encoding="utf-8")
        tomllib.loads(text)
    except FileNotFoundError:
        text = ""
    line = f'theme = "{name}"'
    table = _FIRST_TABLE.search(text)
    top, rest = (text[: table.start()], text[table.start() :]) if table else (text, "")
    known = _THEME_LINE.search(top) is not None
    top = _THEME_LINE.sub(line, top, count=1) if known else f"{line}\n{top}"
    file.parent.mkdir(parents=True, exist_ok=True)
    written = file.with_name(f"{file.name}.new")
    written.write_text(top + rest, encoding="utf-8")
    written.replace(file)


def _keys(given: object) -> dict[str, str] | None:
    """Return the user's own keys as in `Preferences.keys`; None if they are not a table."""
    if not isinstance(given, dict):
        return None
    listed = ((id_, value if isinstance(value, list) else [value]) for id_, value in given.items())
    return {id_: ",".join(textual_key(str(name)) for name in names) for id_, names in listed}


def _faults_of_keys(keys: dict[str, str] | None) -> list[str]:
    if keys is None:
        return ['keys: expected a table [keys] with lines such as "run.pause" = "p"']
    return key_faults(keys)


def user_preferences() -> Preferences:
    """Read the preferences of this process's user from the environment and the user's file."""
    preferences = read_preferences(os.environ, locale.getpreferredencoding(False))
    try:
        file = config_file(os.environ)
        preferences = replace(with_file(preferences, file), file=file)
        return replace(preferences, first_time=not seen_file().exists())
    except (OSError, RuntimeError):  # the user has no home folder
        return preferences


def seen_file() -> Path:
    """Return the file that exists once the app has been opened on this machine.

    Raises:
        RuntimeError: the user has no home folder.
    """
    return state_folder() / "seen"


def note_seen() -> None:
    """Record that the app has been opened; a home that cannot be written is ignored."""
    with suppress(OSError, RuntimeError):
        seen_file().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        seen_file().touch()
