"""Recognizes data sources that are patterns such as `data/*.jsonl`, and finds their files."""

from __future__ import annotations

import glob
from pathlib import Path


def is_pattern(source: str) -> bool:
    """Whether a source is a pattern of file names, not a name that has such characters."""
    return glob.has_magic(source) and not Path(source).expanduser().exists()


def files_of_pattern(pattern: str) -> list[Path]:
    """Return the files whose names match a pattern, sorted; `**` matches folders, also none."""
    found = map(Path, glob.iglob(str(Path(pattern).expanduser()), recursive=True))
    return sorted(file for file in found if file.is_file())
