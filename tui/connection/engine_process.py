"""Starting an engine: a new run folder, or another incarnation on an old one."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fttui.engine.config.load import LoadedConfig
from fttui.engine.errors import CheckpointError, FttuiError
from fttui.engine.run.checkpoint_store import CheckpointStore
from fttui.engine.run.files import last_lines, write_atomically
from fttui.engine.run.journal import FrameReader
from fttui.engine.run.process_marks import EngineMark, read_endpoint, read_engine
from fttui.engine.run.run_dir import RunDirectory, create_run
from fttui.engine.run.run_index import summarize

_POLL_S = 0.05
_LOG_LINES = 15
_SAVING_S = "120"
"""What torchrun gives the ranks to save when it is told to end."""


class EngineDied(FttuiError):
    """The engine process ended before it could be watched; exits with the engine's own code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def new_run(root: Path, config: Path, loaded: LoadedConfig, overrides: list[str]) -> RunDirectory:
    """Make the folder of a new run.

    Raises:
        FttuiError: the disk does not take it.
    """
    from importlib.metadata import version  # deferred: reading package data takes a while

    try:
        return create_run(
            root,
            name=loaded.config.name,
            config=config,
            source=loaded.source,
            resolved=loaded.resolved,
            overrides=overrides,
            version=version("fttui"),
        )
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise FttuiError(
            f"no run can be made in {root}: {why}; mend that, or name another folder with "
            "--runs-dir or $FTTUI_RUNS"
        ) from None


def replace_config(run: RunDirectory, loaded: LoadedConfig) -> None:
    """Give an old run another configuration; the one before stays as `config.<n>.yaml`."""
    if run.config.read_text(encoding="utf-8") == loaded.resolved:
        return
    number = len(list(run.path.glob("config.[0-9]*.yaml"))) + 1
    write_atomically(run.path / f"config.{number}.yaml", run.config.read_bytes())
    write_atomically(run.config, loaded.resolved.encode())


def checkpoint_to_resume(run: RunDirectory, wanted: str | None) -> str | None:
    """The name of a complete checkpoint of the run; None to begin a run that trained nothing yet.

    Raises:
        FttuiError: an engine still works on the run.
        CheckpointError: there is no such checkpoint, or it is damaged.
    """
    engine = read_engine(run)
    if engine is not None and engine.alive:
        raise FttuiError(
            f"{run.id} is still training (process {engine.pid}); watch it with: "
            f"fttui attach {run.id}, or end it first with: fttui ctl {run.id} stop"
        )
    ledger = CheckpointStore(run)
    if not wanted and not ledger.all():
        if summarize(run).step == 0:
            return None
        raise CheckpointError(
            f"{run.id} has no complete checkpoint to resume from; start anew with: "
            f"fttui run {run.source_config}"
        )
    manifest = ledger.find(wanted or "last")
    ledger.verify(manifest)
    return manifest.name


@dataclass(frozen=True)
class StartedEngine:
    """An engine process that this process started and that outlives it."""

    run: RunDirectory
    process: subprocess.Popen[bytes]
    before: EngineMark | None
    """The mark that an earlier incarnation left."""
    journal_offset: int = 0
    """Where this incarnation's records begin."""

    def mark(self) -> EngineMark | None:
        """The new engine's mark, once it has written it."""
        mark = read_engine(self.run)
        return None if mark == self.before else mark

    def wait_until_marked(self, timeout_s: float) -> None:
        """Wait until the engine has taken the run, or has ended."""
        deadline = time.monotonic() + timeout_s
        while self.mark() is None and self.process.poll() is None:
            if time.monotonic() > deadline:
                return
            time.sleep(_POLL_S)

    def wait_until_served(self, timeout_s: float) -> None:
        """Wait for the engine and its hub.

        Raises:
            EngineDied: the engine ended first; the text has the end of its log.
            FttuiError: nothing happened in time.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            endpoint = read_endpoint(self.run)
            if self.mark() is not None and endpoint is not None and endpoint.alive:
                return
            if (code := self.process.poll()) is not None:
                raise EngineDied(self._why(f"the engine ended with exit code {code}"), code or 1)
            time.sleep(_POLL_S)
        raise FttuiError(self._why(f"the engine did not come up within {timeout_s:g} s"))

    def _why(self, what: str) -> str:
        tail = "\n".join(last_lines(self.run.engine_log, _LOG_LINES)) or "(it printed nothing)"
        return f"{what}; the end of {self.run.engine_log}:\n{tail}"


def start_engine(
    run: RunDirectory,
    devices: int,
    checkpoint: str | None = None,
    program: str = "fttui.engine",
    restarts: int = 0,
    options: Sequence[str] = (),
) -> StartedEngine:
    """Start the engine in a session of its own: no terminal can end it."""
    command = [*_launcher(devices, restarts), "-m", program, str(run.path), *options]
    if checkpoint is not None:
        command += ["--from", checkpoint]
    before = read_engine(run)
    journal = FrameReader(run.journal)
    while journal.read():
        pass
    run.logs.mkdir(mode=0o700, exist_ok=True)
    with open(run.engine_log, "ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            close_fds=True,
            env={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": _SAVING_S, **os.environ},
        )
    return StartedEngine(run, process, before, journal.offset)


@contextmanager
def only_starter(run: RunDirectory) -> Iterator[None]:
    """Keep two starts of one run apart: from the check to the new engine's mark, one at a time.

    Raises:
        FttuiError: another start of this run is under way.
    """
    with open(run.path / "start.lock", "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FttuiError(
                f"another start of {run.id} is under way; attach to it: fttui attach {run.id}"
            ) from None
        yield


def _launcher(devices: int, restarts: int) -> list[str]:
    if devices == 1 and not restarts:
        return [sys.executable]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(devices)]
    return [sys.executable, *torchrun, "--max-restarts", str(restarts)]
