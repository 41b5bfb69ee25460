"""A folder that is there as a whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import ConfigError, FttuiError
from ..run.files import free_bytes, sync_folder

_MARGIN_BYTES = 50_000_000
"""For tokenizer, model card and the file system."""


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder beside the target to write into, renamed to it when the body is through.

    Raises:
        ConfigError: the target exists and holds something.
        FttuiError: it cannot be written.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(
            f"{target} exists already; name another folder with --out, or take that one away"
        )
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target)
        partial.mkdir()
        yield partial
        _sync(partial)
        with suppress(FileNotFoundError):
            target.rmdir()
        partial.rename(target)
        sync_folder(target.parent)
    except OSError as error:
        raise FttuiError(
            f"{target} cannot be written: {error.strerror or error}; free some space, or name "
            "another folder with --out"
        ) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def require_space(folder: Path, need_bytes: int) -> None:
    """Refuse to begin what does not fit on the disk.

    Raises:
        FttuiError: naming what is needed and what is free.
    """
    free = free_bytes(folder)
    if free is not None and free < need_bytes + _MARGIN_BYTES:
        raise FttuiError(
            f"{folder.parent}: {free / 1e6:,.0f} MB free, about "
            f"{(need_bytes + _MARGIN_BYTES) / 1e6:,.0f} MB needed; free some disk space, or name a "
            "folder on another disk with --out"
        )


def _sweep(target: Path) -> None:
    """Take away what an export that was killed left beside the target."""
    prefix = f".{target.name}.partial-"
    for left in target.parent.glob(f"{prefix}*"):
        pid = left.name.removeprefix(prefix)
        if not pid.isdigit() or not Path(f"/proc/{pid}").exists():
            shutil.rmtree(left, ignore_errors=True)


def _sync(folder: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
