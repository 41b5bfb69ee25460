"""What the hub needs of the configuration of its run, which a resume may replace."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from ..config.sections.outward import AgentsConfig
from ..config.yaml_tree import parse_yaml
from ..errors import FttuiError
from ..run.folder.open_folder import read_plain
from ..run.run_dir import SMALL_FILE_BYTES, RunDirectory

_DEFAULT_IDLE_S = 600.0
_log = logging.getLogger("hub")


def idle_seconds(run: RunDirectory) -> float:
    """Return `hub.idle_s` of the run's configuration; 600 if the configuration cannot be read."""
    try:
        return float(_section(run, "hub")["idle_s"])
    except (OSError, FttuiError, KeyError, TypeError, ValueError):
        return _DEFAULT_IDLE_S


def agent_limits(run: RunDirectory) -> AgentsConfig:
    """Return `agents` of the run's configuration.

    The defaults if an older version wrote the configuration, which then lacks the section; agents
    may only read if the section cannot be read.
    """
    try:
        return msgspec.convert(_section(run, "agents"), AgentsConfig)
    except KeyError:
        return AgentsConfig()
    except (OSError, FttuiError, TypeError, ValueError) as error:
        _log.error("the limits of agents cannot be read, so agents may only read: %s", error)
        return AgentsConfig(allow="read")


def _section(run: RunDirectory, name: str) -> Any:
    text = read_plain(run.config, SMALL_FILE_BYTES).decode()
    return parse_yaml(text, run.config.name, []).plain()[name]
