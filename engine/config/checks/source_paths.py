"""Recognizes data sources that are patterns such as `data/*.jsonl`, and finds their files."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from pathlib import Path

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
    """
    found: dict[Path, Path] = {}
    for file in sorted(_matching(pattern), key=lambda one: (len(one.parts), one)):
        if file.is_file():
            found.setdefault(file.resolve(), file)
    return sorted(found.values())


def broken_links_of_pattern(pattern: str) -> list[Path]:
    """Return the links whose names match a pattern, but which lead to nothing."""
    return sorted(one for one in _matching(pattern) if is_broken_link(one))


def is_broken_link(file: Path) -> bool:
    """Whether a path is a link that leads to nothing, or back to itself."""
    return file.is_symlink() and not file.exists()


def _matching(pattern: str) -> Iterator[Path]:
    return map(Path, glob.iglob(str(Path(pattern).expanduser()), recursive=True))
