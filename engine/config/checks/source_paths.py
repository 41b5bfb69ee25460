"""Recognizes data sources that are patterns such as `data/*.jsonl`, and finds their files."""

from __future__ import annotations

import glob
import os
from collections import deque
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

from ...errors import ConfigError

HUB_FILE = "hf://datasets/"
"""Beginning of the name of files in a Hub dataset, such as `hf://datasets/org/name/a.jsonl`."""


def is_pattern(source: str) -> bool:
    """Whether a source is a pattern of local files, and not a file whose name looks like one."""
    if source.startswith(HUB_FILE):
        return False
    return glob.has_magic(source) and not Path(source).expanduser().exists()


def files_of_pattern(pattern: str) -> list[Path]:
    """Return the files whose names match a pattern, sorted; `**` matches any number of folders.

    A file that several links lead to, such as a link to a folder above, is returned once.

    Raises:
        ConfigError: A folder below `**` cannot be read.
    """
    found: dict[Path, Path] = {}
    for file in sorted(_matching(pattern), key=lambda one: (len(one.parts), one)):
        if file.is_file():
            found.setdefault(file.resolve(), file)
    return sorted(found.values())


def root_of_pattern(pattern: str) -> Path:
    """Return the folder in which all files of a pattern are: the parts before its first `*`."""
    path = Path(pattern).expanduser()
    fixed = takewhile(lambda part: not glob.has_magic(part), path.parts[:-1])
    return Path(*fixed)


def broken_links_of_pattern(pattern: str) -> list[Path]:
    """Return the links whose names match a pattern, but which lead to nothing.

    Raises:
        ConfigError: A folder below `**` cannot be read.
    """
    return sorted(one for one in _matching(pattern) if is_broken_link(one))


def is_broken_link(file: Path) -> bool:
    """Whether a path is a link that leads to nothing, or back to itself."""
    # A path through links to folders may be too long a chain of links, though its file exists.
    return file.is_symlink() and not (Path(os.path.realpath(file.parent)) / file.name).exists()


def _matching(pattern: str | Path) -> Iterator[Path]:
    """Yield the paths that match a pattern.

    Raises:
        ConfigError: A folder below `**` cannot be read.
    """
    path = Path(pattern).expanduser()
    if "**" not in path.parts:
        yield from map(Path, glob.iglob(str(path)))
        return
    place = path.parts.index("**")
    behind = path.parts[place + 1 :] or ("*",)
    for start in glob.iglob(str(Path(*path.parts[:place]))):
        for folder in _folders(Path(start)):
            yield from _matching(Path(glob.escape(str(folder)), *behind))


def _folders(start: Path) -> Iterator[Path]:
    """Yield a folder and those below it that are not hidden, each once however it is linked.

    The functions of glob would follow links that lead back again and again.

    Raises:
        ConfigError: A folder cannot be read.
    """
    known: set[str] = set()
    waiting = deque([start])
    while waiting:
        folder = waiting.popleft()
        if not folder.is_dir() or (real := os.path.realpath(folder)) in known:
            continue
        known.add(real)
        yield folder
        try:
            with os.scandir(folder) as found:
                names = sorted(one.name for one in found if one.is_dir())
        except OSError as error:
            raise ConfigError(
                f"{folder}: the folder cannot be read: {error.strerror}; give yourself access to "
                "it, or choose a pattern without it"
            ) from None
        waiting.extend(folder / one for one in names if not one.startswith("."))
