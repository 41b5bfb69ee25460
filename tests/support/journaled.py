"""Journals of runs that never trained: records with a rollback, as the engine writes them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fttui.engine.protocol.codec import encode
from fttui.engine.protocol.events import (
    AnomalyRaised,
    AnyEvent,
    CheckpointSaved,
    CommandAccepted,
    CommandApplied,
    EvalFinished,
    LogEmitted,
    Record,
    RolledBack,
    RunEnded,
    RunStarted,
    SampleGenerated,
    StepFinished,
)
from fttui.engine.protocol.states import RunState
from fttui.engine.run.journal import FrameWriter
from fttui.engine.run.run_dir import RunDirectory, create_run

CONFIG = "name: x\nmodel: {id: m}\ndata: {train: a.jsonl}\ntrain: {steps: 12, lr: 0.1}\n"
STARTED = 1_700_000_000.0


def new_run(root: Path, config: str = CONFIG) -> RunDirectory:
    return create_run(
        root, name="x", config=root / "x.yaml", source=config, resolved=config, overrides=[],
        version="0",
    )  # fmt: skip


def step(loss: float) -> StepFinished:
    return StepFinished(loss=loss, lr=0.1, grad_norm=None, clip=None, parts={"ce": loss})


def events() -> Iterator[tuple[int, int, AnyEvent]]:
    """Step, timeline and event of a run that is rolled back from step 6 to 4 and ends at step 8."""
    devices: dict[str, Any] = {
        "world_size": 1,
        "micro_batch_size": 1,
        "accumulation": 1,
        "devices": ["cpu"],
    }
    named: dict[str, Any] = {
        "name": "x",
        "incarnation": 1,
        "pid": 1,
        "host": "h",
        "task": "sft",
        "model": "m",
    }
    yield 0, 1, RunStarted(**named, **devices, total_steps=8)
    for number in range(1, 7):
        yield number, 1, step(math.nan if number == 6 else 2 / number)
        if number == 4:
            yield 4, 1, CheckpointSaved(name="step-4", size_bytes=2**20, seconds=0.1)
            yield 4, 1, EvalFinished(metrics={"loss": 0.5}, seconds=1.0)
            yield 4, 1, SampleGenerated(prompt="hi", text="there")
    alarm: dict[str, Any] = {"id": "a1", "kind": "spike", "severity": "alarm"}
    yield 6, 1, AnomalyRaised(**alarm, headline="loss is 9", report="", incident="a1")
    yield 6, 1, CommandAccepted(id="c", command="rollback step-4", issuer="ann", reason="a spike")
    rolled: dict[str, Any] = {"checkpoint": "step-4", "from_step": 6, "to_step": 4}
    yield 4, 2, RolledBack(**rolled, old_timeline=1, new_timeline=2)
    yield 4, 2, CommandApplied(id="c", command="rollback step-4", old="6", new="4", issuer="ann")
    yield 4, 2, LogEmitted(level="info", text="a line")
    for number in range(5, 9):
        yield number, 2, step(1 / number)
    yield 8, 2, RunEnded(state=RunState.FINISHED, exit_code=0)


def records() -> list[Record]:
    return [
        Record(seq=seq, time=STARTED + seq / 10, step=at, timeline=timeline, event=event)
        for seq, (at, timeline, event) in enumerate(events(), 1)
    ]


def write_journal(run: RunDirectory, given: Iterable[Record]) -> None:
    writer = FrameWriter(run.journal, run.journal_lock)
    writer.append(*map(encode, given))
    writer.close()
