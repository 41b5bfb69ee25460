"""A run that trains a counter: the engine's own main, control, journal and checkpoints, no model.

It takes some hundredths of a second and always does the same operations in the same order, so that
a fault can be injected at every one of them. The hub is in the same process: commands pass through
the real intake and control journal, and what it acknowledges is written down.
"""

from __future__ import annotations

import json
import os
import sys
import types
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
import torch

import fttui.engine.__main__ as engine_main
from fttui.engine.config.load import load_config, parse_resolved
from fttui.engine.data.batches.batch_source import Batch, SeenExamples
from fttui.engine.hub.intake import ClockReading, Intake
from fttui.engine.protocol.commands import Chat, Command, GenerateSample, parse_command
from fttui.engine.protocol.events import AnyEvent, RunStarted, StepFinished
from fttui.engine.protocol.requests import Accepted, SubmitCommand
from fttui.engine.protocol.settings import RunSettings
from fttui.engine.protocol.states import RunState
from fttui.engine.run.control_log import ControlWriter
from fttui.engine.run.folder.open_folder import write_all
from fttui.engine.run.run_dir import RunDirectory, create_run
from fttui.engine.train.checkpoint.counters import Counters
from fttui.engine.train.control.controlled_trainer import EvalResult, StepHooks
from fttui.engine.train.controlled_session import (
    ControlledSession,
    ControlSetup,
    SessionOutcome,
)
from fttui.engine.train.distributed.agreement import Agreement, SingleRank
from fttui.engine.train.event_log import EventLog
from fttui.engine.train.journal_writer import JournalWriter
from fttui.engine.train.position import Position
from fttui.engine.train.session_start import SessionStart
from fttui.engine.train.signals import StopSignals

from .words import Words

parse_once = cache(parse_resolved)
"""Parsing takes longer than the run; a process that forks runs parses once."""
STEPS = 9
ACCUMULATE = 2
MODULUS = 2**31 - 1
CONFIG = """
name: counter
task: sft
model: {id: counter, quantize: none}
data: {train: counter.jsonl, accept: [all]}
train: {steps: 9, batch: 1, accumulate: 2, lr: 0.01}
eval: {every: 0}
checkpoint: {every: 2, keep: 2}
"""


def advanced(counter: int, position: int) -> tuple[int, float]:
    """The counter after a step that starts at a data position, and the loss of that step."""
    for batch in range(position, position + ACCUMULATE):
        counter = (counter * 48271 + batch) % MODULUS
    return counter, 2.0 + counter % 17 / 1000


class Numbers:
    """The micro-batches: each is its own position."""

    def __init__(self) -> None:
        self.position = 0
        self.seen = SeenExamples([], [])

    @property
    def epoch(self) -> float:
        """Passes over a hundred batches."""
        return self.position / 100

    def fetch(self, micro_batches: int) -> list[Batch]:
        """The next positions."""
        first, self.position = self.position, self.position + micro_batches
        return [
            {"n": n, "token_count": 1, "document_count": 1} for n in range(first, self.position)
        ]

    def prepare(self, micro_batches: int) -> None:
        """Nothing is prefetched."""

    mix_changes = ()

    def rewind_to(self, position: int, changes: object = ()) -> None:
        """Go back."""
        self.position = position

    return_to = rewind_to

    def skip(self, micro_batches: int) -> None:
        """Leave out."""
        self.position += micro_batches


@dataclass
class Mark:
    """The start of a step."""

    step: int
    position: int
    counter: int


class Counter:
    """Counts; implements `ControlledTrainer` and its exact state."""

    def __init__(self, position: Position) -> None:
        self.position = position
        self.refuses: dict[type[Command], str] = {
            GenerateSample: "a counter has no words",
            Chat: "a counter has no words",
        }
        self.data = Numbers()
        self.can_evaluate = False
        self.counter = 1
        self.position.move_to(0, 0.01)

    @property
    def state(self) -> Any:
        """The counter is its own exact state."""
        return self

    def prepare(self, settings: RunSettings) -> None: ...

    def set_lr(self, lr: float) -> None:
        """The counter has no learning rate."""

    def evaluate(self, interrupted: Callable[[], bool]) -> EvalResult:
        """Never called: there is nothing held out."""
        raise AssertionError(interrupted)

    def sample(self, prompt: str) -> str:
        """Never called: the counter does not obey the command."""
        raise AssertionError(prompt)

    def chat(self, chat: Chat, record: object, interrupted: object) -> str:
        """Never called: the command is refused."""
        raise AssertionError(chat)

    def release_memory(self) -> int:
        """Nothing is on a device."""
        return 0

    def reclaim_memory(self) -> None:
        """Nothing is on a device."""

    def train(self, hooks: StepHooks, steps: int) -> None:
        """Count to the end."""
        while self.position.step < steps and hooks.begin_step():
            start = self.data.position
            for _ in hooks.fetch(ACCUMULATE):
                if not hooks.may_continue():
                    break
                _, loss = advanced(self.counter, start)
                hooks.record_loss(torch.tensor(loss / ACCUMULATE))
                hooks.may_backward()
            hooks.check_update(lambda _limit: torch.tensor(1.0))
            if hooks.may_update():
                self.counter, _ = advanced(self.counter, start)
                hooks.optimizer_stepped()
            self.position.move_to(self.position.step + 1, 0.01)
            hooks.end_step(last=self.position.step >= steps)

    def mark(self, position: int) -> Any:
        """What a step may have to give back."""
        return Mark(self.position.step, position, self.counter)

    def return_to(self, boundary: Any) -> None:
        """Undo a step."""
        self.counter = boundary.counter
        self.position.move_to(boundary.step, 0.01)

    def gathered(self) -> AbstractContextManager[None]:
        """Nothing has to be gathered."""
        return nullcontext()

    def save_shared(self, folder: Path, counters: Counters) -> None:
        """Write the counter."""
        state = {"counter": self.counter, "step": counters.step, "position": counters.position}
        _write(folder / "counter.json", json.dumps(state).encode())
        _write(folder / "counters.bin", msgspec.msgpack.encode(counters))

    def save_own(self, folder: Path, rank: int) -> None:
        """Write what would be the random generators."""
        _write(folder / f"rng-{rank}.bin", b"generator" * 20)

    def stage(self, folder: Path, rank: int) -> Any:
        """Read a checkpoint."""
        (folder / f"rng-{rank}.bin").read_bytes()
        counters = msgspec.msgpack.decode((folder / "counters.bin").read_bytes(), type=Counters)
        return json.loads((folder / "counter.json").read_text())["counter"], counters

    def apply(self, staged: Any) -> Counters:
        """Put a checkpoint in place."""
        self.counter, counters = staged
        self.position.move_to(counters.step, 0.01)
        found: Counters = counters
        return found

    def fingerprint(self, counters: Counters) -> bytes:
        """What all ranks must agree on."""
        return f"{self.counter} {counters.step}".encode()


def _write(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        write_all(descriptor, data)
    finally:
        os.close(descriptor)


@dataclass
class Desk:
    """The person at the keyboard and the hub, in the engine's process."""

    run: RunDirectory
    commands: dict[int, list[str]] = field(default_factory=dict)
    """Commands to send when a step is journaled."""
    acknowledged: Callable[[str], None] = lambda _: None
    """Called with the id of each accepted command that is recorded."""

    def __post_init__(self) -> None:
        self._control: ControlWriter | None = None
        self._intake: Intake | None = None
        self._sent = 0

    def listen(self, event: AnyEvent, step: int) -> None:
        """Send what is due after a step."""
        if isinstance(event, StepFinished):
            for text in self.commands.pop(step, []):
                self.send(text)

    def open(self) -> None:
        """Become the hub; one that cannot start is started again."""
        for _ in range(2):
            with suppress(OSError):
                self._control = ControlWriter(self.run)
                self._intake = Intake(self._control)
                return

    def send(self, text: str) -> bool:
        """Submit a command; return whether it was accepted."""
        if self._intake is None:
            return False
        self._sent += 1
        id_ = f"p{os.getpid()}-{self._sent}"
        answer = self._intake.submit(
            SubmitCommand(ref=1, id=id_, command=parse_command(text), viewer="me", issuer="me"),
            state=RunState.RUNNING,
            now=ClockReading(0.0),
        )
        if isinstance(answer, Accepted) and not answer.unjournaled:
            self.acknowledged(id_)
        elif isinstance(answer, Accepted):
            os.kill(os.getpid(), 2)  # as the hub stops an engine whose disk is full
        return isinstance(answer, Accepted)


def new_counting_run(root: Path) -> RunDirectory:
    """The folder of a run that counts."""
    return create_run(
        root,
        name="counter",
        config=root / "counter.yaml",
        source=CONFIG,
        resolved=_resolved(),
        overrides=[],
        version="0",
    )


@cache
def _resolved() -> str:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "counter.yaml"
        path.write_text(CONFIG)
        (Path(folder) / "counter.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
        resolved = load_config(path, []).resolved
    parse_once(resolved)
    return resolved


def count_to_the_end(desk: Desk, *, resume: str | None = None) -> int:
    """Be the engine of a run until it ends; return its exit code."""
    desk.open()
    counting: Any = types.ModuleType("fttui.engine.train.session")
    counting.train = partial(_train, desk)
    sys.modules["fttui.engine.train.session"] = counting
    engine: Any = engine_main
    engine.JournalWriter = partial(JournalWriter, in_thread=False)
    engine.read_resolved = lambda path: parse_once(path.read_text())
    engine.launch_hub = lambda _run: None
    return engine_main.main([str(desk.run.path), *(["--from", resume] if resume else [])])


def _train(
    desk: Desk,
    start: SessionStart,
    started: RunStarted,
    _place: Any,
    event_log: EventLog,
    signals: StopSignals,
) -> SessionOutcome:
    """In place of `session.train`: the same parts around a counter."""
    run, agreement = start.run, SingleRank()
    event_log.listen(lambda event: desk.listen(event, event_log.step))
    session, counter = build_session(run, start, started.incarnation, agreement, event_log, signals)
    session.resume(start.resume, start.history, STEPS)
    counter.train(session.step_loop, STEPS)
    return session.conclude()


def build_session(
    run: RunDirectory,
    start: SessionStart,
    incarnation: int,
    agreement: Agreement,
    event_log: EventLog,
    signals: StopSignals,
) -> tuple[ControlledSession, Counter]:
    """Build a controlled session around a counter."""
    config = parse_once(run.config.read_text())
    counter = Counter(event_log.position)
    setup = ControlSetup(
        start=start,
        config=config,
        agreement=agreement,
        event_log=event_log,
        signals=signals,
        device=torch.device("cpu"),
        incarnation=incarnation,
    )
    return setup.over(counter, torch.nn.Module(), Words()).session, counter
