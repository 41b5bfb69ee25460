"""Faults of ranks that must act as one: stop signals, stragglers, long pauses, lost ranks."""

from __future__ import annotations

import random
import signal
import time
from functools import partial

from fttui.engine.protocol.events import (
    CheckpointSaved,
    Record,
    RolledBack,
    RunEnded,
    RunStarted,
    StepFinished,
)
from fttui.engine.protocol.states import RunState
from fttui.engine.run.checkpoint_store import CheckpointStore
from fttui.engine.run.journal_summary import summarize_records
from fttui.engine.run.processes.marks import read_engine_status

from .book import Box, Figures, fault, spread
from .invariants import check_run, require
from .stage import SETTINGS, Ranks, read_journal

PHASES = ("loading", "save", "paused", "rolling back", "first step", "accumulation", "eval")
"""Of a stop; the short form has the first five."""


@fault(
    "F18",
    "SIGTERM to all ranks at a random moment of any phase, from loading to a rollback",
    "divergent 0; one complete checkpoint of one step",
    "transformers 5.24 JIT checkpoint: 12 of 30 diverged, crashed or hung",
)
def stop_all_ranks(box: Box) -> Figures:
    seconds: list[float] = []
    divergent: list[str] = []
    trials, too_late = box.count(5, 100), 0
    box.stage.reference()
    for trial in range(trials):
        phase = PHASES[trial % len(PHASES)]
        try:
            took_s, late = _stop_once(box, phase)
            seconds.append(took_s)
            too_late += late
        except AssertionError as error:
            print(f"F18 trial {trial} ({phase}): {error}")
            divergent.append(phase)
    where = f" ({', '.join(divergent)})" if divergent else ""
    where += f", {too_late} signals after the last step" if too_late else ""
    ours = f"divergent {len(divergent)}/{trials}{where}; s to safe {spread(seconds or [0.0])}"
    return Figures(ours, ok=not divergent and 2 * too_late < trials)


def _stop_once(box: Box, phase: str) -> tuple[float, bool]:
    """Return the seconds from the signals to the last exit, and whether they came too late."""
    run = box.stage.new_run(eval__every=6)
    with box.stage.start(run) as ranks:
        _reach(ranks, phase, box)
        started = time.monotonic()
        for rank in box.rng.sample((0, 1), 2):
            ranks.signal(signal.SIGTERM, rank)
            time.sleep(box.rng.uniform(0.0, 0.02))
        codes = ranks.join(30.0)
        seconds = time.monotonic() - started
        require(codes == [0, 0], f"exit codes {codes}")
        late = _check_stopped(ranks)
        witnesses = [ranks.seen(0), ranks.seen(1)]
    check_run(run, witnesses=witnesses, reference=box.stage.reference())
    return seconds, late


def _reach(ranks: Ranks, phase: str, box: Box) -> None:
    """Wait for a phase, then for a moment somewhere in it."""
    if phase == "loading":
        ranks.until(lambda: all(ranks.events(RunStarted, rank) for rank in (0, 1)))
    elif phase == "first step":
        ranks.until_state(RunState.RUNNING)
    elif phase == "rolling back":
        ranks.until_step(6)
        first = CheckpointStore(ranks.run).all()[0].name
        ranks.send(f"rollback {first}")
        ranks.until(lambda: ranks.state() is RunState.ROLLING_BACK or _position(ranks, 0) < 6)
    elif phase == "accumulation":
        ranks.until_step(box.rng.randint(1, 9))
    elif phase == "paused":
        ranks.until_step(2)
        ranks.send("pause")
        ranks.until_state(RunState.PAUSED)
    else:
        wanted = RunState.EVALUATING if phase == "eval" else RunState.SAVING
        ranks.until(lambda: ranks.state() is wanted or ranks.step() > 7)
    time.sleep(box.rng.uniform(0.0, 0.06))


def _position(ranks: Ranks, rank: int) -> int:
    """Return the step that a rank is at, which a rollback moves back."""
    moves = [r.step for r in ranks.seen(rank) if isinstance(r.event, StepFinished | RolledBack)]
    return moves[-1] if moves else 0


def _check_stopped(ranks: Ranks) -> bool:
    """Check how the ranks ended; return whether the signals came too late to stop them."""
    steps = [_position(ranks, rank) for rank in (0, 1)]
    require(steps[0] == steps[1], f"the ranks stopped at steps {steps}")
    saved = [{e.name for e in ranks.events(CheckpointSaved, rank)} for rank in (0, 1)]
    require(saved[0] == saved[1], f"the ranks saved {saved}")
    kept = [one for one in CheckpointStore(ranks.run).all() if one.step == steps[0]]
    saved_last = kept[-1:]
    # Before the first step there is nothing to save.
    require(bool(saved_last) or steps[0] == 0, f"nothing saved at step {steps[0]}")
    for last in saved_last:
        require(last.step == steps[0], f"saved step {last.step}, stopped at {steps[0]}")
        rng = {name for name in last.files if name.startswith("rng")}
        require(len(rng) == 2, f"generators of {len(rng)} ranks")
    ended = [r.event.state for r in read_journal(ranks.run) if isinstance(r.event, RunEnded)]
    late = steps[0] == SETTINGS["train__steps"]  # the run was over before the signal
    expected = RunState.FINISHED if late else RunState.STOPPED
    require(ended == [expected], f"the run's last word at step {steps[0]} is {ended}")
    return late


@fault(
    "F21",
    "rank 1 sleeps at random before boundaries while commands come",
    "every command at the same step on all ranks; divergent 0",
    "rank 0 acting alone: ranks a step apart, or a hang until the timeout of 10 min",
)
def straggle(box: Box) -> Figures:
    longest_s, commands = (2.0, 40) if box.long else (0.3, 8)
    run = box.stage.new_run()
    sabotage = partial(_sleep_at_boundaries, longest_s=longest_s, seed=box.rng.random())
    with box.stage.start(run, sabotage=sabotage) as ranks:
        ranks.until_step(1)
        acked = []
        for number in range(commands):
            acked.append(ranks.send(("note a", "lr scale 1.0", "checkpoint now")[number % 3]))
            ranks.outcome(acked[-1])
            time.sleep(box.rng.uniform(0.0, longest_s / 4))
            if ranks.step() > 50:
                break
        ranks.finish()
        witnesses = [ranks.seen(0), ranks.seen(1)]
        skews = [event.skew_s for event in ranks.events(StepFinished)]
    check_run(run, acked=acked, witnesses=witnesses, reference=box.stage.reference())
    ours = f"{len(acked)} commands, divergent 0; sleeps up to {longest_s} s, compute skew s "
    return Figures(ours + spread(skews, 3), ok=True)


def _sleep_at_boundaries(rank: int, *, longest_s: float, seed: float) -> None:
    from fttui.engine.train.loop.step_loop import StepLoop

    rng, begin_step = random.Random(seed), StepLoop.begin_step

    def begin_late(self: StepLoop) -> bool:
        if rank == 1:
            time.sleep(rng.uniform(0.0, longest_s))
        return begin_step(self)

    StepLoop.begin_step = begin_late  # type: ignore[method-assign]  # the injected fault


@fault(
    "F22",
    "a pause of several times the timeouts of both groups, then on to the end",
    "exact continuation, loss diff 0",
    "one rank waiting alone: the group dies at its timeout (NCCL 10 min, gloo 30 min)",
)
def pause_long(box: Box) -> Figures:
    timeout_s, pause_s = (60.0, 900.0) if box.long else (4.0, 9.0)
    run = box.stage.new_run(train__collective_timeout_s=timeout_s)
    sabotage = partial(_short_agreement_timeout, seconds=timeout_s)
    with box.stage.start(run, sabotage=sabotage) as ranks:
        ranks.until_step(5)
        ranks.send("pause")
        ranks.until_state(RunState.PAUSED)
        resume_at = time.monotonic() + pause_s
        ranks.until(lambda: time.monotonic() > resume_at, 2 * pause_s)
        ranks.send("resume")
        ranks.finish(step=20)
        witnesses = [ranks.seen(0), ranks.seen(1)]
    records = check_run(run, witnesses=witnesses, reference=box.stage.reference())
    steps = sum(isinstance(record.event, StepFinished) for record in records)
    ours = f"paused {pause_s:g} s under a timeout of {timeout_s:g} s; {steps} steps, loss diff 0"
    return Figures(ours, ok=steps >= 20)


def _short_agreement_timeout(_rank: int, *, seconds: float) -> None:
    from fttui.engine.train.distributed import rank_agreement

    rank_agreement.TIMEOUT_S = seconds


@fault(
    "F23",
    "kill -9 rank 1 while running and while paused",
    "others out ≤ 10 s; the last event says who is missing and what to do",
    "the others wait in the collective for its timeout (NCCL 10 min, gloo 30 min)",
)
def lose_rank(box: Box) -> Figures:
    seconds, errors = [], []
    for trial in range(box.count(2, 20)):
        run = box.stage.new_run()
        with box.stage.start(run) as ranks:
            ranks.until_step(box.rng.randint(2, 8))
            if trial % 2:
                ranks.send("pause")
                ranks.until_state(RunState.PAUSED)
            time.sleep(box.rng.uniform(0.0, 0.05))
            started = time.monotonic()
            ranks.signal(signal.SIGKILL, 1)
            code = ranks.join(30.0)[0]
            seconds.append(time.monotonic() - started)
            require(code not in (0, None), f"rank 0 ended with {code}")
        records = check_run(run, reference=box.stage.reference())
        last = records[-1].event
        require(isinstance(last, RunEnded), f"the last events are {_tail(records)}")
        assert isinstance(last, RunEnded)
        state = summarize_records(records).status.state(read_engine_status(run))
        require(state is RunState.FAILED, "the run does not count as failed")
        require("rank" in last.error and "--resume" in last.error, f"no way on: {last.error}")
        errors.append(last.error)
    named = sum("rank 1" in error for error in errors)
    ours = f"{len(seconds)} kills; s until the others are out {spread(seconds)}; named {named}"
    return Figures(ours, ok=max(seconds) <= 10.0 and named == len(errors))


def _tail(records: list[Record]) -> list[str]:
    return [f"{type(r.event).__name__} {getattr(r.event, 'text', '')}" for r in records[-3:]]


@fault(
    "F23B",
    "kill -9 rank 1 with restarts allowed, then the start that torchrun would make",
    "incarnation + 1 from the last checkpoint, settings kept, sequence goes on",
    "torchrun --max-restarts with transformers: starts again at step 0 unless the script resumes",
)
def restart_after_loss(box: Box) -> Figures:
    restarts = box.count(1, 3)
    run = box.stage.new_run(train__restarts=restarts)
    for attempt in range(restarts + 1):
        with box.stage.start(run, attempt=(attempt, restarts)) as ranks:
            ranks.until_step(6 + 6 * attempt)
            require(attempt == 0 or _clips(ranks) == {77.0}, "the settings were lost")
            if attempt == restarts:
                ranks.finish()
                break
            ranks.outcome(ranks.send("clip 77"))
            ranks.signal(signal.SIGKILL, 1)
            require(ranks.join(30.0)[0] not in (0, None), "rank 0 did not follow")
    records = check_run(run)
    starts = [r.event for r in records if isinstance(r.event, RunStarted) and r.event.devices]
    found = [(event.incarnation, event.resumed_from is not None) for event in starts]
    require(found == [(n + 1, n > 0) for n in range(restarts + 1)], f"starts: {found}")
    ours = f"{restarts} restarts: incarnations 1…{restarts + 1}, seq 1…{len(records)}, gaps 0"
    return Figures(ours, ok=True)


def _clips(ranks: Ranks) -> set[float | None]:
    return {event.clip for event in ranks.events(StepFinished)}
