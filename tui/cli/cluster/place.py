"""The place of `fttui run` among several nodes, by its options, a launcher or a job."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fttui.engine.errors import ConfigError
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.run.run_index import run_of_job

from ...connection.nodes import NodeLaunch, node_launch
from .launcher_place import (
    LAUNCHERS,
    LauncherPlace,
    agent_of,
    launcher_place,
    processes_above,
    variables_of_launchers,
)
from .local_group import in_group
from .slurm_place import SlurmPlace, slurm_place

SLURM = "slurm"
STOPPED_CODE = 143
"""Exit code of a run with `--job` that a signal stopped before its end, as shells have it."""


@dataclass(frozen=True)
class Cluster:
    """The place of this command among several nodes, or in a job; one node without a job."""

    launch: NodeLaunch | None = None
    """None if the run has only this node."""
    slurm: SlurmPlace | None = None
    """None outside of SLURM, or if `--nodes slurm` was not given."""
    launcher: LauncherPlace | None = None
    """None unless `--nodes` names a launcher such as torchrun."""
    named: str = ""
    """The name that `--job` gives; empty without it."""

    @property
    def leads(self) -> bool:
        """Whether this is the node of rank 0, which owns the run folder."""
        return self.launch is None or self.launch.leads

    @property
    def nodes(self) -> int | None:
        """The number of nodes, if there are several."""
        return self.launch.nodes if self.launch else None

    @property
    def devices(self) -> int | None:
        """The number of devices of each node, if the launcher decides it."""
        return self.launcher.devices if self.launcher else None

    @property
    def job(self) -> str:
        """The name of the job, or of what the launcher runs; empty without one."""
        if self.named:
            return f"job:{self.named}"
        place = self.slurm or self.launcher
        return place.job if place else ""

    @property
    def engine_options(self) -> list[str]:
        """The options of the engine: with `--job`, a stop by a signal does not count as success."""
        return ["--stopped-code", str(STOPPED_CODE)] if self.named else []

    def run_to_go_on(self, root: Path) -> RunDirectory | None:
        """Return the run that this job trained before it was started again, or None."""
        again: object = self.named
        if not again:
            again = self.slurm.restarts if self.slurm else self.launcher and self.launcher.attempt
        return run_of_job(root, lambda job: job == self.job) if again else None

    def within(self, work: Callable[[], int], say: Callable[[str], None]) -> int:
        """Do the work and return its exit code; of a launcher's processes, one of a node does it.

        Raises:
            FttuiError: the work failed, or the processes of the launcher are not complete.
        """
        return in_group(self.launcher, work, say) if self.launcher else work()


def add_nodes(parser: argparse.ArgumentParser) -> None:
    """Add the options `--nodes`, `--node-rank`, `--rendezvous` and `--job`."""
    parser.add_argument(
        "--nodes",
        metavar="N",
        type=_nodes,
        help="number of machines that train the run together; `slurm`: those of the SLURM job; "
        "`torchrun`, `accelerate`, `mpi`: those where this launcher started the command",
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
    parser.add_argument(
        "--job",
        metavar="NAME",
        default="",
        help="name of a job that a cluster may start again; the job then resumes its run",
    )


def _nodes(word: str) -> int | str:
    return word if word == SLURM or word in LAUNCHERS else int(word)


def cluster_of(options: argparse.Namespace, say: Callable[[str], None] | None = None) -> Cluster:
    """Return the place of this command among several nodes, in a SLURM job, or of a launcher.

    Args:
        options: the command line.
        say: prints which variables of a launcher are not used; None prints nothing.

    Raises:
        ConfigError: the options are incomplete or impossible, this is not a task of a job, or a
            launcher started this command without the option that says so.
    """
    if options.nodes == SLURM:
        found = _of_slurm(options)
    elif options.nodes in LAUNCHERS:
        found = _of_launcher(options)
    else:
        if say is not None:
            _refuse_hidden_launcher(options, say)
        launch = node_launch(options.nodes, options.node_rank, options.rendezvous, say)
        found = Cluster(launch)
    return replace(found, named=options.job)


def _of_slurm(options: argparse.Namespace) -> Cluster:
    if options.node_rank is not None or options.rendezvous is not None:
        raise ConfigError(
            "got --nodes slurm with --node-rank or --rendezvous, which the job decides; leave "
            "these out"
        )
    place = slurm_place(os.environ)
    if place.nodes == 1:
        return Cluster(slurm=place)
    return Cluster(node_launch(place.nodes, place.node, place.rendezvous), place)


def _of_launcher(options: argparse.Namespace) -> Cluster:
    name = options.nodes
    if options.node_rank is not None:
        raise ConfigError(
            f"got --nodes {name} with --node-rank, which {name} decides; leave it out"
        )
    place = launcher_place(name, os.environ)
    if place.devices and options.devices not in (None, str(place.devices)):
        raise ConfigError(
            f"got --devices {options.devices}, but {name} started {place.local_size} processes on "
            "each node, one for each device; leave --devices out"
        )
    if place.nodes == 1 or place.local_rank > 0:
        return Cluster(launcher=place)
    at = options.rendezvous or (place.address and f"{place.address}:{place.port}")
    if not at:
        raise ConfigError(
            f"got --nodes {name} on {place.nodes} nodes, but no MASTER_ADDR, the address of node 0;"
            " set this variable for all processes (mpirun -x MASTER_ADDR=10.0.0.1 …), or give "
            "--rendezvous HOST:PORT"
        )
    return Cluster(node_launch(place.nodes, place.node, at), launcher=place)


def _refuse_hidden_launcher(options: argparse.Namespace, say: Callable[[str], None]) -> None:
    """Say which variables of a launcher are not used.

    Raises:
        ConfigError: a launcher started this command as one of several processes, each of which
            would start a run of its own.
    """
    found = variables_of_launchers(os.environ)
    if not found:
        return
    above = processes_above()
    for launcher in LAUNCHERS.values():
        if agent_of(launcher, above) and any(_is_several(os.environ, one) for one in _SIZES):
            raise ConfigError(
                f"{launcher.name} started this command as one of several processes "
                f"({', '.join(found)}), each of which would start a run of its own; add --nodes "
                f"{launcher.name}, or start it without {launcher.name}"
            )
    named = f"--nodes {options.nodes}" if options.nodes else "train.devices"
    say(f"note: {', '.join(found)} in the environment are not used; {named} decides what starts")


_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")


def _is_several(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "1") != "1"


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
