"""Faults of time and of numbers: frozen trainers, clocks that jump, values that are none."""

from __future__ import annotations

import asyncio
import ctypes
import math
import os
import signal
import time
from collections.abc import Awaitable, Callable

from fttui.engine.protocol.commands import AddNote
from fttui.engine.protocol.events import StepFinished
from fttui.engine.run.run_dir import RunDirectory
from fttui.tui.connection.local import LocalSession
from fttui.tui.text.format import number
from fttui.tui.view_model.app_state import AppState, fold
from fttui.tui.view_model.connection_port import CommandAnswered, Delivery, Link
from tests.support.engine_double import EngineDouble, make_run, step_event

from .audience import kill, streaming
from .book import Box, Figures, fault
from .emitter import begin
from .invariants import check_journal, require
from .stage import read_journal
from .viewers import hub_of, until_async

_FROZEN_S = 30.0


@fault(
    "F30",
    "the trainer frozen: stopped (SIGSTOP), or the GIL held in C",
    "said as `no step for N s`, while the link stays live",
    "ZeroMQ heartbeats: a held GIL never seen, a stop after 0.8 s as disconnected",
)
def frozen_trainer(box: Box) -> Figures:
    stopped = make_run(box.folder / "stopped")
    held = make_run(box.folder / "held")
    holder = box.stage.spawn(_hold_gil, held)
    try:
        with streaming(box, stopped) as engine:
            hub_of(held)
            after_stop, after_hold = asyncio.run(
                _notice_stalls(
                    _notice_stall(stopped, lambda: os.kill(engine, signal.SIGSTOP)),
                    _notice_stall(held, (held.path / "hold").touch),
                )
            )
    finally:
        kill(holder)
    ours = f"said after {after_stop:.1f} s (stopped), {after_hold:.1f} s (GIL); link live"
    return Figures(ours, ok=max(after_stop, after_hold) <= 10.0)


async def _notice_stalls(*stalls: Awaitable[float]) -> list[float]:
    """Seconds until each is noticed; all wait at the same time."""
    return await asyncio.gather(*stalls)


async def _notice_stall(run: RunDirectory, freeze: Callable[[], object]) -> float:
    """Seconds from the freeze until the app would show that no step comes."""
    state = AppState()

    def take(delivery: Delivery) -> None:
        nonlocal state
        state = fold(state, [delivery], time.time())

    session = LocalSession(run)
    listening = asyncio.create_task(session.listen(take))
    await until_async(lambda: state.run.step > 100)
    freeze()
    seconds = await until_async(lambda: state.stalled_s(time.time()) is not None)
    require(state.link.link is Link.LIVE, f"the link is {state.link.link}")
    await session.close()
    listening.cancel()
    return seconds


def _hold_gil(run: RunDirectory) -> None:
    """Step, then sleep in C without giving the interpreter lock back."""
    journal_writer, step = begin(run, hub=True)
    while not (run.path / "hold").exists():
        step += 1
        journal_writer.emit(step_event(step), step=step, timeline=1)
        time.sleep(0.005)
    ctypes.PyDLL(None).sleep(int(_FROZEN_S))


@fault(
    "F32",
    "the clock jumps ±1 h, NaN and 1e308 losses, 10 000 metric names",
    "order by sequence number, NaN shown as NaN, nothing breaks",
    "Hugging Face logs a NaN loss as 0.0",
)
def odd_numbers(box: Box) -> Figures:
    run = make_run(box.folder / "runs")
    engine = EngineDouble(run)
    engine.start()
    odd = [1.0, math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, 0.0]
    jumps = [0.0, 3600.0, -3600.0, 0.0]
    for index in range(400):
        engine.step += 1
        loss = odd[index % len(odd)]
        event = StepFinished(loss=loss, grad_norm=loss, lr=1e-4, step_s=0.1)
        engine.emit(event, at=time.time() + jumps[index // 100])
    engine.step += 1
    names = {f"metric/{index}": float(index) for index in range(10_000)}
    engine.emit(StepFinished(loss=1.0, grad_norm=1.0, extra=names))
    seen, shown, accepted = asyncio.run(_see_all(run, engine))
    require(seen == [r.seq for r in read_journal(run)], "not in order")
    require(shown == {"NaN", "∞", "-∞"}, f"shown as {shown}")
    check_journal(run)
    _end(run, engine)
    wrong = sum(text in ("0", "0.0") for text in shown)
    ours = f"{len(seen)} records in order, wrong renders {wrong}, command by a clock 20 s off taken"
    return Figures(ours, ok=accepted)


def _end(run: RunDirectory, engine: EngineDouble) -> None:
    os.kill(hub_of(run).pid, signal.SIGKILL)
    engine.journal.close()


async def _see_all(run: RunDirectory, engine: EngineDouble) -> tuple[list[int], set[str], bool]:
    """What a viewer gets, how odd losses are written, and whether a skewed command is taken."""
    seen: list[int] = []
    losses: list[float] = []
    answers: dict[str, bool] = {}
    state = AppState()

    def take(delivery: Delivery) -> None:
        nonlocal state
        state = fold(state, [delivery], time.time())
        if isinstance(delivery, CommandAnswered):
            answers[delivery.id] = delivery.accepted
        for record in getattr(delivery, "records", ()):
            seen.append(record.seq)
            if isinstance(record.event, StepFinished):
                losses.append(record.event.loss_or_nan)

    session = LocalSession(run, clock=lambda: time.time() - 20.0)
    listening = asyncio.create_task(session.listen(take))
    await until_async(lambda: len(seen) == engine.seq)
    id_ = session.submit(AddNote(text="late clock"))
    await until_async(lambda: id_ in answers)
    await session.close()
    listening.cancel()
    odd = {number(loss) for loss in losses if not math.isfinite(loss)}
    return seen, odd, answers[id_]
