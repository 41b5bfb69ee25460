"""The run folder of a watched script: opened with a journal and a hub, and ended with the script.

Only rank 0 opens it; the other ranks get its path and record nothing. Handlers of signals and the
logging of the script stay as they are.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from torch import nn

from ..config.schema import RunConfig
from ..errors import TrainingFailed
from ..followers.launch import launch_followers
from ..hub.launch import launch_hub
from ..protocol.events import RunEnded, RunStarted
from ..protocol.states import RunState
from ..protocol.usage.amounts import Usage
from ..run.files import free_bytes
from ..run.processes.marks import EngineMark, ProcessMark, write_mark
from ..run.run_dir import RunDirectory, RunOrigin, create_run, require_runs_folder, runs_root
from ..telemetry.logs import CallbackHandler, log_file
from ..train.control.run_end import accepted_since, end_run
from ..train.control.unanswered import UnansweredCommands
from ..train.event_log import EventLog
from ..train.journal_writer import JournalWriter
from .checkpoint_plan import CheckpointPlan, plan_checkpoints
from .script_config import command_line, resolved_text, script_path

EXEC_FOLDER = "FTTUI_EXEC"
"""Environment variable by which `fttui exec` names the folder in which runs announce themselves."""

MakeEventLog = Callable[[RunDirectory | None, JournalWriter | None], EventLog]


def plain_event_log(run: RunDirectory | None, writer: JournalWriter | None) -> EventLog:
    """Return the event log of a rank; only rank 0 has a run folder and a writer."""
    return EventLog(writer)


class ScriptRun:
    """One run of a watched script on rank 0, from its folder to its last event."""

    def __init__(
        self,
        config: RunConfig,
        source: str,
        trainer: str,
        make_event_log: MakeEventLog = plain_event_log,
    ) -> None:
        root = runs_root()
        require_runs_folder(root, writing=True)
        self.run = create_run(
            root,
            name=config.name,
            config=script_path(),
            source=source,
            resolved=resolved_text(config),
            overrides=[],
            version=version("fttui"),
            origin=RunOrigin(script=command_line()),
        )
        self._writer = JournalWriter(self.run, launch_hub)
        self.event_log = make_event_log(self.run, self._writer)
        self.started = _started(config, trainer)
        self._unanswered = UnansweredCommands(frozenset(), self.event_log.record)
        self.event_log.listen(self._unanswered.observe)
        self._ended = False
        self._handlers = [
            CallbackHandler(self.event_log.log, logging.WARNING),
            log_file(self.run.logs / "rank-0.log"),
        ]
        for handler in self._handlers:
            logging.getLogger("fttui").addHandler(handler)
        self._mark()
        launch_followers(self.run, config)
        self.event_log.record(self.started)
        atexit.register(self._end_unfinished)

    def _mark(self) -> None:
        mine = ProcessMark.current()
        mark = EngineMark(
            pid=mine.pid, started=mine.started, identity=mine.identity, incarnation=1, after_seq=0
        )
        write_mark(self.run.engine, mark)
        if folder := os.environ.get(EXEC_FOLDER):
            with suppress(FileNotFoundError):  # the viewer has ended and removed the folder
                (Path(folder) / self.run.id).write_text(str(self.run.path), encoding="utf-8")

    def end(
        self,
        state: RunState,
        *,
        error: str = "",
        checkpoint: str | None = None,
        reason: str = "",
        usage: Usage | None = None,
    ) -> None:
        """Record the end of the run and close its journal; a second end changes nothing.

        Commands without an outcome get one, and a success whose last events could not be written
        is recorded as `unsaved`.
        """
        if self._ended:
            return
        self._ended = True
        atexit.unregister(self._end_unfinished)
        code = 0 if state in (RunState.FINISHED, RunState.STOPPED) else TrainingFailed.exit_code
        ended = RunEnded(
            state=state,
            exit_code=code,
            error=error,
            checkpoint=checkpoint,
            reason=reason,
            usage=usage,
        )
        end_run(self.run, self._writer, ended, self.event_log.record, self._conclude)
        for handler in self._handlers:
            logging.getLogger("fttui").removeHandler(handler)
            handler.close()

    def _conclude(self, ended: RunEnded) -> None:
        """Give an outcome to commands that the trainer has not answered."""
        reason = f"the run ended ({ended.state.value})"
        self._unanswered.conclude(accepted_since(self.run, 0), reason)

    def _end_unfinished(self) -> None:
        self.end(RunState.STOPPED, error="the script ended before it had trained")

    def keep_error(self, error: Exception) -> Path:
        """Write the traceback of an error of fttui to the logs of the run and return its path.

        Raises:
            OSError: it cannot be written.
        """
        file = self.run.logs / "watch-error.log"
        self.run.write(file, "".join(traceback.format_exception(error)).encode())
        return file


def _started(config: RunConfig, trainer: str) -> RunStarted:
    train = config.train
    return RunStarted(
        name=config.name,
        incarnation=1,
        pid=os.getpid(),
        host=socket.gethostname(),
        world_size=train.devices,
        task=trainer,
        model=config.model.id,
        total_steps=train.steps or 0,
        micro_batch_size=train.micro_batch_size,
        accumulation=train.accumulation,
        versions={"fttui": version("fttui"), "torch": version("torch")},
        script=command_line(),
    )


def plan_for(model: nn.Module, keep: int, asked: int | None) -> CheckpointPlan:
    """Return when a run writes checkpoints of what is trained in a model.

    Args:
        model: the model of the script.
        keep: newest checkpoints that are kept.
        asked: steps between checkpoints that the user asked for; None lets them be planned.
    """
    trained = [one for one in model.parameters() if one.requires_grad]
    weights = sum(one.numel() for one in trained)
    free = free_bytes(runs_root())
    return plan_checkpoints(sum(one.nbytes for one in trained), weights, free, keep, asked)


def say(text: str) -> None:
    """Print a line about the watching to standard error, which begins with `fttui:`."""
    sys.stderr.write(f"fttui: {text}\n")
    sys.stderr.flush()


class RunEndByScript(NamedTuple):
    """How an error of the script ends its run."""

    state: RunState
    error: str


def run_end_after(error: BaseException) -> RunEndByScript:
    """Return the end of a run whose script has raised an error while it trained."""
    if isinstance(error, KeyboardInterrupt):
        return RunEndByScript(RunState.STOPPED, "interrupted from the keyboard")
    if isinstance(error, SystemExit) and not error.code:
        return RunEndByScript(RunState.STOPPED, "the script has ended itself")
    return RunEndByScript(
        RunState.FAILED, f"{type(error).__name__}: {error} (raised in the script)"
    )


def abandon(script_run: ScriptRun | None, error: Exception) -> None:
    """Say that watching ends because of an error of fttui itself, and end the run as failed.

    Args:
        script_run: the run; None on every rank but 0.
        error: the error.
    """
    text = f"an error of fttui itself ({type(error).__name__}: {error})"
    if script_run is None:
        say(f"{text}; this rank continues training, unwatched")
        return
    try:
        details = f"details in {script_run.keep_error(error)}"
    except OSError as fault:
        details = f"its details cannot be written ({fault})"
    say(f"{text}; training continues unwatched, {details}")
    script_run.end(
        RunState.FAILED,
        error=f"{text}; the script continues training, unwatched, {details}",
    )
