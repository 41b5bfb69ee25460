"""The place of this process among those of torchrun, accelerate or MPI, if these started it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath

import psutil

from fttui.engine.errors import ConfigError

_LAST_PORT = 65_535
_SETTINGS = (
    *("ACCELERATE_MIXED_PRECISION", "ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"),
    *("ACCELERATE_DYNAMO_BACKEND", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"),
)
"""Variables by which `accelerate launch` gives settings."""


@dataclass(frozen=True)
class Launcher:
    """A program that starts processes, and the variables by which it numbers them."""

    name: str
    """What `--nodes` calls it."""
    programs: tuple[str, ...]
    """Names of the program, of its daemons on other nodes, and of its Python module."""
    variables: tuple[Mapping[str, str], ...]
    """What a variable holds → its name; one mapping for each implementation.

    `rank`, `size`, `local_rank` and `local_size` are needed; `node` and `nodes` are read if they
    are named.
    """
    example: str


_TORCH = {
    "rank": "RANK",
    "size": "WORLD_SIZE",
    "local_rank": "LOCAL_RANK",
    "local_size": "LOCAL_WORLD_SIZE",
    "node": "GROUP_RANK",
    "nodes": "GROUP_WORLD_SIZE",
}
_OPEN_MPI = {
    "rank": "OMPI_COMM_WORLD_RANK",
    "size": "OMPI_COMM_WORLD_SIZE",
    "local_rank": "OMPI_COMM_WORLD_LOCAL_RANK",
    "local_size": "OMPI_COMM_WORLD_LOCAL_SIZE",
}
_HYDRA = {
    "rank": "PMI_RANK",
    "size": "PMI_SIZE",
    "local_rank": "MPI_LOCALRANKID",
    "local_size": "MPI_LOCALNRANKS",
}
_MVAPICH = {
    "rank": "MV2_COMM_WORLD_RANK",
    "size": "MV2_COMM_WORLD_SIZE",
    "local_rank": "MV2_COMM_WORLD_LOCAL_RANK",
    "local_size": "MV2_COMM_WORLD_LOCAL_SIZE",
}
LAUNCHERS = {
    one.name: one
    for one in (
        Launcher(
            "torchrun",
            ("torchrun", "torch.distributed.run", "torch.distributed.launch"),
            (_TORCH,),
            "torchrun --nproc-per-node 4 --no-python fttui run CONFIG --nodes torchrun",
        ),
        Launcher(
            "accelerate",
            ("accelerate", "accelerate-launch", "accelerate.commands.launch",
             "accelerate.commands.accelerate_cli"),
            (_TORCH,),
            "accelerate launch --num_processes 4 --no_python fttui run CONFIG --nodes accelerate",
        ),
        Launcher(
            "mpi",
            ("mpirun", "mpiexec", "orterun", "prterun", "orted", "prted", "mpiexec.hydra",
             "hydra_pmi_proxy", "mpirun_rsh", "mpispawn"),
            (_OPEN_MPI, _HYDRA, _MVAPICH),
            "mpirun -np 4 fttui run CONFIG --nodes mpi",
        ),
    )
}  # fmt: skip
"""The launchers by name."""


@dataclass(frozen=True)
class Above:
    """A process above this one."""

    pid: int
    started: float
    """When it started, in seconds since 1970."""
    command: tuple[str, ...]

    @property
    def program(self) -> str:
        """Name of the program; of Python, the script or module that it runs."""
        first, *words = self.command
        if not PurePath(first).name.startswith("python"):
            return PurePath(first).name
        while words and words[0].startswith("-") and words[0] != "-m":
            words = words[2 if words[0] in ("-X", "-W") else 1 :]
        words = words[1:] if words[:1] == ["-m"] else words
        return PurePath(words[0]).name if words else ""


@dataclass(frozen=True)
class LauncherPlace:
    """The place of this process among those that a launcher started."""

    launcher: str
    rank: int
    size: int
    local_rank: int
    """Number of this process among those of its node."""
    local_size: int
    node: int
    nodes: int
    address: str
    """Address of node 0, from `MASTER_ADDR`; empty if it is not given."""
    port: int
    """Port where the nodes meet: the one after `MASTER_PORT`, where the launcher itself listens."""
    agent: Above
    """The process of the launcher on this node, or that of its daemon."""
    attempt: int
    """How often the launcher has started the processes again."""
    unused: tuple[str, ...] = ()
    """Variables, as K=V, by which the launcher gives settings that the configuration decides."""

    @property
    def job(self) -> str:
        """A name of what the launcher runs, which is the same after it started processes again."""
        return f"{self.launcher}:{self.agent.started:.2f}:{self.agent.pid}"

    @property
    def devices(self) -> int | None:
        """The number of devices of a node; None if the configuration decides it."""
        return self.local_size if self.local_size > 1 else None

    @property
    def note(self) -> str:
        """A line that says which settings of the launcher are not used; empty without any."""
        if not self.unused:
            return ""
        return (
            f"note: {', '.join(self.unused)} of {self.launcher} are not used; the configuration "
            "decides precision, accumulation and train.strategy"
        )

    @property
    def described(self) -> str:
        """A line that says what was found."""
        at = f"; the nodes meet at {self.address}:{self.port}" if self.nodes > 1 else ""
        return (
            f"{self.launcher}: process {self.local_rank} of {self.local_size} on node {self.node} "
            f"of {self.nodes}{at}"
        )


def processes_above() -> list[Above]:
    """Return the processes above this one, the nearest first."""
    found = []
    for process in psutil.Process().parents():
        try:
            command = tuple(process.cmdline()) or (process.name(),)
            found.append(Above(process.pid, process.create_time(), command))
        except psutil.Error:
            continue
    return found


def agent_of(launcher: Launcher, above: Iterable[Above]) -> Above | None:
    """Return the nearest process above that belongs to a launcher, or None."""
    return next((one for one in above if one.program in launcher.programs), None)


def launcher_place(
    name: str,
    environment: Mapping[str, str],
    above: Callable[[], list[Above]] = processes_above,
) -> LauncherPlace:
    """Return the place of this process among those of a launcher.

    Args:
        name: the launcher, as a key of `LAUNCHERS`.
        environment: variables of the process.
        above: returns the processes above this one, the nearest first.

    Raises:
        ConfigError: the launcher did not start this process, or its variables are incomplete or
            contradict each other.
    """
    launcher = LAUNCHERS[name]
    agent = agent_of(launcher, above())
    if agent is None:
        raise ConfigError(
            f"got --nodes {name}, but {name} did not start this process{_left(environment)}; start "
            f"it with: {launcher.example}"
        )
    numbers = _numbers(launcher, environment)
    _require_consistent(name, numbers)
    local_size, rank = numbers["local_size"], numbers["rank"]
    port = _whole(name, environment, "MASTER_PORT", 29500)
    return LauncherPlace(
        name,
        rank,
        numbers["size"],
        numbers["local_rank"],
        local_size,
        rank // local_size,
        numbers["size"] // local_size,
        environment.get("MASTER_ADDR", ""),
        port + 1 if port < _LAST_PORT else port - 1,
        agent,
        _whole(name, environment, "TORCHELASTIC_RESTART_COUNT", 0),
        tuple(
            f"{key}={environment[key]}"
            for key in _SETTINGS
            if environment.get(key, "no").lower() not in ("no", "false", "0", "1", "")
        ),
    )


def _whole(launcher: str, environment: Mapping[str, str], name: str, default: int) -> int:
    """Return the number that a variable holds.

    Raises:
        ConfigError: It is not a whole number from 0 to the largest port.
    """
    text = environment.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and int(text) <= _LAST_PORT):
        raise ConfigError(
            f"got --nodes {launcher}, but the variable {name} is {text!r}; expected a whole number "
            f"from 0 to {_LAST_PORT}"
        )
    return int(text)


def _left(environment: Mapping[str, str]) -> str:
    known = variables_of_launchers(environment)
    return (
        f" (the variables {', '.join(known)} are left from it, but are not used)" if known else ""
    )


def variables_of_launchers(environment: Mapping[str, str]) -> list[str]:
    """Return the variables, as K=V, by which a launcher passes a process its rank."""
    ranks = ("rank", "size", "local_rank")
    names = [kind[one] for of in LAUNCHERS.values() for kind in of.variables for one in ranks]
    return [f"{name}={environment[name]}" for name in dict.fromkeys(names) if name in environment]


def _numbers(launcher: Launcher, environment: Mapping[str, str]) -> dict[str, int]:
    """Return the numbers that the variables of a launcher hold, by what they mean.

    `accelerate launch` sets none for a single process, which is then rank 0 of 1.

    Raises:
        ConfigError: A variable is missing or not a number.
    """
    names = next(
        (one for one in launcher.variables if one["rank"] in environment), launcher.variables[0]
    )
    if launcher.name == "accelerate" and not any(one in environment for one in names.values()):
        return {"rank": 0, "size": 1, "local_rank": 0, "local_size": 1}
    found: dict[str, int] = {}
    for meaning, name in names.items():
        try:
            found[meaning] = int(environment[name])
        except (KeyError, ValueError):
            raise ConfigError(
                f"got --nodes {launcher.name}, but the variable {name} is "
                f"{environment.get(name, 'missing')}; expected a number; start with: "
                f"{launcher.example}"
            ) from None
    return found


def _require_consistent(name: str, numbers: Mapping[str, int]) -> None:
    """Refuse numbers that contradict each other, and nodes with unequal numbers of processes.

    Raises:
        ConfigError: They do.
    """
    rank, size, local, per_node = (
        numbers[one] for one in ("rank", "size", "local_rank", "local_size")
    )
    said = ", ".join(f"{meaning} {number}" for meaning, number in numbers.items())
    if not (0 <= local < per_node <= size and 0 <= rank < size):
        raise ConfigError(
            f"got --nodes {name} with impossible numbers ({said}); start it again, without "
            "variables of another launcher"
        )
    if size % per_node or rank % per_node != local:
        raise ConfigError(
            f"got --nodes {name} with {said}; expected the same number of processes on every node, "
            "numbered node by node (with mpirun: --map-by ppr:N:node)"
        )
    for meaning, number in (("node", rank // per_node), ("nodes", size // per_node)):
        if numbers.get(meaning, number) != number:
            raise ConfigError(
                f"got --nodes {name} with {said}; {meaning} should be {number}; start it again, "
                "without variables of another launcher"
            )
