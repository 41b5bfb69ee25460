"""`run --headless`: print the run as plain lines; Ctrl-C and SIGTERM stop the run."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from types import FrameType

import msgspec

from fttui.engine.errors import EngineGone
from fttui.engine.protocol import events as ev
from fttui.engine.protocol.benchmarks.result import BenchmarkFinished
from fttui.engine.protocol.chat.events import ChatAnswered
from fttui.engine.protocol.codec import DecodeError, decode_record
from fttui.engine.protocol.culprit_text import culprit_headline
from fttui.engine.protocol.event_parts import DataFinding
from fttui.engine.protocol.states import RunState
from fttui.engine.protocol.step_memory import memory_in_use
from fttui.engine.protocol.usage.amounts import Price
from fttui.engine.run.files import last_lines
from fttui.engine.run.journal import FrameReader

from ..connection.engine_process import StartedEngine
from ..dialogs.profile_text import profile_lines
from ..text import format as fmt
from ..text.control_characters import one_line
from ..text.throughput import throughput, throughput_metric
from ..text.usage import used_words
from ..view_model.command_effect import change, effect, holds

_POLL_S = 0.1
_LINE_EVERY_S = 1.0
_LOG_LINES = 15
_LEAVING_S = 30.0
_GRACE_S = 2.0
"""Seconds after the process's end for which its final record is still awaited."""


class HeadlessLog:
    """Formats journal records as lines.

    Steps and progress have a line at most once a second, but the last step, a skipped update and
    the end of a progress always have one. Other events have one at once, and those of little
    interest, such as an accepted command, none.
    """

    def __init__(self) -> None:
        self._total_steps = 0
        self._next_step_line = 0.0
        self._next_progress_line = 0.0
        self._step_s: float | None = None
        """Smoothed seconds per step; None before the first step."""
        self._state: RunState | None = None
        self._error = ""
        """Text of the newest error in the log."""
        self._price: Price | None = None

    def lines(self, record: ev.Record, now: float) -> Iterator[str]:
        """Yield the lines for a record, often none; `now` is in monotonic seconds."""
        match record.event:
            case ev.StepFinished() as step:
                yield from self._step(record, step, now)
            case ev.ProgressMade(label=label, done=done, total=total):
                if now >= self._next_progress_line or done >= total:
                    self._next_progress_line = now + _LINE_EVERY_S
                    yield f"{label} {100 * done / total:.0f} %" if total else label
            case ev.RunStarted(total_steps=total_steps, devices=devices):
                self._total_steps, self._price = total_steps, record.event.price
                if devices:  # a start emits two of these events; the first has no devices yet
                    yield from _plain_lines(record.event, record.step)
            case ev.StateChanged():
                yield from self._change(record.event, record.step)
            case ev.LogEmitted(level="error", text=text):
                self._error = text
                yield from _plain_lines(record.event, record.step)
            case ev.RunEnded():
                yield from self._end(record.event, record.step)
            case _:
                yield from _plain_lines(record.event, record.step)

    def _change(self, event: ev.StateChanged, step: int) -> Iterator[str]:
        """Yield a line for a new state of the run, or for a detail of the same state.

        Saving is left out, because each checkpoint has its own line.
        """
        if event.state is RunState.SAVING or (event.state is self._state and not event.detail):
            return
        self._state = event.state
        where = f" before step {step + 1}" if event.state is RunState.PAUSED else ""
        yield f"state {event.state.value}{where}{f': {event.detail}' if event.detail else ''}"

    def _end(self, ended: ev.RunEnded, step: int) -> Iterator[str]:
        """Yield the lines for the end, without an error that the log has already shown."""
        if ended.error and ended.error in self._error:
            ended = msgspec.structs.replace(ended, error="")
        yield from _plain_lines(ended, step)
        if ended.usage is not None:
            yield f"used: {used_words(ended.usage, self._price)}"

    def _step(self, record: ev.Record, step: ev.StepFinished, now: float) -> Iterator[str]:
        before = self._step_s
        self._step_s = step.step_s if before is None else 0.9 * before + 0.1 * step.step_s
        last = 0 < self._total_steps <= record.step
        if now < self._next_step_line and not last and not step.skipped:
            return
        self._next_step_line = now + _LINE_EVERY_S
        memory = memory_in_use(step)
        left_s = max(0, self._total_steps - record.step) * self._step_s
        parts = [
            f"step {record.step}{f'/{self._total_steps}' if self._total_steps else ''}",
            f"loss {fmt.number(step.loss)}",
            f"grad {fmt.number(step.grad_norm)}{' clipped' if step.clipped else ''}",
            f"lr {fmt.learning_rate(step.lr)}",
            f"{step.step_s:.2f} s/step",
            throughput(metric := throughput_metric(step), getattr(step, metric), exact=True),
            *([f"mem {fmt.size(memory)}"] if memory else []),
            *([f"ETA {fmt.duration(left_s)}"] if self._total_steps else []),
            *([_no_update(step)] if step.skipped else []),
        ]
        yield "  ".join(parts)


def _no_update(step: ev.StepFinished) -> str:
    return "nothing to learn, no update" if step.without_targets else "update skipped"


def _plain_lines(event: ev.AnyEvent, step: int) -> Iterator[str]:
    match event:
        case ev.RunStarted(name=name, task=task, model=model, total_steps=total, devices=devices):
            steps = [f"{total} steps"] if total else []  # a plain loop need not know them
            yield f"run {name}: {task} on {model}, {', '.join([*steps, *(devices or ['cpu'])])}"
            if event.resumed_from:
                yield f"resumed from {event.resumed_from}"
            yield from (f"{key}: {value}" for key, value in event.facts.items())
            yield from _finding_lines(event.findings)
        case ev.DataFindingsChanged(findings=findings):
            yield from _finding_lines(findings)
        case ev.EvalFinished(metrics=metrics):
            values = "  ".join(f"{key} {fmt.number(value)}" for key, value in metrics.items())
            yield f"eval at step {step}: {values}"
        case BenchmarkFinished(result=result):
            yield result.text
        case ev.CheckpointSaved(name=name, size_bytes=size_bytes, seconds=seconds):
            yield f"checkpoint {name} ({fmt.size(size_bytes)}, {seconds:.1f} s)"
        case ev.RolledBack(checkpoint=name, from_step=old, to_step=new, new_timeline=timeline):
            yield f"rolled back from step {old} to {new} ({name}), now timeline {timeline}"
        case ev.CulpritsFound():
            yield f"culprits of {event.anomaly}: {culprit_headline(event)} (report {event.anomaly})"
        case ev.StepsProfiled():
            yield from profile_lines(event, bar_cells=0)
        case _:
            yield from _word_lines(event, step)


def _finding_lines(findings: Sequence[DataFinding]) -> Iterator[str]:
    yield from (f"data: {found.line}" for found in findings)


def _generated(event: ev.SampleGenerated | ChatAnswered, step: int) -> str:
    if isinstance(event, ChatAnswered):
        return f"chat at step {step}: {event.answerer}: {event.text!r}"
    return f"sample at step {step}: {event.prompt!r} → {event.text!r}"


def _word_lines(event: ev.AnyEvent, step: int) -> Iterator[str]:
    match event:
        case ev.CommandApplied(command=text, old=old, new=new, issuer=issuer, typed=command):
            # The line of the paused state gives the step at which the pause took effect.
            what = "pausing" if holds(command) else effect(command, step, "step {}")
            who = f" by {issuer}" if issuer else ""
            yield f"{what}: {text}{change(command, old, new)}{who}"
        case ev.CommandFailed(command=command, reason=reason):
            yield f"failed at step {step}: {command}: {reason}"
        case ev.AnomalyRaised(severity=severity, headline=headline, report=report):
            yield f"{severity} at step {step}: {headline}{f' (report {report})' if report else ''}"
        case ev.AnomalyResolved(id=id_, verdict=verdict):
            yield f"anomaly {id_}: {verdict}"
        case ev.NoteAdded(text=text):
            yield f"note at step {step}: {text}"
        case ev.SampleGenerated() | ChatAnswered():
            yield _generated(event, step)
        case ev.LogEmitted(level=level, text=text) if level in {"warning", "error"}:
            yield f"{level}: {text}"
        case ev.RunEnded(state=state, error=error, checkpoint=checkpoint):
            why = error or event.reason
            yield f"{state.value} at step {step}{f': {why}' if why else ''}"
            if checkpoint:
                yield f"last checkpoint: {checkpoint}"


_ENDING = (signal.SIGINT, signal.SIGTERM)
_UNTAKEN = (signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler)


class Interrupts:
    """Passes Ctrl-C and SIGTERM on to the engine: the first saves and stops, the second stops now.

    SIGTERM is what a job scheduler or `timeout` sends; the run must not outlive its job. A handler
    that the caller has installed before, as for temporary runs, stays in place.
    """

    def __init__(self, engine: StartedEngine) -> None:
        self._engine = engine
        self._count = self._told = 0
        self._before = {
            number: signal.signal(number, self._pass_on)
            for number in _ENDING
            if signal.getsignal(number) in _UNTAKEN
        }

    def _pass_on(self, _number: int, _frame: FrameType | None) -> None:
        self._count += 1
        mark = self._engine.mark()
        pid = mark.pid if mark is not None and mark.alive else self._engine.process.pid
        try:
            os.kill(pid, signal.SIGINT)
        except ProcessLookupError:
            return  # the engine has ended by itself; its final record is still being read

    def news(self) -> Iterator[str]:
        """Yield a line for each signal received since the last call.

        The signal handler itself must not print, because it may interrupt a print.
        """
        while self._told < self._count:
            self._told += 1
            first = self._told == 1
            yield "saving and stopping; Ctrl-C again stops now" if first else "stopping now"

    def restore(self) -> None:
        """Restore the signal handlers that were installed before."""
        for ending, handler in self._before.items():
            signal.signal(ending, handler)


def follow(engine: StartedEngine, say: Callable[[str], None]) -> int:
    """Print a run until it ends and return its exit code.

    It reads the journal directly, so that a fault of the hub cannot hide how the run ends.

    Raises:
        EngineGone: the engine exited without recording how the run ended; the text has the end
            of its log.
    """
    interrupts = Interrupts(engine)
    lines = HeadlessLog()
    try:
        for journal in _readings(engine):
            for line in interrupts.news():
                say(line)
            for record in journal.new():
                for line in lines.lines(record, time.monotonic()):
                    say(one_line(line))
                if isinstance(record.event, ev.RunEnded):
                    _see_off(engine)
                    return record.event.exit_code
            for line in journal.news():
                say(line)
    finally:
        interrupts.restore()
    tail = "\n".join(last_lines(engine.run.engine_log, _LOG_LINES)) or "(it printed nothing)"
    code = engine.process.returncode
    raise EngineGone(
        f"the engine exited without recording how the run ended (exit code {code}); resume from "
        f"the last checkpoint with: fttui run --resume {quote(engine.run.id)}\n"
        f"the end of {engine.run.engine_log}:\n{tail}"
    )


def _see_off(engine: StartedEngine) -> None:
    """Wait up to 30 s for the process to exit after its final record, so a resume can start."""
    with suppress(subprocess.TimeoutExpired):
        engine.process.wait(_LEAVING_S)


class JournalRecords:
    """Reads the records of a journal; a frame that is not a record is left out and counted."""

    def __init__(self, journal: Path, offset: int = 0) -> None:
        self._reader = FrameReader(journal, offset)
        self._unreadable = self._told = 0

    def new(self) -> Iterator[ev.Record]:
        """Yield the records since the last call, without events of later versions of fttui."""
        for payload in self._reader:
            try:
                record = decode_record(payload)
            except DecodeError:
                self._unreadable += 1
                continue
            if record is not None:
                yield record

    def news(self) -> Iterator[str]:
        """Yield a line if frames were left out since the last call."""
        if found := self._unreadable - self._told:
            self._told = self._unreadable
            noun = "frame that is not a record" if found == 1 else "frames that are not records"
            yield f"the journal has {found:,} {noun}; left out here"


def _readings(engine: StartedEngine) -> Iterator[JournalRecords]:
    """Yield the journal of this engine process repeatedly, until shortly after its end."""
    journal = JournalRecords(engine.run.journal, engine.journal_offset)
    gone_at: float | None = None
    while gone_at is None or time.monotonic() - gone_at < _GRACE_S:
        yield journal
        if gone_at is None and engine.process.poll() is not None:
            gone_at = time.monotonic()
        time.sleep(_POLL_S)
