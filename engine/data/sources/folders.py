"""Find the data files of a folder by split, and refuse broken links."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from urllib.parse import unquote

from ...config.checks import ACCEPTED_FILES, FILE_SUFFIXES, is_broken_link
from ...errors import DataError
from .splits import (
    chosen_of,
    files_of_card,
    files_of_state,
    missing_shards,
    refuse_two_series,
    variants_of,
    word_of,
)

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
    *(".jl", ".psv", ".json5", ".data", ".dat", ".ipc", ".arrows", ".tfrecord", ".tfrecords"),
    *(".gzip", ".zstd", ".lzma", ".lz4", ".br", ".bak", ".old", ".orig", ".tmp", ".part"),
    *(".incomplete", ".crdownload"),
)
"""Endings of files that may hold data which cannot be read, or are not chosen by their ending."""
_NUMBERED = re.compile(r"(part|data|shard|train|test|valid|dev)[-_]?\d+([-_]\w+)*", re.I)
"""Names without an ending that programs give to the parts of a data set."""
_UNFINISHED = "_temporary"
"""Folder of files that Spark has not finished, or has written twice."""
_TABLES = {"_delta_log": "Delta Lake", ".hoodie": "Hudi", "metadata/*.metadata.json": "Iceberg"}
"""Patterns of files by which tables are recognized whose folders also hold deleted rows."""
_PARTITION = re.compile(r"([A-Za-z_]\w*)=(.*)")
"""Name of a folder of which all rows have one value in a column, such as `lang=en`."""
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class FolderFiles:
    """The data files of a split that are read from a folder, and the files that are not read."""

    read: list[Path]
    """Files of the split, in their order."""
    unread: list[Path]
    """Files of no split or of another kind, links to folders, and second links to a file."""
    of_other_splits: list[Path] = field(default_factory=list)
    missing: list[Path] = field(default_factory=list)
    """Files that are missing by the numbers in the names of the others."""
    variants: list[Path] = field(default_factory=list)
    """Files that are read, and whose names have more words than the split."""


def files_of_split(folder: Path, split: str) -> FolderFiles:
    """Return the data files of a split of a folder.

    They are those that its dataset card names, or those whose names have the split. If no file is
    named after the split `train`, it consists of the files without a split.

    Raises:
        DataError: There are no data files, none of the split, a link to a missing file, a folder
            that cannot be read, several data sets, or a table with deleted rows.
    """
    visible = _visible(folder)
    _refuse_table_formats(folder, split)
    refuse_broken_links(
        [one for one in visible if is_data(one) and is_broken_link(one)], str(folder)
    )
    unfinished = {one for one in visible if _UNFINISHED in one.relative_to(folder).parts}
    files = [one for one in visible if one not in unfinished and one.is_file()]
    other = [one for one in visible if one in unfinished and is_data(one)]
    other += [one for one in files if _may_be_data(one)]
    other += [one for one in visible if one.is_dir()]  # only links are listed, and not followed
    data, stale = _without_stale([one for one in files if is_data(one)])
    if not data:
        raise _no_data(folder, other + stale)
    of_card = files_of_card(folder, split)
    chosen = of_card or chosen_of(data, folder, split)
    rest = difference(data, chosen)
    unsplit = [one for one in rest if word_of(one.relative_to(folder)) in (None, split)]
    read, texts = _of_one_kind(chosen)
    once, again = _once(read)
    refuse_two_series(once)
    return FolderFiles(
        once,
        unsplit + texts + again + stale + other,
        difference(rest, unsplit),
        missing_shards(once),
        [] if of_card else variants_of(once),
    )


def _without_stale(files: list[Path]) -> tuple[list[Path], list[Path]]:
    """Return (files, Arrow files that an earlier `save_to_disk` has left in their folder)."""
    states = {folder: files_of_state(folder) for folder in {one.parent for one in files}}
    stale = [
        one
        for one in files
        if one.suffix == ".arrow"
        and (names := states[one.parent]) is not None
        and one.name not in names
    ]
    return difference(files, stale), stale


def difference(files: Iterable[Path], others: Iterable[Path]) -> list[Path]:
    """Return the files that are not among the others, in their order."""
    known = set(others)
    return [one for one in files if one not in known]


def _visible(folder: Path) -> list[Path]:
    """Return the files of a folder and its subfolders, and links to folders, sorted.

    Hidden ones are left out, and those whose names begin with two underscores.

    Raises:
        DataError: A folder cannot be read.
    """

    def refuse(error: OSError) -> None:
        raise DataError(
            f"{error.filename}: the folder cannot be read: {error.strerror}; give yourself access "
            "to it, or name the files with a pattern"
        )

    found: list[Path] = []
    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [one for one in folders if not one.startswith((".", "__"))]
        links = [one for one in folders if os.path.islink(os.path.join(parent, one))]
        found += [Path(parent, one) for one in (*names, *links) if not one.startswith((".", "__"))]
    return sorted(found)


def _refuse_table_formats(folder: Path, split: str) -> None:
    """Raise if the folder is a table whose files also hold deleted rows.

    Raises:
        DataError: It is one.
    """
    for pattern, table in _TABLES.items():
        if any(folder.glob(pattern)):
            raise DataError(
                f"{folder}: a table of {table}, whose files may hold rows that were deleted or "
                f"replaced; write its rows to a Parquet file, such as {split}.parquet"
            )


def _no_data(folder: Path, other: list[Path]) -> DataError:
    hint = ""
    if other:
        hint = f"; found {', '.join(one.name for one in other[:5])}"
    if parts := [one for one in other if _NUMBERED.fullmatch(one.name)]:
        hint += f", which a pattern reads whatever their endings: {parts[0].parent}/*"
    return DataError(f"{folder}: no data files in this folder{hint}; accepted are {ACCEPTED_FILES}")


def _may_be_data(file: Path) -> bool:
    name = file.name.lower()
    if is_data(file) or _PAPERS.match(name):
        return False
    return name.endswith(_UNREADABLE) or _NUMBERED.fullmatch(name) is not None


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


def missing_of_pattern(files: list[Path], pattern: str) -> list[Path]:
    """Return the files that are missing by the numbers of the others, and that the pattern fits."""
    name = Path(pattern).name
    return [one for one in missing_shards(files) if fnmatch(one.name, name)]


def partition_values(file: Path, root: Path) -> dict[str, str | None]:
    """Return the columns that the names of the folders between a file and a root give its rows.

    Such as `{"lang": "en"}` for `lang=en/part-0.parquet`: Spark and Hive write these columns only
    into the names.
    """
    if not file.is_relative_to(root):
        return {}
    found = (_PARTITION.fullmatch(part) for part in file.relative_to(root).parts[:-1])
    return {one[1]: None if one[2] == _NO_VALUE else unquote(one[2]) for one in found if one}


def _once(files: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """Return (each file once, further links to them)."""
    known: dict[Path, Path] = {}
    for file in sorted(files, key=lambda one: (one.is_symlink(), one)):
        known.setdefault(file.resolve(), file)
    once = sorted(known.values())
    return once, difference(files, once)


def _of_one_kind(files: list[Path]) -> tuple[list[Path], list[Path]]:
    """Return (files to read, text files left out).

    Text files are read only if no file has columns.
    """
    texts = [one for one in files if any(ending in _TEXT for ending in one.suffixes[-2:])]
    tables = difference(files, texts)
    return (tables, texts) if tables else (texts, [])
