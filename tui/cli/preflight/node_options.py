"""The options of `fttui run` for a run on several nodes."""

from __future__ import annotations

import argparse

from fttui.engine.errors import ConfigError

from ...connection.nodes import NodeLaunch, node_launch


def add_nodes(parser: argparse.ArgumentParser) -> None:
    """Add the options `--nodes`, `--node-rank` and `--rendezvous`."""
    parser.add_argument(
        "--nodes", metavar="N", type=int, help="number of machines that train the run together"
    )
    parser.add_argument(
        "--node-rank",
        metavar="I",
        type=int,
        help="number of this machine, from 0; node 0 has the run folder and the app",
    )
    parser.add_argument(
        "--rendezvous", metavar="HOST:PORT", help="address and a free port of node 0"
    )


def launch_of(options: argparse.Namespace) -> NodeLaunch | None:
    """Return the place of this node among several, or None if the options name no nodes.

    Raises:
        ConfigError: the options are incomplete or impossible.
    """
    return node_launch(options.nodes, options.node_rank, options.rendezvous)


def require_launch(nodes: int, launch: NodeLaunch | None) -> None:
    """Refuse to start a part of the nodes that `train.nodes` asks for.

    Raises:
        ConfigError: the command line names another number of nodes.
    """
    started = launch.nodes if launch else 1
    if nodes != started:
        raise ConfigError(
            f"train.nodes is {nodes}, but this command starts a run on {started}; run it on every "
            f"node with --nodes {nodes} --node-rank I --rendezvous HOST:PORT, or set train.nodes: 1"
        )
