"""Creates a folder atomically and checks for free disk space."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import ConfigError, FttuiError
from ..run.files import free_bytes, sync_folder

_MARGIN_BYTES = 50_000_000
"""Space for the tokenizer, the model card and the file system."""


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder, which is renamed to the target when the body succeeds.

    Raises:
        ConfigError: the target exists and is not an empty folder.
        FttuiError: the folder cannot be written.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(
            f"{target} exists already; choose another folder with --out, or remove that one"
        )
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(target)
        partial.mkdir()
        yield partial
        _sync(partial)
        with suppress(FileNotFoundError):
            target.rmdir()
        partial.rename(target)
        sync_folder(target.parent)
    except OSError as error:
        raise FttuiError(
            f"{target} cannot be written: {error.strerror or error}; free some disk space, or "
            "choose another folder with --out"
        ) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def require_space(folder: Path, need_bytes: int) -> None:
    """Check that a folder's disk has `need_bytes` and 50 MB more, if its free space is known.

    Raises:
        FttuiError: it has not; the text names the space needed and the space free.
    """
    free = free_bytes(folder)
    if free is not None and free < need_bytes + _MARGIN_BYTES:
        raise FttuiError(
            f"{folder.parent}: {free / 1e6:,.0f} MB free, about "
            f"{(need_bytes + _MARGIN_BYTES) / 1e6:,.0f} MB needed; free some disk space, or "
            "choose a folder on another disk with --out"
        )


def _remove_abandoned(target: Path) -> None:
    """Remove temporary folders of killed exports to the same target."""
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
