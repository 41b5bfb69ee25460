"""A training loop in plain PyTorch under the control of fttui: the second `ControlledTrainer`.

Nothing of the Hugging Face stack takes part, so what passes here holds for any loop that calls the
step hooks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from fttui.engine.config.load import parse_resolved
from fttui.engine.data.batches.batch_source import Batch, BatchSource, InMemoryBatches
from fttui.engine.data.batches.sampler import BatchStream
from fttui.engine.data.tokens.examples import Example, TextExample
from fttui.engine.protocol.commands import Chat, Command, GenerateSample
from fttui.engine.protocol.settings import RunSettings
from fttui.engine.run.control_log import ControlWriter
from fttui.engine.run.journal_summary import summarize_journal
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.checkpoint.counters import Counters
from fttui.engine.train.checkpoint.rng import (
    capture_rng,
    restore_rng,
    rng_from_tensors,
    rng_to_tensors,
)
from fttui.engine.train.checkpoint.training_state import Boundary
from fttui.engine.train.control.controlled_trainer import EvalResult, StepHooks
from fttui.engine.train.controlled_session import ControlSetup
from fttui.engine.train.distributed.agreement import SingleRank
from fttui.engine.train.journal_writer import JournalWriter
from fttui.engine.train.position import Position
from fttui.engine.train.session_start import SessionStart
from fttui.engine.train.signals import StopSignals

from .training import Played, Script, ScriptedEventLog, read_records
from .words import Words

WIDTH = 4
STEPS = 8
ACCUMULATE = 2


class PlainLoop:
    """Fits a linear map with dropout; implements `ControlledTrainer` and its exact state."""

    def __init__(self, position: Position) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda n: 1 - n / 100)
        self.position = position
        self.refuses: dict[type[Command], str] = {
            GenerateSample: "it has no tokenizer",
            Chat: "it has no tokenizer",
        }
        self.data = batch_source()
        self.can_evaluate = True
        self._move(0)

    @property
    def state(self) -> PlainLoop:
        """The loop is its own exact state."""
        return self

    def _move(self, step: int) -> None:
        self.position.move_to(step, float(self.schedule.get_last_lr()[0]))

    def prepare(self, settings: RunSettings) -> None: ...

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of the next update."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def evaluate(self, interrupted: Callable[[], bool]) -> EvalResult:
        """Return the loss on a fixed batch."""
        assert not interrupted()
        self.model.eval()
        with torch.no_grad():
            loss = float(self._loss(torch.eye(WIDTH)))
        self.model.train()
        return EvalResult({"loss": loss}, 0.0)

    def sample(self, prompt: str) -> str:
        """Never called: the loop does not obey the command."""
        raise AssertionError(prompt)

    def chat(self, chat: Chat, record: object, interrupted: object) -> str:
        """Never called: the command is refused."""
        raise AssertionError(chat)

    def release_memory(self) -> int:
        """Nothing is on a device."""
        return 0

    def reclaim_memory(self) -> None:
        """Nothing is on a device."""

    def _loss(self, x: Tensor) -> Tensor:
        return (self.model(x) - 3 * x).square().mean() / ACCUMULATE

    def train(self, hooks: StepHooks, steps: int = STEPS) -> None:
        """The loop that a user would write, with the step hooks in it."""
        while self.position.step < steps and hooks.begin_step():
            self.optimizer.zero_grad()
            for batch in hooks.fetch(ACCUMULATE):
                if not hooks.may_continue():
                    break
                loss = self._loss(batch["x"])
                hooks.record_loss(loss.detach())
                if hooks.may_backward():
                    loss.backward()
            hooks.check_update(lambda limit: clip_grad_norm_(self.model.parameters(), limit))
            if hooks.may_update():
                self.optimizer.step()
                hooks.optimizer_stepped()
            self.schedule.step()
            self._move(self.position.step + 1)
            hooks.end_step(last=self.position.step >= steps)

    def mark(self, position: int) -> Boundary:
        """Return what a step may have to give back."""
        return Boundary(
            step=self.position.step,
            position=position,
            scheduler=dict(self.schedule.state_dict()),
            rng=capture_rng(),
        )

    def return_to(self, boundary: Boundary) -> None:
        """Undo a step that was started but not applied."""
        self.schedule.load_state_dict(boundary.scheduler)
        restore_rng(boundary.rng)
        self._move(boundary.step)

    def gathered(self) -> AbstractContextManager[None]:
        """Nothing has to be gathered."""
        return nullcontext()

    def save_shared(self, folder: Path, counters: Counters) -> None:
        """Write model, optimizer and schedule."""
        parts = (self.model.state_dict(), self.optimizer.state_dict(), self.schedule.state_dict())
        torch.save((*parts, counters), folder / "plain.pt")

    def save_own(self, folder: Path, rank: int) -> None:
        """Write the random generators."""
        torch.save(rng_to_tensors(capture_rng()), folder / f"rng-{rank}.pt")

    def stage(self, folder: Path, rank: int) -> Any:
        """Read a checkpoint."""
        rng = rng_from_tensors(torch.load(folder / f"rng-{rank}.pt", weights_only=True))
        return torch.load(folder / "plain.pt", weights_only=False), rng

    def apply(self, staged: Any) -> Counters:
        """Put a checkpoint in place."""
        (model, optimizer, schedule, counters), rng = staged
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)
        self.schedule.load_state_dict(schedule)
        restore_rng(rng)
        self._move(counters.step)
        found: Counters = counters
        return found

    def fingerprint(self, counters: Counters) -> bytes:
        """With one rank there is nothing to compare."""
        return b""


def batch_source() -> BatchSource:
    """Batches of rows that depend on nothing but their position."""
    examples = [TextExample(f"row {n}", [n], [n]) for n in range(32)]

    def collate(chosen: Sequence[Example]) -> Batch:
        rows = [example.input_ids[0] for example in chosen if isinstance(example, TextExample)]
        x = torch.stack([torch.sin(torch.arange(WIDTH) + float(row)) for row in rows])
        return {"x": x, "token_count": len(rows), "document_count": len(rows)}

    stream = BatchStream(len(examples), 4, ACCUMULATE, 0, 1, 0)
    return BatchSource(InMemoryBatches(examples, stream), collate)


class Poisoned(PlainLoop):
    """Has a loss of NaN at one step."""

    def __init__(self, position: Position, step: int) -> None:
        super().__init__(position)
        self._step = step

    def _loss(self, x: Tensor) -> Tensor:
        loss = super()._loss(x)
        return loss * math.nan if self.position.step + 1 == self._step else loss


def play_plain(
    run: RunDirectory,
    script: Script | None = None,
    make: Callable[[Position], PlainLoop] = PlainLoop,
    resume: str | None = None,
) -> tuple[Played, PlainLoop]:
    """Train a plain loop under control, with commands at chosen steps."""
    config = parse_resolved(run.config.read_text())
    writer, control_log = JournalWriter(run, lambda run: None), ControlWriter(run)
    history = summarize_journal(writer.recovered)
    event_log = ScriptedEventLog(writer, control_log, script or Script(), history.timeline)
    loop = make(event_log.position)
    setup = ControlSetup(
        start=SessionStart(run, history, resume, control_log.last_seq),
        config=config,
        agreement=SingleRank(),
        event_log=event_log,
        signals=StopSignals(),
        device=torch.device("cpu"),
    )
    session = setup.over(loop, loop.model, Words()).session
    try:
        session.resume(resume, history, STEPS)
        loop.train(session.step_loop)
        outcome = session.conclude()
    finally:
        writer.close()
        control_log.close()
    return Played(run, outcome, read_records(run)), loop
