"""The configuration in a run's folder: as written, as resolved, and what was put over it."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from ..errors import FttuiError
from .layout import RunDirectory


class ConfigFiles(msgspec.Struct, frozen=True):
    """YAML texts; empty where a file cannot be read."""

    resolved: str
    source: str
    overrides: list[str]
    """`key=value` of the command line."""


def read_configs(run: RunDirectory) -> ConfigFiles:
    """What a run's folder has of it."""
    texts = []
    for file in (run.config, run.source_config):
        try:
            texts.append(file.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            texts.append("")
    overrides: list[str] = []
    with suppress(FttuiError):
        overrides = list(run.identity().overrides)
    return ConfigFiles(*texts, overrides)
