"""Find the data files of a folder by split, and refuse broken links."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ...config.checks import ACCEPTED_FILES, FILE_SUFFIXES, is_broken_link
from ...errors import DataError

_SPLITS = {
    "train": re.compile(r"train|training", re.I),
    "validation": re.compile(r"val|valid|validation|dev|eval", re.I),
    "test": re.compile(r"test|testing", re.I),
}
_NOT_DATA = frozenset(
    {
        *("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"),
        *("croissant.json", "schema.json", "package.json", "package-lock.json", "tsconfig.json"),
        *("config.json", "generation_config.json", "adapter_config.json", "trainer_state.json"),
        *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json"),
        *("added_tokens.json", "vocab.txt", "merges.txt", "cmakelists.txt", "robots.txt"),
        *("model.safetensors.index.json", "preprocessor_config.json", "manifest.json"),
    }
)
"""Files that lie beside data in folders of datasets, models and programs."""
_PAPERS = re.compile(
    r"(readme|licen[cs]e|notice|copying|changelog|changes|citation|authors|contributing|"
    r"contributors|code_of_conduct|security|requirements|constraints|cache-)\b|cache-",
    re.I,
)
"""Beginnings of the names of files about a project, and of caches of `datasets`."""
_TEXT = (".txt", ".md")
_UNREADABLE = (
    *(".xlsx", ".xls", ".ods", ".docx", ".pdf", ".xml", ".html", ".yaml", ".yml", ".orc"),
    *(".pkl", ".pickle", ".pt", ".pth", ".npy", ".npz", ".h5", ".hdf5", ".mat", ".avro"),
    *(".db", ".sqlite", ".sqlite3", ".zip", ".tar", ".tgz", ".tar.gz", ".7z", ".rar"),
)
"""Endings of files that may hold data which cannot be read."""


@dataclass(frozen=True)
class FolderFiles:
    """The data files of a split that are read from a folder, and the files that are not read."""

    read: list[Path]
    """Files of the split, in their order."""
    unread: list[Path]
    """Files that belong to no split or are of another kind, and links to folders."""


def files_of_split(folder: Path, split: str) -> FolderFiles:
    """Return the data files of a split of a folder.

    If no file is named after the split `train`, it consists of the files without a split.

    Raises:
        DataError: There are no data files, none of the split, or a link to a missing file.
    """
    visible = [one for one in sorted(folder.rglob("*")) if _is_visible(one, folder)]
    refuse_broken_links(
        [one for one in visible if is_data(one) and is_broken_link(one)], str(folder)
    )
    files = [one for one in visible if one.is_file()]
    other = [one for one in files if one.name.lower().endswith(_UNREADABLE)]
    other += [one for one in visible if one.is_symlink() and one.is_dir()]  # links are not followed
    data = [one for one in files if is_data(one)]
    if not data:
        found = f"; found {', '.join(one.name for one in other[:5])}" if other else ""
        raise DataError(
            f"{folder}: no data files in this folder{found}; accepted are {ACCEPTED_FILES}"
        )
    by_split = {one: _split_of(one.relative_to(folder)) for one in data}
    chosen = [one for one in data if by_split[one] == split]
    if not chosen and split == "train":
        chosen = [one for one in data if by_split[one] is None]
    if not chosen:
        raise _no_split(folder, split, {found for found in by_split.values() if found})
    unsplit = [one for one in data if by_split[one] is None and one not in chosen]
    read, texts = _of_one_kind(chosen)
    return FolderFiles(read, unsplit + texts + other)


def _no_split(folder: Path, split: str, found: set[str]) -> DataError:
    return DataError(
        f"{folder}: no files of split {split}; found splits: {', '.join(sorted(found)) or 'none'}. "
        "Set data.train_split and data.eval_split, or name a file"
    )


def is_data(file: Path) -> bool:
    """Whether the name of a file in a folder is that of a data file."""
    name = file.name.lower()
    return name.endswith(FILE_SUFFIXES) and name not in _NOT_DATA and _PAPERS.match(name) is None


def refuse_broken_links(links: list[Path], source: str) -> None:
    """Raise if links lead to missing files, because their records would be lost unnoticed.

    Raises:
        DataError: There is such a link.
    """
    if links:
        raise DataError(
            f"{links[0]}: a link to {links[0].readlink()}, which does not exist "
            f"({len(links)} such links in {source}); fetch the file, or remove the link"
        )


def _is_visible(file: Path, folder: Path) -> bool:
    return not any(part.startswith((".", "__")) for part in file.relative_to(folder).parts)


def _of_one_kind(files: list[Path]) -> tuple[list[Path], list[Path]]:
    """Return (files to read, text files left out).

    Text files are read only if no file has columns.
    """
    texts = [one for one in files if any(ending in _TEXT for ending in one.suffixes[-2:])]
    tables = [one for one in files if one not in texts]
    return (tables, texts) if tables else (texts, [])


def _split_of(file: Path) -> str | None:
    """Return the split that the name of a file or of its folder has, or None."""
    words = re.split(r"[^A-Za-z]+", str(file.with_suffix("")))
    for name, pattern in _SPLITS.items():
        if any(pattern.fullmatch(word) for word in words):
            return name
    return None
