"""The splits of a folder: what its dataset card names, and what the names of its files say."""

from __future__ import annotations

import glob
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import yaml

from ...config.sections.file_endings import without_ending
from ...errors import DataError

_WORDS = {
    "train": re.compile(r"train|training", re.I),
    "validation": re.compile(r"val|valid|validation|dev|eval", re.I),
    "test": re.compile(r"test|testing", re.I),
}
_SHARD = re.compile(r"(.+)-(\d{2,})-of-(\d{2,})(-[0-9a-f]{16})?")
"""The name of one of several files of a split, such as `train_sft-00000-of-00003`."""
_MOST_SHARDS = 100_000
"""Largest number of files that a name is taken to count."""
_SPLIT_NAME = re.compile(r"\w+(\.\w+)*")
_CARD = re.compile(r"---\s*\n(.*?)\n---\s*(\n|$)", re.S)
"""The part of a dataset card that programs read."""


def word_of(file: Path) -> str | None:
    """Return the split that a word in the name of a file or of its folder says, or None.

    Args:
        file: The path of the file inside the folder that is the source.
    """
    words = re.split(r"[^A-Za-z]+", str(file.with_suffix("")))
    for name, pattern in _WORDS.items():
        if any(pattern.fullmatch(word) for word in words):
            return name
    return None


def chosen_of(files: Sequence[Path], folder: Path, split: str) -> list[Path]:
    """Return the files of a split by their names; those without a split if none is named `train`.

    Raises:
        DataError: No file is of the split, or files of several splits could be meant.
    """
    inside = {file: file.relative_to(folder) for file in files}
    exact = {file: _exact_of(one, folder) for file, one in inside.items()}
    words = {file: word_of(one) for file, one in inside.items()}
    chosen = [
        file
        for file in files
        if exact[file] == split
        or (exact[file] is None and (words[file] == split or _is_named(inside[file], split)))
    ]
    if chosen:
        return chosen
    chosen = [file for file in files if words[file] == split]
    if len(names := sorted({name for file in chosen if (name := exact[file])})) > 1:
        raise DataError(
            f"{folder}: several splits could be meant by {split}: {', '.join(names)}; set "
            "data.train_split (or data.eval_split) to one of them, or name the files with a pattern"
        )
    if not chosen and split == "train":
        chosen = [file for file in files if words[file] is None and exact[file] is None]
    if not chosen:
        raise no_split(folder, split, {exact[file] or words[file] or "" for file in files})
    return chosen


def no_split(folder: Path, split: str, found: Iterable[str]) -> DataError:
    """Return the error that a folder has no files of a split, with those that it has."""
    return DataError(
        f"{folder}: no files of split {split}; found splits: "
        f"{', '.join(sorted(set(found) - {''})) or 'none'}. Set data.train_split and "
        "data.eval_split, or name a file"
    )


def _exact_of(file: Path, folder: Path) -> str | None:
    """Return the whole name of the split of a file, or None if its name is not so regular.

    It is the folder of a split that `DatasetDict.save_to_disk` writes, or what precedes the number
    in the name of a file that `push_to_hub` writes.
    """
    if (folder / "dataset_dict.json").is_file():
        return file.parts[0]
    found = _SHARD.fullmatch(without_ending(file.name))
    if found is None or word_of(Path(found[1])) is None:
        return None
    return found[1] if _SPLIT_NAME.fullmatch(found[1]) else None


def _before_number(file: Path) -> str:
    """Return the name of a file without its ending, and without the number of a shard."""
    name = without_ending(file.name)
    found = _SHARD.fullmatch(name)
    return found[1] if found else name


def _is_named(file: Path, split: str) -> bool:
    return split in (*file.parts[:-1], _before_number(file))


def variants_of(files: Sequence[Path]) -> list[Path]:
    """Return the files with more words in their names than other files of the same split.

    Such as `train_socratic.jsonl` beside `train.jsonl`, which may have the same records with other
    answers. Files of which only the folder names the split are not among them.
    """
    more: dict[Path, bool] = {}
    for file in files:
        words = [one for one in re.split(r"[^A-Za-z]+", _before_number(file)) if one]
        named = [one for one in words if any(kind.fullmatch(one) for kind in _WORDS.values())]
        if named:
            more[file] = len(words) > len(named)
    plain = {file.parent for file, longer in more.items() if not longer}
    return [file for file, longer in more.items() if longer and file.parent in plain]


class _Sharded(NamedTuple):
    """What the names of the files of one numbered series have in common."""

    folder: Path
    start: str
    ending: str
    total: str
    """Number of files, as it is written in the names."""


def _series(files: Sequence[Path]) -> dict[_Sharded, set[int]]:
    """Return the numbers of the files of each numbered series."""
    numbers: dict[_Sharded, set[int]] = defaultdict(set)
    for file in files:
        name = without_ending(file.name)
        if found := _SHARD.fullmatch(name):
            ending = file.name.removeprefix(name)
            numbers[_Sharded(file.parent, found[1], ending, found[3])].add(int(found[2]))
    return numbers


def missing_shards(files: Sequence[Path]) -> list[Path]:
    """Return the files that are missing by the numbers in the names of the others."""
    return [
        one.folder / f"{one.start}-{number:0{len(one.total)}}-of-{one.total}{one.ending}"
        for one, present in _series(files).items()
        if int(one.total) <= _MOST_SHARDS
        for number in _absent(present, int(one.total))
    ]


def refuse_two_series(files: Sequence[Path]) -> None:
    """Raise if two series differ only in their number of files: their rows would be read twice.

    Raises:
        DataError: There are such series.
    """
    known: dict[tuple[Path, str, str], str] = {}
    for one in _series(files):
        count = known.setdefault(one[:3], one.total)
        if count != one.total:
            raise DataError(
                f"{one.folder}: has files of two versions of {one.start}: of {count} and of "
                f"{one.total} files; remove those of the older one, or name the files with a "
                f"pattern, such as data.train: {one.folder}/{one.start}-*-of-{count}*"
            )


def files_of_state(folder: Path) -> set[str] | None:
    """Return the names of the files of a dataset that `save_to_disk` has written to a folder.

    None if the folder has no such dataset.
    """
    try:
        state = json.loads((folder / "state.json").read_bytes())
        return {str(one["filename"]) for one in state["_data_files"]}
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _absent(present: set[int], count: int) -> Iterator[int]:
    first = 1 if count in present and 0 not in present else 0
    return (one for one in range(first, first + count) if one not in present)


@dataclass(frozen=True)
class _Configuration:
    """One of the data sets that a dataset card describes."""

    name: str
    default: bool
    patterns: dict[str, list[str]]
    """Patterns of files by split."""

    def files(self, folder: Path, split: str) -> list[Path]:
        """Return the files of a split that exist."""
        found = {
            folder / name
            for pattern in self.patterns.get(split, ())
            for name in glob.iglob(pattern, root_dir=folder, recursive=True)
        }
        inside = {one for path in found if path.is_dir() for one in path.rglob("*")}
        return sorted(one for one in found | inside if one.is_file())


def files_of_card(folder: Path, split: str) -> list[Path] | None:
    """Return the files of a split that the dataset card of a folder (README.md) names.

    None if it names none; configurations without any file in the folder do not count.

    Raises:
        DataError: The card names several data sets, or no file of the split.
    """
    named = [
        one
        for one in _configurations(folder)
        if any(one.files(folder, name) for name in one.patterns)
    ]
    if not named:
        return None
    chosen = next((one for one in named if one.default), named[0] if len(named) == 1 else None)
    if chosen is None:
        example = next(one for one in named[0].patterns.values() if one)[0]
        raise DataError(
            f"{folder}: the folder has {len(named)} data sets by its README.md: "
            f"{', '.join(one.name for one in named)}; name the files of one with a pattern, such "
            f"as data.train: {folder / example}, or those of all, such as {folder}/**/*"
            f"{Path(example).suffix or '.parquet'}"
        )
    if not (files := chosen.files(folder, split)):
        raise no_split(folder, split, chosen.patterns)
    return files


def _configurations(folder: Path) -> list[_Configuration]:
    """Return the data sets that the card of a folder describes; none if it cannot be read."""
    try:
        text = (folder / "README.md").read_text(encoding="utf-8-sig")
        found = _CARD.match(text)
        card = yaml.safe_load(found[1]) if found else None
    except (OSError, ValueError, yaml.YAMLError):
        return []
    listed = card.get("configs") if isinstance(card, dict) else None
    return [
        _Configuration(
            str(one.get("config_name", "default")),
            one.get("default") is True or one.get("config_name", "default") == "default",
            {name: patterns for name, patterns in _patterns(one) if patterns},
        )
        for one in (listed if isinstance(listed, list) else [])
        if isinstance(one, dict) and one.get("data_files")
    ]


def _patterns(data_set: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Yield (split, patterns of its files) of a data set of a card."""
    files = data_set["data_files"]
    base = str(data_set.get("data_dir") or "").strip("/")
    by_split: dict[str, list[str]] = defaultdict(list)
    if isinstance(files, dict):
        pairs = list(files.items())
    else:
        parts = files if isinstance(files, list) else [files]
        pairs = [
            (part.get("split", "train"), part.get("path"))
            if isinstance(part, dict)
            else ("train", part)
            for part in parts
        ]
    for split, paths in pairs:
        for path in paths if isinstance(paths, list) else [paths]:
            pattern = f"{base}/{path}" if base else path
            if isinstance(path, str) and _is_inside(pattern):
                by_split[str(split)].append(pattern)
    yield from by_split.items()


def _is_inside(pattern: str) -> bool:
    """Whether a pattern stays in its folder: a card may come from somebody else."""
    path = PurePath(pattern)
    return not path.is_absolute() and ".." not in path.parts
