"""Reads the configuration kept in a run folder: source, resolved values and overrides."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ..errors import FttuiError
from ..protocol.requests import ConfigTexts
from .run_dir import RunDirectory


def read_configs(run: RunDirectory, ref: int = 0) -> ConfigTexts:
    """Read the configuration texts of a run; a file that cannot be read gives an empty text."""
    overrides: list[str] = []
    with suppress(FttuiError):
        overrides = list(run.identity().overrides)
    return ConfigTexts(
        ref=ref, resolved=_text(run.config), source=_text(run.source_config), overrides=overrides
    )


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
