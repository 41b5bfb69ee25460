"""Start engine processes, and prepare what they need: run folder, configuration, checkpoint."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from fttui.engine.errors import CheckpointError, FttuiError
from fttui.engine.run.checkpoint_store import CheckpointStore
from fttui.engine.run.files import last_lines
from fttui.engine.run.folder.links import require_plain
from fttui.engine.run.journal import FrameReader
from fttui.engine.run.processes.held_signals import stop_signals_held
from fttui.engine.run.processes.marks import EngineMark, read_endpoint, read_engine
from fttui.engine.run.run_dir import RunDirectory, RunOrigin, create_run
from fttui.engine.run.run_index import summarize

if TYPE_CHECKING:
    from fttui.engine.config.load import LoadedConfig
    from fttui.engine.config.schema import RunConfig

    from .nodes import NodeLaunch

_POLL_S = 0.05
_ENGINE = "fttui.engine"
_OF_A_LAUNCHER = frozenset(
    {
        "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
        "ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    }
)  # fmt: skip
"""Variables that give a process its rank and the number of ranks."""
_OF_LAUNCHERS = (
    *("TORCHELASTIC_", "PET_", "ACCELERATE_", "FSDP_"),
    *("OMPI_", "PMIX_", "PMI_", "MV2_COMM_", "MPI_LOCAL"),
)
"""Beginnings of further such variables; `PET_` gives options to torchrun."""
_LOG_LINES = 15
_SAVING_S = "120"
"""Seconds that torchrun gives the ranks to save a checkpoint after it received SIGTERM."""


class EngineDied(FttuiError):
    """The engine process ended while it was starting; the exit code is the engine's own."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def new_run(
    root: Path, config: Path, loaded: LoadedConfig, overrides: list[str], job: str = ""
) -> RunDirectory:
    """Create the folder of a new run.

    Args:
        root: the folder with the runs.
        config: the configuration file.
        loaded: what it holds.
        overrides: keys that the command line overrides, as K=V.
        job: name of the cluster's job that trains the run; empty without one.

    Raises:
        FttuiError: the folder cannot be created, for instance because the disk is full.
    """
    from importlib.metadata import version  # here, because reading package metadata is slow

    try:
        return create_run(
            root,
            name=loaded.config.name,
            config=config,
            source=loaded.source,
            resolved=loaded.resolved,
            overrides=overrides,
            version=version("fttui"),
            origin=RunOrigin(job=job),
        )
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise FttuiError(
            f"cannot create a run in {root}: {why}; correct that, or choose another folder with "
            "--runs-dir or $FTTUI_RUNS"
        ) from None


def replace_config(run: RunDirectory, loaded: LoadedConfig) -> None:
    """Replace the configuration of an existing run, keeping the old one as `config.<n>.yaml`.

    Nothing is written if the resolved configuration is the same.

    Raises:
        OSError: the run folder cannot be read or written.
    """
    # Deferred, so that commands that read no configuration start faster.
    from fttui.engine.config.load import read_config

    if (before := read_config(run.config)) == loaded.resolved:
        return
    number = len(list(run.path.glob("config.[0-9]*.yaml"))) + 1
    run.write(run.path / f"config.{number}.yaml", before.encode())
    run.write(run.config, loaded.resolved.encode())


def checkpoint_to_resume(run: RunDirectory, wanted: str | None) -> str | None:
    """Return the name of the checkpoint to resume from: the one `wanted`, else the last one.

    None if none is wanted, and the run has neither a checkpoint nor a finished step.

    Raises:
        FttuiError: an engine still works on the run, or may do so on another machine, or it is the
            run of a script, which fttui cannot resume.
        CheckpointError: there is no complete checkpoint of that name, or it is damaged.
    """
    if script := run.identity().script:
        raise FttuiError(
            f"{run.id} is the run of a script, which resumes by its own means; start it again: "
            f"{script}"
        )
    summary = summarize(run)
    if summary.engine_host:
        raise FttuiError(
            f"{run.id} was started on {summary.engine_host} and has not ended, as far as this "
            f"machine can see; resume it there, or, if no engine works on it there, remove "
            f"{run.engine} first"
        )
    engine = read_engine(run)
    if engine is not None and engine.alive:
        raise FttuiError(
            f"{run.id} is still training (process {engine.pid}); watch it with: "
            f"fttui attach {quote(run.id)}, or stop it first with: fttui ctl {quote(run.id)} stop"
        )
    ledger = CheckpointStore(run)
    if not wanted and not ledger.all():
        if summary.step == 0:
            return None
        raise CheckpointError(
            f"{run.id} has no complete checkpoint to resume from; start a new run with: "
            f"fttui run {quote(str(run.source_config))}"
        )
    manifest = ledger.find(wanted or "last")
    ledger.verify(manifest)
    return manifest.name


@dataclass(frozen=True)
class StartedEngine:
    """An engine process that this process has started; it continues after this process ends."""

    run: RunDirectory
    process: subprocess.Popen[bytes]
    before: EngineMark | None
    """The content of `engine.json` before the start; None if there was none."""
    journal_offset: int = 0
    """Offset in the journal at which the records of this engine begin."""

    def mark(self) -> EngineMark | None:
        """Return the mark (pid and machine) of the new engine, or None until it is written."""
        mark = read_engine(self.run)
        return None if mark == self.before else mark

    def wait_until_marked(self, timeout_s: float) -> None:
        """Wait until the engine has written its mark or has ended, at most `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        while self.mark() is None and self.process.poll() is None:
            if time.monotonic() > deadline:
                return
            time.sleep(_POLL_S)

    def wait_until_served(self, timeout_s: float) -> None:
        """Wait until the engine and its hub run.

        Raises:
            EngineDied: the engine ended first; the message holds the end of its log.
            FttuiError: they did not start within `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            endpoint = read_endpoint(self.run)
            if self.mark() is not None and endpoint is not None and endpoint.alive:
                return
            if (code := self.process.poll()) is not None:
                raise EngineDied(self._why(f"the engine ended with exit code {code}"), code or 1)
            time.sleep(_POLL_S)
        raise FttuiError(self._why(f"the engine did not start within {timeout_s:g} s"))

    def _why(self, what: str) -> str:
        tail = "\n".join(last_lines(self.run.engine_log, _LOG_LINES)) or "(it printed nothing)"
        return f"{what}; the end of {self.run.engine_log}:\n{tail}"


class EngineAhead:
    """An engine that imports its libraries while the run is still checked; a context.

    It becomes the engine of the run if `start_engine` gets it. At the end of the context it is
    ended if it has not.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._there: socket.socket | None = None

    def __enter__(self) -> EngineAhead:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._there is not None:
            self._there.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def begin(self, config: RunConfig, launch: NodeLaunch | None = None) -> None:
        """Start the process, if a run of this configuration is a single one and it can be started.

        If not, the run starts without it; an error that remains is raised then.
        """
        if _single(config.train.devices, config.train.restarts, launch):
            with suppress(OSError):
                self._begin(config.task, launch)

    def _begin(self, task: str, launch: NodeLaunch | None) -> None:
        self._there, here = socket.socketpair()
        with here, tempfile.TemporaryFile() as printed, stop_signals_held():
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fttui.engine.standby", task],
                stdin=here.fileno(),
                stdout=printed,
                stderr=printed,
                start_new_session=True,
                close_fds=True,
                env=_environment(launch),
            )

    def take(self, arguments: Sequence[str], log: int) -> subprocess.Popen[bytes] | None:
        """Let the process be the engine with these arguments; None if there is none any more.

        Args:
            arguments: the arguments of `python -m fttui.engine`.
            log: descriptor of the log file, to which it prints from now on.
        """
        process, there = self._process, self._there
        if process is None or there is None or process.poll() is not None:
            return None
        try:
            socket.send_fds(there, [json.dumps(list(arguments)).encode()], [log])
        except OSError:
            return None
        self._process = None
        return process


def start_engine(
    run: RunDirectory,
    devices: int,
    checkpoint: str | None = None,
    program: str = _ENGINE,
    restarts: int = 0,
    options: Sequence[str] = (),
    launch: NodeLaunch | None = None,
    ahead: EngineAhead | None = None,
) -> StartedEngine:
    """Start the engine in its own process session, so that closing the terminal cannot end it.

    Its output is appended to `logs/engine.log`.

    Args:
        run: the run to train.
        devices: number of ranks on this machine.
        checkpoint: name of the checkpoint to resume from; None to start from the beginning.
        program: the Python module to run.
        restarts: how often torchrun restarts all ranks after one has failed.
        options: further arguments of the module.
        launch: the place of this node among several; None if the run has only this one.
        ahead: a process that has begun to import, and becomes the engine if it can.

    Raises:
        OSError: the log cannot be opened, or no process can be started.
    """
    arguments = [str(run.path), *options]
    if checkpoint is not None:
        arguments += ["--from", checkpoint]
    before = read_engine(run)
    journal = FrameReader(run.journal)
    while journal.read():
        pass
    with run.open() as folder:
        folder.make_folder("logs")
        opened = folder.open_file("logs/engine.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with os.fdopen(opened, "ab") as log:
        process = ahead.take(arguments, log.fileno()) if ahead else None
        # A launcher would never take the signals that are held.
        own = program == _ENGINE and _single(devices, restarts, launch)
        with stop_signals_held() if own else nullcontext():
            process = process or subprocess.Popen(
                [*_launcher(devices, restarts, launch), "-m", program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                close_fds=True,
                env=_environment(launch),
            )
    return StartedEngine(run, process, before, journal.offset)


def _environment(launch: NodeLaunch | None) -> dict[str, str]:
    """Return the environment of an engine."""
    return {
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": _SAVING_S,
        **(launch.environment if launch else {}),
        **_own_environment(),
    }


def _own_environment() -> dict[str, str]:
    """Return the environment without the variables of a launcher such as torchrun.

    Each rank gets values of its own. Values that an earlier launcher or a shell left behind would
    make an engine wait for ranks that do not exist, and obey no signal meanwhile.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name not in _OF_A_LAUNCHER and not name.startswith(_OF_LAUNCHERS)
    }


@contextmanager
def start_lock(run: RunDirectory) -> Iterator[None]:
    """Hold the start lock of a run, so that only one process at a time can start its engine.

    Raises:
        FttuiError: another process is starting this run, or its folder holds links or pipes.
    """
    require_plain(run.path)
    with run.open() as folder:
        opened = folder.open_file("start.lock", os.O_RDWR | os.O_CREAT)
    with os.fdopen(opened, "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FttuiError(
                f"another process is starting {run.id}; attach to it with: "
                f"fttui attach {quote(run.id)}"
            ) from None
        yield


def _single(devices: int, restarts: int, launch: NodeLaunch | None) -> bool:
    """Return whether a run is one process, which no launcher starts."""
    return devices == 1 and not restarts and launch is None


def _launcher(devices: int, restarts: int, launch: NodeLaunch | None) -> list[str]:
    if _single(devices, restarts, launch):
        return [sys.executable]
    where = launch.arguments if launch else ["--standalone"]
    torchrun = ["-m", "torch.distributed.run", *where, "--nproc-per-node", str(devices)]
    return [sys.executable, *torchrun, "--max-restarts", str(restarts)]
