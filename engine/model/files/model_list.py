"""What the modules of transformers export, read from a cache when transformers is imported.

At each import transformers reads the source of every model it has, twice, to learn the names that
each module exports. That takes a tenth of a start. The result depends on these files alone, so it
is kept for as long as their names, sizes and times stay the same.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from ...run.files import write_atomically
from ...run.identity.hash_cache import SETTLED_NS

_MODULE = "transformers.utils.import_utils"
_FUNCTION = "define_import_structure"

Structure = dict[frozenset[str], dict[str, set[str]]]
"""Exported names by module, for each set of packages that the modules need."""


Parts = list[tuple[list[str], dict[str, list[str]]]]
"""For each set of needed packages, the exported names by module."""


class KeptStructure(msgspec.Struct, frozen=True):
    """The content of the cache."""

    stamp: str
    """Hash of the names, sizes and times of the files that it was read from."""
    parts: Parts
    digest: str
    """Hash of `parts`, by which a damaged file is noticed."""


def cache_file() -> Path:
    """Return the file of the cache, in the cache folder of the user.

    Raises:
        RuntimeError: `XDG_CACHE_HOME` is not set, and the user has no home folder.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fttui" / "transformers.json"


def keep_model_list() -> None:
    """Let the first import of transformers read its list of models from the cache, or fill it.

    Nothing happens if it is imported already, or if its version has no such function.
    """
    if _MODULE not in sys.modules and not any(isinstance(f, _AtImport) for f in sys.meta_path):
        sys.meta_path.insert(0, _AtImport())


class _AtImport(MetaPathFinder):
    """Finds one module as usual, and replaces a function of it once it is loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the specification of the module; None for any other name."""
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        loader: Any = spec.loader if spec else None
        if loader is not None:
            load = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                _replace(module)

            loader.exec_module = exec_module
        return spec


def _replace(module: Any) -> None:
    read = getattr(module, _FUNCTION, None)
    models = Path(module.__file__).parents[1] / "models"
    if read is None:
        return

    def structure(module_path: Any, prefix: str | None = None) -> Structure:
        path = Path(module_path)
        if models not in (path, path.parent) or path.suffix not in ("", ".py"):
            return read(module_path, prefix)  # type: ignore[no-any-return]  # of transformers
        found = kept_structure(models, lambda: read(module_path))
        if prefix is None:
            return found
        return {
            needed: {f"{prefix}.{name}": exported for name, exported in modules.items()}
            for needed, modules in found.items()
        }

    setattr(module, _FUNCTION, structure)


def kept_structure(models: Path, read: Callable[[], Structure]) -> Structure:
    """Return the exported names of all modules, from the cache if it has those of these files.

    A damaged cache is written again; one that cannot be written is done without.

    Args:
        models: the folder with the models.
        read: reads the files.
    """
    stamp, newest_ns = _stamp(models)
    with suppress(OSError, RuntimeError, msgspec.MsgspecError):
        kept = msgspec.json.decode(cache_file().read_bytes(), type=KeptStructure)
        if kept.stamp == stamp and kept.digest == _digest(kept.parts):
            return {
                frozenset(needed): {name: set(exported) for name, exported in modules.items()}
                for needed, modules in kept.parts
            }
    found = read()
    settled = time.time_ns() - newest_ns > SETTLED_NS
    if settled and (parts := _parts_of(found)) is not None:
        with suppress(OSError, RuntimeError):
            file = cache_file()
            file.parent.mkdir(parents=True, exist_ok=True)
            kept = KeptStructure(stamp, parts, _digest(parts))
            write_atomically(file, msgspec.json.encode(kept))
    return found


def _parts_of(found: Any) -> Parts | None:
    """Return a structure as it is kept; None if another version of transformers has another form.

    Such a structure is used as it is and read again at the next start.
    """
    try:
        parts = [
            (sorted(needed), {name: sorted(exported) for name, exported in modules.items()})
            for needed, modules in found.items()
        ]
        read = {
            frozenset(needed): {name: set(exported) for name, exported in modules.items()}
            for needed, modules in msgspec.convert(parts, Parts)
        }
    except (AttributeError, TypeError, msgspec.ValidationError):
        return None
    return parts if read == found else None


def _digest(parts: Parts) -> str:
    return sha256(msgspec.json.encode(parts)).hexdigest()


def _stamp(models: Path) -> tuple[str, int]:
    """Return the hash of the names, sizes and times of all files, and the time of the newest."""
    files = sorted(_files(str(models)))
    text = "\n".join(f"{path}\t{size}\t{time_ns}" for path, size, time_ns in files)
    return sha256(text.encode()).hexdigest(), max((one[2] for one in files), default=0)


def _files(folder: str) -> Iterator[tuple[str, int, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name != "__pycache__":
                    yield from _files(entry.path)
            elif entry.name.endswith(".py"):
                found = entry.stat()
                yield entry.path, found.st_size, found.st_mtime_ns
