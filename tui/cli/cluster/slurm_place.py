"""The place of this process in a SLURM job, from its variables, if the job started this process."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import psutil

from fttui.engine.errors import ConfigError

_FIRST_PORT = 20_000
_PORTS = 12_000
"""Number of ports from the first one on; all are below the usual range of outgoing connections."""
_SLURM = "slurm"
_STEP_DAEMON = "slurmstepd"


@dataclass(frozen=True)
class SlurmPlace:
    """The job step that this process belongs to, and the number of its node."""

    job_id: int
    cluster: str
    nodes: int
    node: int
    first_address: str
    """Address of the node of rank 0."""
    restarts: int
    """How often SLURM has started the job again."""

    @property
    def job(self) -> str:
        """A name of the job that is the same after SLURM has started it again."""
        return f"{_SLURM}:{self.cluster}:{self.job_id}"

    @property
    def rendezvous(self) -> str:
        """Address and port where the nodes meet; the port follows from the number of the job."""
        return f"{self.first_address}:{_FIRST_PORT + self.job_id % _PORTS}"


def is_job(name: str, job_id: int) -> bool:
    """Whether a name that `SlurmPlace.job` gave is that of the job with this number."""
    scheduler, *_, number = name.split(":")
    return scheduler == _SLURM and number == str(job_id)


def first_address(node_list: str) -> str:
    """Return the address at which SLURM reaches the first node of a list such as `gpu[03-05]`.

    Raises:
        ConfigError: `scontrol` is missing or does not know the nodes.
    """
    first = _scontrol("show", "hostnames", node_list).split()[0]
    found = re.search(r"\bNodeAddr=(\S+)", _scontrol("show", "node", first))
    return found.group(1) if found else first


def _scontrol(*words: str) -> str:
    command = ["scontrol", *words]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"`{' '.join(command)}` failed: {error}") from None
    return found.stdout


def ancestors() -> list[str]:
    """Return the names of the processes above this one."""
    return [process.name() for process in psutil.Process().parents()]


def slurm_place(
    environment: Mapping[str, str],
    above: Callable[[], Iterable[str]] = ancestors,
    first: Callable[[str], str] = first_address,
) -> SlurmPlace:
    """Return the place of this process in its SLURM job.

    Args:
        environment: variables of the process.
        above: returns the names of the processes above this one.
        first: returns the address of the first node of a list of SLURM.

    Raises:
        ConfigError: this is not a task of a SLURM job, or not the only one on its node. Variables
            of a job that did not start this process are ignored.
    """
    try:
        job_id, node = int(environment["SLURM_JOB_ID"]), int(environment["SLURM_NODEID"])
        nodes = int(environment["SLURM_STEP_NUM_NODES"])
        tasks = int(environment["SLURM_STEP_NUM_TASKS"])
        hosts = environment["SLURM_STEP_NODELIST"]
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"got --nodes slurm, but this is not a task of a SLURM job ({error} is missing or not "
            "a number); start it with srun in a job, or with: fttui launch slurm CONFIG"
        ) from None
    if _STEP_DAEMON not in above():
        raise ConfigError(
            f"got --nodes slurm with the variables of job {job_id}, but {_STEP_DAEMON} did not "
            "start this process; start it with srun in a job, or with: fttui launch slurm CONFIG"
        )
    if tasks != nodes:
        raise ConfigError(
            f"got --nodes slurm in a step of {tasks} tasks on {nodes} nodes; expected one task per "
            "node, which starts a process per device: srun --ntasks-per-node=1"
        )
    return SlurmPlace(
        job_id,
        environment.get("SLURM_CLUSTER_NAME", ""),
        nodes,
        node,
        first(hosts),
        int(environment.get("SLURM_RESTART_COUNT", "0")),
    )
