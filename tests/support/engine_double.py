"""A stand-in engine: appends journal records and answers control entries, without torch.

As a program: `python engine_double.py RUN_DIR [--steps N] [--step-s S] [--no-hub] [--die]`.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from fttui.engine.hub.launch import launch_hub
from fttui.engine.protocol.codec import encode
from fttui.engine.protocol.commands import Pause, Resume, Stop, describe_command
from fttui.engine.protocol.events import (
    AnyEvent,
    CommandAccepted,
    CommandApplied,
    CommandFailed,
    Record,
    RunEnded,
    RunStarted,
    StateChanged,
    StepFinished,
)
from fttui.engine.protocol.states import RunState
from fttui.engine.run.control_log import ControlEntry, ControlReader
from fttui.engine.run.journal import FrameReader, FrameWriter
from fttui.engine.run.processes.marks import EngineMark, ProcessMark, write_mark
from fttui.engine.run.run_dir import RunDirectory, create_run


def make_run(root: Path, *, name: str = "double", idle_s: float = 600.0) -> RunDirectory:
    """A run folder as `fttui run` makes it."""
    return create_run(
        root,
        name=name,
        config=root / "c.yaml",
        source="name: double\n",
        resolved=f"name: {name}\nhub:\n  idle_s: {idle_s}\n",
        overrides=[],
        version="0",
    )


def step_event(step: int) -> StepFinished:
    return StepFinished(
        loss=float("nan") if step == 3 else 5.0 / (step + 1), grad_norm=1.0, lr=1e-4, step_s=0.01
    )


class EngineDouble:
    """Owns the journal of a run in this process."""

    def __init__(self, run: RunDirectory, *, total_steps: int = 1000) -> None:
        self.run = run
        run.logs.mkdir(exist_ok=True)
        self.journal = FrameWriter(run.journal, run.journal_lock)
        self.seq = len(self.journal.recovered)
        self.timeline = 1
        self.step = 0
        self.total_steps = total_steps
        self.state = RunState.STARTING
        self.control = ControlReader(run)

    def prepare(self) -> None: ...

    def mark(self) -> None:
        me = ProcessMark.current()
        mark = EngineMark(pid=me.pid, started=me.started, identity=me.identity)
        write_mark(self.run.engine, mark)

    def emit(self, *events: AnyEvent, at: float | None = None) -> None:
        payloads = []
        for event in events:
            self.seq += 1
            record = Record(
                seq=self.seq,
                time=at or time.time(),
                step=self.step,
                timeline=self.timeline,
                event=event,
            )
            payloads.append(encode(record))
        self.journal.append(*payloads)

    def start(self, incarnation: int = 1) -> None:
        self.mark()
        self.emit(
            RunStarted(
                name="double",
                incarnation=incarnation,
                pid=ProcessMark.current().pid,
                host="here",
                world_size=1,
                task="sft",
                model="none",
                total_steps=self.total_steps,
                micro_batch_size=1,
                accumulation=1,
                devices=["cpu"],
            )
        )
        self.go(RunState.RUNNING)

    def go(self, state: RunState) -> None:
        self.state = state
        self.emit(StateChanged(state=state))

    def train(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.step += 1
            self.emit(step_event(self.step))

    def train_fast(self, steps: int) -> None:
        """Many steps in one write, half a second apart."""
        now, payloads = time.time(), []
        for index in range(steps):
            self.seq, self.step = self.seq + 1, self.step + 1
            event = step_event(self.step)
            moment = now - 0.5 * (steps - index)
            record = Record(
                seq=self.seq, time=moment, step=self.step, timeline=self.timeline, event=event
            )
            payloads.append(encode(record))
        self.journal.append(*payloads)

    def obey(self) -> None:
        """Take what the control journal holds and tell its outcome."""
        if self.control.waiting() > self.control.seen_seq:
            for entry in self.control.take(self.control.waiting()):
                self._apply(entry)

    def _apply(self, entry: ControlEntry) -> None:
        text = describe_command(entry.command)
        self.emit(CommandAccepted(id=entry.id, command=text, issuer=entry.issuer))
        if text == "eval":
            self.emit(CommandFailed(id=entry.id, command=text, reason="nothing to evaluate on"))
            return
        self.emit(CommandApplied(id=entry.id, command=text, old="a", new="b"))
        match entry.command:
            case Pause():
                self.go(RunState.PAUSED)
            case Resume():
                self.go(RunState.RUNNING)
            case Stop():
                self.state = RunState.STOPPED

    def end(self, state: RunState = RunState.FINISHED) -> None:
        self.emit(RunEnded(state=state, exit_code=0))
        self.journal.close()


def journal_payloads(run: RunDirectory) -> list[bytes]:
    """Every record of a run's journal, encoded."""
    return list(FrameReader(run.journal))


def ticks(period_s: float) -> Iterator[int]:
    """Counts up, once per period."""
    for count in itertools.count():
        yield count
        time.sleep(period_s)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    steps = int(os.environ.get("DOUBLE_STEPS", "100000"))
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--step-s", type=float, default=0.02)
    parser.add_argument("--no-hub", action="store_true")
    parser.add_argument("--die", action="store_true", help="print an error and leave no word")
    parser.add_argument("--from", dest="checkpoint")
    options = parser.parse_args()
    engine = EngineDouble(RunDirectory(options.run), total_steps=options.steps)
    stopping: list[int] = []
    signal.signal(signal.SIGINT, lambda *_: stopping.append(1))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    engine.start()
    if not options.no_hub:
        launch_hub(engine.run)
    for tick in ticks(options.step_s):
        engine.obey()
        if tick % 100 == 0:
            engine.journal.sync()  # as the publisher does: what is not synced stays in memory
        if engine.state is RunState.RUNNING:
            engine.train()
        if stopping or engine.state is RunState.STOPPED:
            engine.end(RunState.STOPPED)
            return 0
        if engine.step >= options.steps:
            break
    if options.die:
        print("RuntimeError: the double was told to die", file=sys.stderr, flush=True)
        return 1
    engine.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
