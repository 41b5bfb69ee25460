"""The start of a run on several nodes: what its ranks report, compare and take from rank 0."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version

import msgspec

from ..config.load import read_config
from ..config.yaml_tree import parse_yaml
from .distributed.nodes import NodePlace, RankFacts, require_same
from .session_start import SessionStart

COMPARED = ("fttui", "torch", "transformers", "peft", "trl", "bitsandbytes")
"""Packages whose versions must be the same on all nodes."""


def facts_of(start: SessionStart) -> RankFacts | None:
    """Return what this rank reports to the others; None for a single rank.

    Raises:
        ConfigError: a configuration in the run folder cannot be read.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return None
    place, run = NodePlace.of(os.environ), start.run
    facts = RankFacts(
        host=socket.gethostname(),
        node=place.node,
        run=run.id,
        resolved=read_config(run.config),
        versions=_versions(),
        resume=start.resume,
        accept_changed=sorted(start.accept_changed),
        used=start.used,
    )
    if not place.several:  # all ranks read the same files
        return facts
    source = run.source_config
    given = parse_yaml(read_config(source), str(source), []).plain()
    overrides = run.identity().overrides
    return msgspec.structs.replace(facts, config=given or {}, overrides=overrides)


def _versions() -> dict[str, str]:
    found = {}
    for package in COMPARED:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def agreed_start(start: SessionStart, every: Sequence[RankFacts]) -> SessionStart:
    """Return the start of this rank with the checkpoint that rank 0 resumes from and the usage.

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
    return replace(
        start,
        resume=first.resume,
        accept_changed=frozenset(first.accept_changed),
        used=first.used,
    )
