"""The content of the training and evaluation sources of a run: its files and their hashes."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path

from ...config.checks import files_of_pattern, is_pattern
from ...config.schema import STDLIB_PAIRS, RunConfig
from .content import Content, hash_parts
from .hash_cache import HashCache

HubRevision = Callable[[str], str]
"""Returns the commit hash of a hub dataset; raises an OSError or ValueError if it is unknown."""
MOST_PARTS = 1000
"""Files of a folder that are listed one by one; a larger folder is one part."""


def data_content(config: RunConfig, cache: HashCache, hub_revision: HubRevision | None) -> Content:
    """Return the content of all sources, with one hash over them in their order.

    The hash does not depend on the folders in which the sources are, nor on the name of a source
    that is a single file.

    Args:
        config: The run.
        cache: Hashes of files.
        hub_revision: Finds the revision of a hub dataset; without it, the content of hub datasets
            is unknown.
    """
    sources = dict(_named_sources(config))
    parts: dict[str, str] = {}
    hashes: dict[str, str] = {}
    unknown: list[str] = []
    for use, source in sources.items():
        try:
            found = _source_parts(source, cache, hub_revision)
        except (OSError, ValueError) as error:
            unknown.append(str(error))
            continue
        hashes[use] = _whole(found)
        parts |= {f"{use} {name}": value for name, value in found.items()}
    return Content(
        hash="" if unknown else hash_parts(hashes),
        parts=parts,
        sources=list(dict.fromkeys(sources.values())),
        unknown="; ".join(unknown),
    )


def local_files(config: RunConfig) -> list[Path]:
    """Return the local files of all sources."""
    return [file for _, source in _named_sources(config) for file in _files(source)]


def _files(source: str) -> list[Path]:
    if is_pattern(source):
        return files_of_pattern(source)
    path = Path(source).expanduser()
    return [path] if path.is_file() else folder_files(path)


def _named_sources(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Yield the use of each source, such as `train`, `train 2` or `eval`, with the source."""
    for number, source in enumerate(config.data.sources, start=1):
        yield ("train" if number == 1 else f"train {number}"), source.path
    if config.data.eval is not None:
        yield "eval", config.data.eval


def _source_parts(
    source: str, cache: HashCache, hub_revision: HubRevision | None
) -> dict[str, str]:
    """Return the parts of one source by name, each with its hash, version or revision.

    A single file is named without its folder.

    Raises:
        OSError: a file cannot be read.
        ValueError: the revision of a hub dataset is not known.
    """
    if source == STDLIB_PAIRS:
        return {STDLIB_PAIRS: f"Python {platform.python_version()}"}
    if is_pattern(source) and (files := files_of_pattern(source)):
        name = Path(source).name
        found = {f"{name}/{n} {one.name}": cache.hash(one) for n, one in enumerate(files)}
        return found if len(found) <= MOST_PARTS else {f"{name}/": hash_parts(found)}
    path = Path(source).expanduser()
    if path.is_file():
        return {path.name: cache.hash(path)}
    if path.is_dir():
        files = folder_files(path)
        found = {f"{path.name}/{_name(file, path)}": cache.hash(file) for file in files}
        return found if len(found) <= MOST_PARTS else {f"{path.name}/": hash_parts(found)}
    if hub_revision is None:
        raise ValueError(f"the revision of {source} is known only once the data is loaded")
    return {source: hub_revision(source)}


def _whole(parts: dict[str, str]) -> str:
    """Return the hash of one source, without the name of a single file or of the folder itself."""
    if len(parts) == 1:
        return next(iter(parts.values()))
    return hash_parts({name.partition("/")[2]: value for name, value in parts.items()})


def folder_files(folder: Path) -> list[Path]:
    """Return the files of a folder and its subfolders, without hidden ones, sorted by name.

    Links to folders are not followed, because the reading of data does not follow them.
    """
    found: list[Path] = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(parent, name) for name in names if not name.startswith(".")]
    return sorted(file for file in found if file.is_file())


def _name(file: Path, folder: Path) -> str:
    """Return the name of a file in a folder; bytes that are not UTF-8 are replaced."""
    return os.fsencode(file.relative_to(folder)).decode(errors="replace")
