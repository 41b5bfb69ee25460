"""The start of a run on several nodes: what its ranks report, compare and take from rank 0."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version

import yaml

from ..config.load import read_config
from .distributed.nodes import NodePlace, RankFacts, require_same
from .session_start import SessionStart

COMPARED = ("fttui", "torch", "transformers", "peft", "trl", "bitsandbytes")
"""Packages whose versions must be the same on all nodes."""


def facts_of(start: SessionStart) -> RankFacts | None:
    """Return what this rank reports to the others; None for a single rank."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return None
    run = start.run
    given = yaml.safe_load(run.source_config.read_text(encoding="utf-8"))
    return RankFacts(
        host=socket.gethostname(),
        node=NodePlace.of(os.environ).node,
        run=run.id,
        config=given if isinstance(given, dict) else {},
        overrides=run.identity().overrides,
        resolved=read_config(run.config),
        versions=_versions(),
        resume=start.resume,
        accept_changed=sorted(start.accept_changed),
    )


def _versions() -> dict[str, str]:
    found = {}
    for package in COMPARED:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def agreed_start(start: SessionStart, every: Sequence[RankFacts]) -> SessionStart:
    """Return the start of this rank with the checkpoint that rank 0 resumes from.

    On another node, the configuration of the run folder becomes that of rank 0.

    Args:
        start: what this process was started with.
        every: what all ranks have reported, ordered by rank; empty for a single rank.

    Raises:
        ConfigError: the ranks have different configurations or packages.
        OSError: the configuration cannot be written.
    """
    if not every:
        return start
    require_same(every)
    first = every[0]
    if NodePlace.of(os.environ).remote:
        start.run.write(start.run.config, first.resolved.encode())
    return replace(start, resume=first.resume, accept_changed=frozenset(first.accept_changed))
