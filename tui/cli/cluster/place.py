"""The place of `fttui run` among several nodes: its options, or what a SLURM job says."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

from fttui.engine.errors import ConfigError
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.run.run_index import run_of_job

from ...connection.nodes import NodeLaunch, node_launch
from .slurm_place import SlurmPlace, slurm_place

SLURM = "slurm"


@dataclass(frozen=True)
class Cluster:
    """The place of this command among several nodes, or in a job; one node without a job."""

    launch: NodeLaunch | None = None
    """None if the run has only this node."""
    slurm: SlurmPlace | None = None
    """None outside of SLURM, or if `--nodes slurm` was not given."""

    @property
    def leads(self) -> bool:
        """Whether this is the node of rank 0, which owns the run folder."""
        return self.launch is None or self.launch.leads

    @property
    def nodes(self) -> int | None:
        """The number of nodes, if there are several."""
        return self.launch.nodes if self.launch else None

    @property
    def job(self) -> str:
        """The name of the job; empty without one."""
        return self.slurm.job if self.slurm else ""

    def run_to_go_on(self, root: Path) -> RunDirectory | None:
        """Return the run that this job trained before SLURM started it again, or None."""
        if self.slurm is None or not self.slurm.restarts:
            return None
        return run_of_job(root, lambda job: job == self.job)


def add_nodes(parser: argparse.ArgumentParser) -> None:
    """Add the options `--nodes`, `--node-rank` and `--rendezvous`."""
    parser.add_argument(
        "--nodes",
        metavar="N",
        type=_nodes,
        help="number of machines that train the run together; `slurm`: those of the SLURM job",
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


def _nodes(word: str) -> int | str:
    return word if word == SLURM else int(word)


def cluster_of(options: argparse.Namespace) -> Cluster:
    """Return the place of this command among several nodes or in a SLURM job.

    Raises:
        ConfigError: the options are incomplete or impossible, or this is no task of a job.
    """
    if options.nodes != SLURM:
        return Cluster(node_launch(options.nodes, options.node_rank, options.rendezvous))
    if options.node_rank is not None or options.rendezvous is not None:
        raise ConfigError(
            "got --nodes slurm with --node-rank or --rendezvous, which the job decides; leave "
            "these out"
        )
    place = slurm_place(os.environ)
    if place.nodes == 1:
        return Cluster(slurm=place)
    return Cluster(node_launch(place.nodes, place.node, place.rendezvous), place)


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
