"""Faults of stopping: a stop at any moment, from the first import to the last step."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from functools import partial
from typing import Any

from fttui.engine.protocol.commands import Stop
from fttui.engine.protocol.events import RunEnded, RunStarted, StepFinished
from fttui.engine.protocol.states import RunState
from fttui.engine.run.control_log import ControlWriter
from fttui.engine.run.run_dir import RunDirectory
from tests.support.waiting import until

from .book import Box, Figures, fault, spread
from .invariants import check_run, control_entries, require
from .stage import Ranks, outcomes, read_journal

_PROMPT_S = 20.0
"""The machine may be busy; an engine that waits for the end of loading is not caught by time, but
by its end: it would train a step."""


@fault(
    "F36",
    "SIGTERM or a stop command at moments from the start of the process to its first step",
    "the run ends as stopped, the command has its outcome, no step is trained",
    "Hugging Face: a signal while loading kills the process without a word",
)
def stop_while_loading(box: Box) -> Figures:
    trials = box.count(2, 40)
    loads_s = _seconds_to_load(box) if box.long else 4.0
    waits, early = [], 0
    for number in range(trials):
        moment = loads_s * box.rng.uniform(0.0, 0.9)
        run = box.stage.new_run(train__devices=1, train__steps=3)
        waits.append(_stop(run, moment, by_command=bool(number % 2)))
        early += not read_journal(run)
    ours = f"{trials} moments in the first {loads_s:.1f} s: stopped after {spread(waits, 1)} s"
    return Figures(f"{ours}; {early} before the journal was open", ok=max(waits) < _PROMPT_S)


@fault(
    "F39",
    "SIGTERM to one of 2 ranks or to both, or a stop command, while they load, one of them slowly",
    "both ranks end as stopped, the command has its outcome, no step is trained",
    "torchrun: SIGTERM to one rank is a failed run; SIGKILL to the others after 30 s",
)
def stop_while_ranks_load(box: Box) -> Figures:
    trials = box.count(4, 60)
    waits, trained = [], 0
    for number in range(trials):
        slow = box.rng.choice([0, 1, None]) if number else 1
        run = box.stage.new_run(train__devices=2, train__steps=1000)
        with box.stage.start(run, sabotage=partial(_load_slowly, slow=slow)) as ranks:
            ranks.until(partial(_started, run))
            time.sleep(box.rng.uniform(0.0, 2.0))
            waits.append(_stop_ranks(ranks, [(1,), (0,), (0, 1), ()][number % 4]))
        found = check_run(run, acked=[entry.id for entry in control_entries(run)])
        ends = [r.event.state for r in found if isinstance(r.event, RunEnded)]
        require(ends == [RunState.STOPPED], f"ended as {ends}")
        steps = sum(isinstance(r.event, StepFinished) for r in found)
        require(slow is None or not steps, f"{steps} steps before rank {slow} was there")
        trained += bool(steps)
    ours = f"{trials} moments, {trained} of them behind a first step: stopped after"
    return Figures(f"{ours} {spread(waits, 1)} s", ok=max(waits) < _PROMPT_S)


def _load_slowly(rank: int, *, slow: int | None) -> None:
    """Let a rank come to the first boundary long after the other one."""
    if rank != slow:
        return
    session: Any = importlib.import_module("fttui.engine.train.session")
    load = session.load_model

    def slowly(*given: Any) -> Any:
        time.sleep(4 * _PROMPT_S)
        return load(*given)

    session.load_model = slowly


def _stop_ranks(ranks: Ranks, signalled: tuple[int, ...]) -> float:
    """Signal these ranks, or send a stop command; return the seconds until both have ended."""
    asked = time.monotonic()
    for rank in signalled:
        ranks.signal(signal.SIGTERM, rank)
    if not signalled:
        ranks.send("stop")
    codes = ranks.join()
    require(codes == [0, 0], f"exit codes {codes}: {ranks.run.engine_log.read_text()[-2000:]}")
    return time.monotonic() - asked


def _seconds_to_load(box: Box) -> float:
    run = box.stage.new_run(train__devices=1, train__steps=1)
    started = time.monotonic()
    engine = _engine(run)
    until(lambda: engine.poll() is not None or any(r.step for r in read_journal(run)), 120.0)
    seconds = time.monotonic() - started
    require(engine.wait(60.0) == 0, f"the engine failed: {run.engine_log.read_text()[-500:]}")
    return seconds


def _engine(run: RunDirectory) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with open(run.engine_log, "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "fttui.engine", str(run.path)],
            stdout=log, stderr=log, start_new_session=True, env=environment,
        )  # fmt: skip


def _stop(run: RunDirectory, moment_s: float, *, by_command: bool) -> float:
    """Ask an engine to stop after a time; return how long it took."""
    control = ControlWriter(run)
    engine = _engine(run)
    if by_command:
        until(lambda: engine.poll() is not None or _started(run), 60.0)
    else:
        time.sleep(moment_s)
    asked = time.monotonic()
    if by_command:
        Ranks.entry(control, "stop")
    else:
        engine.send_signal(signal.SIGTERM)
    code = engine.wait(90.0)
    waited = time.monotonic() - asked
    control.close()
    records = check_run(run, acked=[e.id for e in control_entries(run)])
    if not records and code == -signal.SIGTERM:
        return waited  # before Python could install a handler
    require(code == 0, f"exit code {code}: {run.engine_log.read_text()[-800:]}")
    ends = [r.event for r in records if isinstance(r.event, RunEnded)]
    require([e.state for e in ends] == [RunState.STOPPED], f"ended as {ends}")
    for found in outcomes(records).values():
        require(
            isinstance(getattr(found[0].event, "applied", None), Stop), "the stop had no effect"
        )
    return waited


def _started(run: RunDirectory) -> bool:
    return any(isinstance(record.event, RunStarted) for record in read_journal(run))
