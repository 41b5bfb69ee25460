"""How `fttui run` starts the ranks of one node when a run trains on several machines."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from fttui.engine.errors import ConfigError

JOIN_S = 900
"""Seconds that a node waits for the others to start."""
_NAME_EVERY_S = 2.0
_EXAMPLE = "--nodes 2 --node-rank 0 --rendezvous 10.0.0.1:29500"


@dataclass(frozen=True)
class NodeLaunch:
    """The number of this node, and where the nodes meet."""

    node: int
    nodes: int
    host: str
    """Address of node 0, whose torchrun serves the rendezvous."""
    port: int
    interface: str
    """Network interface that leads to node 0; empty if it is not known."""

    @property
    def leads(self) -> bool:
        """Whether this is the node of rank 0, which owns the run folder."""
        return self.node == 0

    @property
    def arguments(self) -> list[str]:
        """The arguments of torchrun."""
        return [
            "--nnodes", str(self.nodes),
            "--node-rank", str(self.node),
            "--master-addr", self.host,
            "--master-port", str(self.port),
            "--rdzv-conf", f"timeout={JOIN_S}",
        ]  # fmt: skip

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which gloo and NCCL use the interface that leads to node 0."""
        names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
        return dict.fromkeys(names, self.interface) if self.interface else {}


def node_launch(
    nodes: int | None,
    node_rank: int | None,
    rendezvous: str | None,
    waiting: Callable[[str], None] | None = None,
) -> NodeLaunch | None:
    """Return the launch that `--nodes`, `--node-rank` and `--rendezvous` ask for, if they do.

    Args:
        nodes: number of nodes.
        node_rank: number of this node.
        rendezvous: address and port of node 0.
        waiting: prints that the name of node 0 is not known yet, which is then tried again for as
            long as a node waits for the others; None does not wait.

    Raises:
        ConfigError: one of the options is missing or impossible, or this is node 0 and the
            rendezvous is not an address and a free port of this machine.
    """
    given = [nodes, node_rank, rendezvous]
    if all(one is None for one in given):
        return None
    if nodes is None or node_rank is None or rendezvous is None:
        raise ConfigError(
            "a run on several nodes needs --nodes, --node-rank and --rendezvous, such as "
            f"{_EXAMPLE}"
        )
    if nodes < 2 or not 0 <= node_rank < nodes:
        raise ConfigError(
            f"got --nodes {nodes} --node-rank {node_rank}; expected at least 2 nodes, and node "
            "ranks from 0 to one less than their number"
        )
    host, port = _endpoint(rendezvous)
    if waiting is not None:
        _wait_for_name(host, port, waiting)
    own = _own_address(host, port, rendezvous)
    if node_rank == 0:
        _require_free_port(host, port, own)
    return NodeLaunch(node_rank, nodes, host, port, _interface(own))


def _endpoint(rendezvous: str) -> tuple[str, int]:
    host, _, port = rendezvous.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"got --rendezvous {rendezvous}; expected the address of node 0 and a free port there, "
            "such as 10.0.0.1:29500"
        )
    return host.strip("[]"), int(port)


def _wait_for_name(
    host: str,
    port: int,
    waiting: Callable[[str], None],
    known: Callable[[str, int], object] = socket.getaddrinfo,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Return once a name is known, or after `JOIN_S`; a cluster may make it after this node."""
    for attempt in range(int(JOIN_S / _NAME_EVERY_S)):
        try:
            known(host, port)
        except socket.gaierror as error:
            if attempt == 0:
                waiting(f"waiting until the name {host} can be resolved: {error.strerror}")
            sleep(_NAME_EVERY_S)
        else:
            return


def _own_address(host: str, port: int, rendezvous: str) -> str:
    """Return the address of this machine from which packets to the host are sent."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[
            0
        ]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # of a datagram socket: chooses the route, sends nothing
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigError(
            f"got --rendezvous {rendezvous}, but {host} cannot be reached from here: "
            f"{error.strerror or error}; expected the address of node 0"
        ) from None


def _require_free_port(host: str, port: int, own: str) -> None:
    resolved = {str(found[4][0]) for found in socket.getaddrinfo(host, port)}
    if own not in resolved:
        raise ConfigError(
            f"got --rendezvous {host}:{port} on node 0, but {host} is another machine; expected an "
            f"address of this one, such as {own}"
        )
    family = socket.AF_INET6 if ":" in own else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((own, port))
        except OSError as error:
            raise ConfigError(
                f"got --rendezvous {host}:{port}, but the port cannot be used: "
                f"{error.strerror or error}; choose a port that is free on node 0"
            ) from None


def _interface(address: str) -> str:
    """Return the name of the network interface with an address; empty if there is none."""
    for name, found in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] == address for one in found):
            return name
    return ""
