"""The engine process, which trains one run: `python -m fttui.engine RUN_DIR [--from CHECKPOINT]`.

`fttui run` starts it, under torchrun if there are several devices. The journal is opened and the
hub started before the training stack is imported, so viewers see the progress of loading.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import socket
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from shlex import quote
from typing import TYPE_CHECKING, NoReturn

import msgspec

from .config.checks.budget import budget_of, price_of, require_budget_left
from .config.load import read_resolved
from .errors import FttuiError, StateNotSaved, TrainingFailed
from .followers.launch import launch_followers
from .hub.launch import launch_hub
from .protocol.events import RunEnded, RunStarted
from .protocol.states import RunState
from .run.checkpoint_store import CheckpointStore
from .run.control_log import ControlReader, decision_lock
from .run.files import last_lines
from .run.folder.folder_keeper import sweep_temporary
from .run.folder.links import UnsafeRunFolder, require_plain
from .run.journal import FrameReader, JournalLocked
from .run.journal_summary import JournalSummary, summarize_journal
from .run.processes.marks import EngineMark, ProcessMark, write_mark
from .run.processes.node_end import record_node_end, recorded_node_end
from .run.processes.parent import end_with_parent
from .run.run_dir import RunDirectory, resume_command
from .telemetry.logs import CallbackHandler, setup_rank_log
from .train.control.early_stop import EarlyStop, StoppedEarly, WaitingStop
from .train.control.run_end import accepted_since, end_run
from .train.control.stop_notice import StopNotice
from .train.control.unanswered import UnansweredCommands
from .train.distributed.elastic import LaunchAttempt
from .train.distributed.nodes import NodePlace
from .train.event_log import EventLog
from .train.imports import import_training
from .train.journal_writer import JournalWriter
from .train.node_start import agreed_start, facts_of
from .train.session_start import EngineArguments, SessionStart, read_arguments
from .train.signals import FORCED_EXIT_CODE, StopSignals

if TYPE_CHECKING:
    from .train.distributed.place import RankPlace

log = logging.getLogger("fttui.engine")
_LOST_RANK_SIGNS = ("Connection closed by peer", "Connection reset", "Read error", "gloo", "NCCL")

_NOTICED_IN_S = 1.0
"""Seconds to wait for the watchdog to report a dead rank after a collective failed."""

os.environ.setdefault("GOMP_SPINCOUNT", "5000")
"""Set before torch loads OpenMP. Threads that spin for long make a CPU run several times slower as
soon as another process (the app, the hub, a browser) needs a core; on an idle machine the shorter
spin costs a tenth."""

os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
"""Set before torch uses a GPU; it avoids fragmentation when the sizes of tensors change."""


def main(arguments: list[str] | None = None, logged: Sequence[logging.LogRecord] = ()) -> int:
    """Train the run that the command line names, and return the exit code.

    Stop signals are handled from here on. Rank 0 also writes the journal and starts the hub.

    Args:
        arguments: the arguments of the command line; None takes those of this process.
        logged: records from before this call, which are written to the log of the run.
    """
    folder, asked = read_arguments(arguments, __doc__)
    if asked.parent:
        end_with_parent(asked.parent)
    signals = StopSignals()
    signals.install()
    run = RunDirectory(folder.absolute())
    rank = int(os.environ.get("RANK", "0"))
    try:
        require_plain(run.path)
        setup_rank_log(run.logs, rank)
        journal_writer = JournalWriter(run, launch_hub) if rank == 0 else None
    except JournalLocked as error:
        watch = f"watch the run with: fttui attach {quote(run.id)}"
        print(f"fttui engine: {error}; {watch}", file=sys.stderr)  # noqa: T201 -- the journal belongs to the other process
        return TrainingFailed.exit_code
    except UnsafeRunFolder as error:
        print(f"fttui engine: {error}", file=sys.stderr)  # noqa: T201 -- there is no log to write it to
        return error.exit_code
    except OSError as error:
        print(f"fttui engine: the run folder {run.path} cannot be used: {error}", file=sys.stderr)  # noqa: T201 -- there is no journal to write it to
        return TrainingFailed.exit_code
    return _session(run, journal_writer, signals, asked, logged)


def _session(
    run: RunDirectory,
    journal_writer: JournalWriter | None,
    signals: StopSignals,
    asked: EngineArguments,
    logged: Sequence[logging.LogRecord],
) -> int:
    attempt = LaunchAttempt.of(os.environ)
    history = _history(run, journal_writer, attempt)
    ended_with = history.status.exit_code if attempt.repeated else None
    if ended_with is None and attempt.repeated:
        ended_with = recorded_node_end(run)
    if ended_with is not None:
        # The attempt before reported its end, so it did not crash: an error would repeat, and a
        # stop was requested.
        return ended_with
    control_seq = 0
    if journal_writer:
        with ControlReader(run) as reader:
            control_seq = reader.waiting()
        CheckpointStore(run).sweep()
        sweep_temporary(run)
    event_log = EventLog(journal_writer, timeline=history.timeline)
    logging.getLogger().addHandler(CallbackHandler(event_log.log, logging.WARNING))
    for record in logged:
        logging.getLogger().handle(record)
    signals.before_forced(lambda: _close_forced(event_log, journal_writer))
    start = SessionStart(
        run,
        history,
        _checkpoint(run, asked.resume, attempt),
        control_seq,
        attempt,
        asked.profile_steps,
        asked.lr_range,
        asked.accept_changed,
        asked.paused and not attempt.repeated,
        history.used,
        stopped_code=asked.stopped_code,
    )
    unanswered = UnansweredCommands(history.answered, event_log.record)
    event_log.listen(unanswered.observe)
    ended, early = _guarded(start, event_log, signals, unanswered)
    if journal_writer is not None:
        ended = _end(start, journal_writer, event_log, ended, unanswered)
        signals.end_with(ended.exit_code)
    elif NodePlace.of(os.environ).remote and not _restarts(ended, attempt):
        record_node_end(run, ended.exit_code)
    if early:
        logging.shutdown()
        signals.leave(ended.exit_code)  # threads of a library may still load
    return ended.exit_code


def _history(
    run: RunDirectory, journal_writer: JournalWriter | None, attempt: LaunchAttempt
) -> JournalSummary:
    if journal_writer:
        return summarize_journal(journal_writer.recovered)
    return summarize_journal(FrameReader(run.journal) if attempt.repeated else ())


def _checkpoint(run: RunDirectory, asked: str | None, attempt: LaunchAttempt) -> str | None:
    """Return the checkpoint to resume from, by name or as `last`; None to start from the beginning.

    It is `last` if torchrun started the ranks again after a crash and there is a checkpoint, else
    the one that the command line names.
    """
    return "last" if attempt.repeated and CheckpointStore(run).all() else asked


def _end(
    start: SessionStart,
    journal_writer: JournalWriter,
    event_log: EventLog,
    ended: RunEnded,
    unanswered: UnansweredCommands,
) -> RunEnded:
    """End the run, or only this engine if torchrun will restart it; return how it ended.

    A successful end becomes `unsaved` if the last events could not be written.
    """

    def conclude(ended: RunEnded) -> None:
        if not _restarts(ended, start.attempt):
            entries = accepted_since(start.run, start.control_seq)
            unanswered.conclude(entries, f"the run ended ({ended.state.value})")

    def record(ended: RunEnded) -> None:
        _record_end(start.run, event_log, ended, start.attempt)

    return end_run(start.run, journal_writer, ended, record, conclude)


def _restarts(ended: RunEnded, attempt: LaunchAttempt) -> bool:
    """Whether torchrun will start the ranks again, so that the run has not ended."""
    return ended.exit_code == TrainingFailed.exit_code and attempt.may_repeat


def _record_end(
    run: RunDirectory, event_log: EventLog, ended: RunEnded, attempt: LaunchAttempt
) -> None:
    """Record the last event of the run, or only an error if torchrun will restart the ranks.

    The error of a crash is recorded with the command that resumes from the checkpoint, if any.
    """
    crashed = ended.exit_code == TrainingFailed.exit_code
    if _restarts(ended, attempt):
        count = f"restart {attempt.number + 1} of {attempt.limit}"
        event_log.log("error", f"{ended.error}; {count} from the last checkpoint")
        return
    if crashed and ended.checkpoint:
        next_step = f"resume from {ended.checkpoint} with: {resume_command(run.id)}"
        ended = msgspec.structs.replace(ended, error=f"{ended.error}; {next_step}")
    event_log.record(ended)


def _guarded(
    start: SessionStart,
    event_log: EventLog,
    signals: StopSignals,
    unanswered: UnansweredCommands,
) -> tuple[RunEnded, bool]:
    """Train, and return the event that ends the run; an error of training becomes that event, too.

    The second value says whether the run was stopped while it loaded.
    """
    early = _early_stop(start, event_log, signals, unanswered)
    try:
        try:
            early.begin()
            return _train(start, event_log, signals, early), False
        finally:
            early.end()  # from here on no stop interrupts the handling of an error
    except StoppedEarly:
        early.end()  # it may have been raised before the end
        early.tell_others()
    except Exception as error:  # noqa: BLE001 -- any error has to be the last event of the run
        if not early.another_rank_stopped():
            return _failure(start.run, error), False
    return _stopped_early(start, unanswered, _code_of_stop(start, early)), True


def _failure(run: RunDirectory, error: Exception) -> RunEnded:
    if isinstance(error, FttuiError):
        log.error("%s", error)
        return _failed(run, str(error), error.exit_code)
    traceback.print_exception(error)
    return _failed(run, explain(error), TrainingFailed.exit_code)


def _early_stop(
    start: SessionStart,
    event_log: EventLog,
    signals: StopSignals,
    unanswered: UnansweredCommands,
) -> EarlyStop:
    """Return what ends this process if a stop is requested while it imports and loads."""

    def leave() -> None:
        code = _code_of_stop(start, early)
        try:
            event_log.record(_stopped_early(start, unanswered, code))
            event_log.close()
            if NodePlace.of(os.environ).remote:
                record_node_end(start.run, code)
        finally:
            signals.leave(code)

    leads = int(os.environ.get("RANK", "0")) == 0
    waits = WaitingStop(start.run, start.control_seq) if leads else lambda: False
    notice = StopNotice.of(start.run, os.environ)
    early = EarlyStop(event_log, signals, waits, leave, notice)
    return early


def _stopped_early(start: SessionStart, unanswered: UnansweredCommands, code: int) -> RunEnded:
    """Return the end of a run that was stopped while loading.

    Rank 0 first records an outcome for every command that waits.
    """
    if int(os.environ.get("RANK", "0")) == 0:
        with decision_lock(start.run):
            unanswered.conclude(
                accepted_since(start.run, start.control_seq),
                "the run was stopped while it loaded",
                "stopped while loading, so there was nothing to save",
            )
    return RunEnded(state=RunState.STOPPED, exit_code=code, checkpoint=_newest(start.run))


def _code_of_stop(start: SessionStart, early: EarlyStop) -> int:
    """Return the exit code of a process that was stopped while it loaded."""
    return start.stopped_code if early.by_signal else 0


def _train(
    start: SessionStart, event_log: EventLog, signals: StopSignals, early: EarlyStop
) -> RunEnded:
    run = start.run
    started = _announce(start, event_log)
    import_training(started.task)
    from .train.distributed.place import leave_place, take_place
    from .train.session import train

    gc.freeze()
    gc.enable()
    timeout_s = read_resolved(run.config).train.collective_timeout_s
    place = take_place(timeout_s, facts_of(start))
    start = agreed_start(start, place.every)
    require_budget_left(read_resolved(run.config), start.used, resume_command(run.id))
    with _watched_ranks(run, event_log, place, start.attempt, early):
        outcome = train(start, started, place, event_log, signals)
    leave_place()
    in_order = start.stopped_code if outcome.signalled else 0
    return RunEnded(
        state=outcome.state,
        exit_code=StateNotSaved.exit_code if outcome.unsaved else in_order,
        error=outcome.unsaved,
        checkpoint=outcome.checkpoint,
        reason=outcome.reason,
        usage=outcome.usage,
    )


@contextmanager
def _watched_ranks(
    run: RunDirectory,
    event_log: EventLog,
    place: RankPlace,
    attempt: LaunchAttempt,
    early: EarlyStop,
) -> Iterator[None]:
    """While training, end this rank when another one dies, with an error that names it.

    Raises:
        TrainingFailed: training failed because another rank died.
    """
    from .train.distributed.node_heartbeat import NodeHeartbeat
    from .train.distributed.place import own_connection
    from .train.distributed.rank_watchdog import RankWatchdog

    def lost(rank: int) -> None:
        if early.another_rank_stopped():
            early.leave()
        ended = _failed(run, _lost_rank(run, rank, place), TrainingFailed.exit_code)
        _record_end(run, event_log, ended, attempt)
        event_log.close()

    watch = RankWatchdog(place.rank, place.world_size, lost, TrainingFailed.exit_code)
    heartbeat = NodeHeartbeat(
        own_connection, place.nodes, lambda node: watch.handle_loss(place.first_rank_of(node))
    )
    try:
        yield
        watch.say_goodbye()
    except StoppedEarly:
        watch.take_over(0.0)
        raise
    except Exception as error:
        rank = watch.take_over(_NOTICED_IN_S)
        if rank is None or isinstance(error, FttuiError):
            raise
        raise TrainingFailed(_lost_rank(run, rank, place)) from error
    finally:
        heartbeat.end()


def _lost_rank(run: RunDirectory, rank: int, place: RankPlace) -> str:
    if elsewhere := place.elsewhere(rank):
        return f"rank {rank} {elsewhere} is lost: its process ended or the network is cut"
    tail = last_lines(run.logs / f"rank-{rank}.log", 1)
    return (
        f"rank {rank} died{f'; the last line of its log: {tail[0]}' if tail else ''} "
        f"(details: logs/rank-{rank}.log and logs/engine.log)"
    )


def _announce(start: SessionStart, event_log: EventLog) -> RunStarted:
    """Record the start of this engine before the model is loaded, and return the event.

    Rank 0 also writes the file that names this process as the engine of the run.
    """
    run, history = start.run, start.history
    config = read_resolved(run.config)
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    started = RunStarted(
        name=config.name,
        incarnation=history.status.incarnation + 1,
        pid=os.getpid(),
        host=socket.gethostname(),
        world_size=world_size,
        task=config.task,
        model=config.model.id,
        total_steps=config.train.steps or 0,
        micro_batch_size=config.train.micro_batch_size,
        accumulation=config.train.accumulation,
        versions={"fttui": version("fttui"), "torch": version("torch")},
        price=price_of(config),
        budget=budget_of(config),
    )
    if int(os.environ.get("RANK", "0")) == 0:
        after = history.newest.seq if history.newest else 0
        _mark(run, started.incarnation, after, launched="TORCHELASTIC_RUN_ID" in os.environ)
        if not start.measures_only:
            launch_followers(run, config)
    event_log.record(started)
    return started


def _mark(run: RunDirectory, incarnation: int, after_seq: int, *, launched: bool) -> None:
    mine = ProcessMark.current()
    mark = EngineMark(
        pid=mine.pid,
        started=mine.started,
        identity=mine.identity,
        incarnation=incarnation,
        after_seq=after_seq,
        launcher=ProcessMark.of(os.getppid()) if launched else None,
    )
    write_mark(run.engine, mark)


def _failed(run: RunDirectory, error: str, exit_code: int) -> RunEnded:
    return RunEnded(
        state=RunState.FAILED, exit_code=exit_code, error=error, checkpoint=_newest(run)
    )


def _newest(run: RunDirectory) -> str | None:
    """Return the name of the newest complete checkpoint; None if there is none."""
    known = CheckpointStore(run).all()
    return known[-1].name if known else None


def explain(error: Exception) -> str:
    """Return the text of an unexpected error, with the next step if one is known."""
    if type(error).__name__ == "OutOfMemoryError":
        return (
            "the GPU is out of memory; `fttui check` lists changes that make the run fit, cheapest "
            "first: lower train.batch or data.max_length, set train.activation_checkpointing to "
            "true, train.optimizer to paged_adamw_8bit, train.activations to host, or "
            "train.memory to lean or streamed"
        )
    if any(sign in str(error) for sign in _LOST_RANK_SIGNS):
        return "another rank died or stopped responding; see logs/rank-*.log and logs/engine.log"
    return f"{type(error).__name__}: {error} (traceback in logs/engine.log)"


def _close_forced(event_log: EventLog, journal_writer: JournalWriter | None) -> None:
    if journal_writer is None:
        return
    event_log.record(
        RunEnded(
            state=RunState.STOPPED,
            exit_code=FORCED_EXIT_CODE,
            error="stopped at once on request; the step in progress is lost",
        )
    )
    journal_writer.close()


def leave(exit_code: int) -> NoReturn:
    """End the process; one of several ranks runs functions of `atexit`, but Python does not end.

    Threads that wait for another rank, in torch's code, may return while Python ends, and that
    aborts the process: a run that had finished would count as crashed on its node.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)
    sys.exit(exit_code)


if __name__ == "__main__":
    leave(main())
