"""Reads the configuration kept in a run folder: source, resolved values and overrides."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ..errors import FttuiError
from ..protocol.requests import ConfigTexts
from .folder.open_folder import read_plain
from .run_dir import SMALL_FILE_BYTES, RunDirectory


def read_configs(run: RunDirectory, ref: int = 0) -> ConfigTexts:
    """Read the configuration texts of a run; what cannot be read is empty.

    `ref` is the number of the request that they answer.
    """
    overrides: list[str] = []
    with suppress(FttuiError):
        overrides = list(run.identity().overrides)
    return ConfigTexts(
        ref=ref, resolved=_text(run.config), source=_text(run.source_config), overrides=overrides
    )


def _text(file: Path) -> str:
    try:
        return read_plain(file, SMALL_FILE_BYTES).decode(errors="replace")
    except OSError:
        return ""
