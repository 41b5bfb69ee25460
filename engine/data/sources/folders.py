"""The data files of a folder, by split."""

from __future__ import annotations

import re
from pathlib import Path

from ...config.checks import FILE_SUFFIXES
from ...errors import DataError

_SPLITS = {
    "train": re.compile(r"train|training", re.I),
    "validation": re.compile(r"val|valid|validation|dev|eval", re.I),
    "test": re.compile(r"test|testing", re.I),
}
_NOT_DATA = frozenset(
    {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json", "config.json"}
)


def files_of_split(folder: Path, split: str) -> list[Path]:
    """Return the data files of a split in their order; a folder without splits is all `train`.

    Raises:
        DataError: The folder has no data files, or none of the split.
    """
    files = [one for one in sorted(folder.rglob("*")) if _is_data(one, folder)]
    if not files:
        raise DataError(
            f"{folder}: no data files in this folder; accepted are {', '.join(FILE_SUFFIXES)}"
        )
    by_split = {one: _split_of(one.relative_to(folder)) for one in files}
    named = {found for found in by_split.values() if found is not None}
    chosen = [one for one in files if by_split[one] == split]
    if not chosen and split == "train":
        chosen = [one for one in files if by_split[one] is None]
    if not chosen:
        raise DataError(
            f"{folder}: no files of split {split}; found splits: "
            f"{', '.join(sorted(named)) or 'none'}. Set data.train_split and data.eval_split, or "
            "name a file"
        )
    return chosen


def _is_data(file: Path, folder: Path) -> bool:
    hidden = any(part.startswith((".", "__")) for part in file.relative_to(folder).parts)
    return (
        file.is_file()
        and not hidden
        and file.name not in _NOT_DATA
        and file.name.lower().endswith(FILE_SUFFIXES)
        and not file.name.lower().startswith(("readme", "license"))
    )


def _split_of(file: Path) -> str | None:
    """Return the split that the name of a file or of its folder has, or None."""
    words = re.split(r"[^A-Za-z]+", str(file.with_suffix("")))
    for name, pattern in _SPLITS.items():
        if any(pattern.fullmatch(word) for word in words):
            return name
    return None
