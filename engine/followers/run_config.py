"""The configuration of a run as plain values, and its sections about trackers and alerts."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from ..config.schema import AlertsConfig, BenchmarksConfig, TrackingConfig
from ..config.yaml_tree import parse_yaml
from ..errors import FttuiError
from ..run.folder.open_folder import read_plain
from ..run.run_dir import SMALL_FILE_BYTES, RunDirectory

_Section = TypeVar("_Section", AlertsConfig, TrackingConfig, BenchmarksConfig)


def config_of(run: RunDirectory) -> dict[str, object]:
    """Return the resolved configuration of a run as plain values, whatever version wrote it.

    Raises:
        FttuiError: it cannot be read.
    """
    try:
        text = read_plain(run.config, SMALL_FILE_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise FttuiError(f"the configuration of {run.id} cannot be read: {error}") from None
    plain = parse_yaml(text, run.config.name, []).plain()
    return plain if isinstance(plain, dict) else {}


def tracking_of(config: dict[str, object]) -> TrackingConfig:
    """Return the section `tracking` of a configuration; the defaults if it has no valid one."""
    return _section(config, "tracking", TrackingConfig)


def alerts_of(config: dict[str, object]) -> AlertsConfig:
    """Return the section `alerts` of a configuration; the defaults if it has no valid one."""
    return _section(config, "alerts", AlertsConfig)


def benchmarks_of(config: dict[str, object]) -> BenchmarksConfig:
    """Return the section `eval.benchmarks`; the defaults, without tasks, if it is not valid."""
    evaluation = config.get("eval")
    known = evaluation if isinstance(evaluation, dict) else {}
    return _section(known, "benchmarks", BenchmarksConfig)


def _section(config: dict[str, object], name: str, kind: type[_Section]) -> _Section:
    try:
        return msgspec.convert(config.get(name, {}), kind)
    except msgspec.ValidationError:
        return kind()
