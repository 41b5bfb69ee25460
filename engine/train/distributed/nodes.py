"""Nodes: the machines that train one run together, and what their ranks agree on at the start.

The node of rank 0 owns the run folder. Every other node has a folder of its own, with the same
configuration and the logs of its ranks, so that the nodes share a network but no file system.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from ...errors import ConfigError, TrainingFailed
from ...protocol.usage.amounts import Usage

_POLL_S = 0.2
_NAMED = 3
"""Keys that differ, or ranks that are missing, to name in a message."""


@dataclass(frozen=True)
class NodePlace:
    """The number of the node of this rank, and the number of nodes."""

    node: int = 0
    nodes: int = 1
    local_rank: int = 0
    """Number of this rank among those of its node."""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> NodePlace:
        """Return the place from the environment of torchrun, or the only one without torchrun."""
        return cls(
            int(environment.get("GROUP_RANK", "0")),
            int(environment.get("GROUP_WORLD_SIZE", "1")),
            int(environment.get("LOCAL_RANK", "0")),
        )

    @property
    def several(self) -> bool:
        """Whether more than one node trains the run."""
        return self.nodes > 1

    @property
    def remote(self) -> bool:
        """Whether this is another node than that of rank 0, so that it has another run folder."""
        return self.node > 0


ONE_NODE = NodePlace()


class RankFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank reports before training; all ranks compare it with what rank 0 reports."""

    host: str
    node: int
    run: str
    """Name of the run folder on this node."""
    config: dict[str, Any] = {}
    """The configuration file of this node, without overrides; empty if there is one node."""
    overrides: list[str] = []
    """Keys that the command line overrides, as K=V; empty if there is one node."""
    resolved: str
    """The resolved configuration; only that of rank 0 counts, and all nodes train by it."""
    versions: dict[str, str]
    """Package → version."""
    resume: str | None = None
    """Checkpoint to resume from; only that of rank 0 counts."""
    accept_changed: list[str] = []
    """Kinds of content that may have changed since the checkpoint; only those of rank 0 count."""
    used: Usage = msgspec.field(default_factory=Usage)
    """What earlier processes of the run have used; only that of rank 0 counts."""


class KeyStore(Protocol):
    """The part of torch's key-value stores that is used here."""

    def set(self, key: str, value: str) -> None:
        """Store a value under a key."""

    def get(self, key: str) -> bytes:
        """Return the value of a key."""

    def add(self, key: str, amount: int) -> int:
        """Add to the number under a key, which begins at 0, and return the sum."""

    def check(self, keys: list[str]) -> bool:
        """Return whether all these keys have values."""


def exchange_facts(
    store: KeyStore,
    rank: int,
    world_size: int,
    facts: RankFacts,
    timeout_s: float,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> list[RankFacts]:
    """Report the facts of this rank and return those of all ranks, ordered by rank.

    Raises:
        ConfigError: another process has reported as this rank.
        TrainingFailed: some ranks have not reported within `timeout_s`; the text names them.
    """
    if store.add(f"joined-{rank}", 1) > 1:
        raise ConfigError(
            f"rank {rank} (node {facts.node}, {facts.host}) has joined this rendezvous already: "
            "another run uses its address and port, or two nodes have the same --node-rank; give "
            "each run a port of its own, and start each node once"
        )
    store.set(f"facts-{rank}", msgspec.json.encode(facts).decode())
    keys = [f"facts-{number}" for number in range(world_size)]
    deadline = now() + timeout_s
    while not store.check(keys):
        if now() > deadline:
            missing = [number for number, key in enumerate(keys) if not store.check([key])]
            raise TrainingFailed(_missing(missing, world_size, timeout_s))
        sleep(_POLL_S)
    return [msgspec.json.decode(store.get(key), type=RankFacts) for key in keys]


def _missing(missing: Sequence[int], world_size: int, timeout_s: float) -> str:
    named = ", ".join(map(str, missing[:_NAMED])) + (" and others" if len(missing) > _NAMED else "")
    return (
        f"{len(missing)} of {world_size} ranks did not start within {timeout_s:g} s: rank {named}; "
        "look into the log of `fttui run` on their node, and check that it was started with the "
        "same --nodes and --rendezvous and reaches the other nodes"
    )


def require_same(every: Sequence[RankFacts]) -> None:
    """Refuse to train if a rank has other packages or another configuration than rank 0.

    Configurations are compared as users gave them, except for the name of the run: what `auto`
    decides is decided on rank 0 for all nodes.

    Raises:
        ConfigError: they differ; the text names the first rank, and what differs there.
    """
    first = every[0]
    for rank, facts in enumerate(every):
        where = f"rank {rank} (node {facts.node}, {facts.host})"
        lead = f"rank 0 ({first.host})"
        if found := _differences(first.versions, facts.versions):
            raise ConfigError(
                f"{where} has other packages than {lead}: {found}; install the same versions"
            )
        if found := _differences(_given(first), _given(facts)):
            raise ConfigError(
                f"{where} has another configuration than {lead}: {found}; start all nodes with the "
                "same file and options"
            )


def _differences(first: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    keys = [key for key in {**first, **other} if first.get(key) != other.get(key)]
    named = [f"{key} is {other.get(key)} instead of {first.get(key)}" for key in keys[:_NAMED]]
    more = f", and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
    return "; ".join(named) + more


def _given(facts: RankFacts) -> dict[str, Any]:
    """Return what a user gave: key → value, and the overrides of the command line."""
    overrides = sorted(one for one in facts.overrides if not one.startswith("name="))
    return _flat(facts.config) | {"--set": overrides}


def _flat(config: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{above}{key}.")
        elif f"{above}{key}" != "name":
            flat[f"{above}{key}"] = value
    return flat
