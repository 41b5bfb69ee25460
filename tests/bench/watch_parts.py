"""What the time of the host in a watched step is spent on: a clock around the parts of the watch.

Every method of `PARTS` is timed while a training runs, without the time of methods of the table
that it calls. What belongs to the script (its loader, forward pass, backward pass, clipping and
optimizer) is timed as well and left out. The clock costs time itself, which is measured first and
taken off; so the sum of the parts is near what the paired comparison finds, and not equal to it.
The detector runs on another thread, beside the backward pass, and is not in the table.
"""

from __future__ import annotations

import functools
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from fttui.engine.train.control.command_executor import CommandExecutor
from fttui.engine.train.control.command_scheduler import CommandScheduler
from fttui.engine.train.event_log import EventLog
from fttui.engine.train.loop import update_seams
from fttui.engine.train.loop.memory_meter import MemoryMeter
from fttui.engine.train.loop.step_clock import StepClock
from fttui.engine.train.loop.step_conclusion import StepConclusion
from fttui.engine.train.loop.step_loop import StepLoop
from fttui.engine.train.loop.step_record import StepRecord
from fttui.engine.train.monitoring.monitor import TrainingMonitor
from fttui.engine.watch.batch_tape import BatchTape
from fttui.engine.watch.huggingface import session
from fttui.engine.watch.huggingface.callback import WatchCallback
from fttui.engine.watch.huggingface.loop import HfLoop
from fttui.engine.watch.huggingface.session import HfSession
from fttui.engine.watch.shield import ShieldedUpdates

SCRIPT = "the script itself"
PARTS: dict[str, dict[type[Any], tuple[str, ...]]] = {
    "seams of the loop and shield": {
        HfLoop: ("get_batch_samples", "training_step", "_judged", "_open", "step_ended",
                 "optimizer_stepped"),
        WatchCallback: ("on_pre_optimizer_step", "on_optimizer_step", "on_step_end"),
        ShieldedUpdates: ("may_backward", "may_update", "gated"),
        HfSession: ("add_figures", "restore_lr", "stepped"),
    },
    "step hooks": {
        StepLoop: ("begin_step", "fetch", "may_continue", "may_backward", "after_backward",
                   "record_loss", "check_update", "optimizer_stepped", "end_step"),
    },
    "commands and boundary": {
        CommandScheduler: ("at_boundary", "interrupted", "before_update", "after_step"),
    },
    "state to undo a step": {CommandExecutor: ("mark",)},
    "tape of batches": {BatchTape: ("load", "fetch")},
    "record of the step": {StepLoop: ("_record",), StepRecord: ("event",)},
    "clock of the device": {StepClock: ("__init__", "lap", "end", "took_s", "lapped_s")},
    "memory and device readings": {MemoryMeter: ("read",)},
    "verdict": {StepConclusion: ("decide",), TrainingMonitor: ("limits", "wants_gradients")},
    "conclusion": {StepConclusion: ("journal", "observe_aside", "observe")},
    "monitor": {TrainingMonitor: ("follow",)},
    "journal": {EventLog: ("record",)},
}  # fmt: skip
"""Methods of the watch by part; a method is timed without those of the table that it calls."""


class PartClock:
    """Adds up the time of parts of a step on one thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.own_s: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)
        self.inner: dict[str, int] = defaultdict(int)
        """Timed calls that the methods of a part have made."""
        self._thread = threading.get_ident()
        self._inside: list[tuple[str, list[float]]] = []
        """The calls under way: the part of each, and the seconds of timed calls within it."""

    def timed(self, part: str, action: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does the same and adds its time to a part."""
        clock, inside, ours = self.clock, self._inside, self._thread

        @functools.wraps(action)
        def measured(*arguments: Any, **named: Any) -> Any:
            if threading.get_ident() != ours:
                return action(*arguments, **named)
            within: list[float] = []
            inside.append((part, within))
            started = clock()
            try:
                return action(*arguments, **named)
            finally:
                took = clock() - started
                inside.pop()
                self.own_s[part] += took - sum(within)
                self.calls[part] += 1
                if inside:
                    around, others = inside[-1]
                    self.inner[around] += 1
                    others.append(took)

        return measured


def _cost_s(clock: Callable[[], float]) -> tuple[float, float]:
    """Return what one timed call adds to its own part, and to the call around it, in seconds."""
    count = 2000

    def nothing() -> None: ...

    def many(action: Callable[[], None]) -> None:
        for _ in range(count):
            action()

    own, around = [], []
    for _ in range(9):
        parts, plain = PartClock(clock), PartClock(clock)
        parts.timed("outer", many)(parts.timed("inner", nothing))
        plain.timed("outer", many)(nothing)
        own.append(parts.own_s["inner"] / count)
        around.append((parts.own_s["outer"] - plain.own_s["outer"]) / count)
    return statistics.median(own), statistics.median(around)


@contextmanager
def timed_parts(clock: Callable[[], float] = time.perf_counter) -> Iterator[PartClock]:
    """Within the block, time the parts of every session that begins in it."""
    parts = PartClock(clock)
    with ExitStack() as patches:
        for part, methods in PARTS.items():
            for owner, names in methods.items():
                for name in names:
                    timed = parts.timed(part, getattr(owner, name))
                    patches.enter_context(mock.patch.object(owner, name, timed))
        _time_the_script(parts, patches)
        yield parts


def _time_the_script(parts: PartClock, patches: ExitStack) -> None:
    """Time what the seams call of the script, so that it is no part of the watch."""
    begin, connect = HfLoop.begin, update_seams.connect_updates

    def timed_begin(loop: HfLoop, *given: Any) -> None:
        for name, own in loop.original.items():
            if name != "_run_epoch":
                loop.original[name] = parts.timed(SCRIPT, own)
        begin(loop, *given)

    def timed_connect(loop: StepLoop, hooks: Any, optimizer: Any, accelerator: Any, *rest: Any,
                      **named: Any) -> None:  # fmt: skip
        optimizer.step = parts.timed(SCRIPT, optimizer.step)
        accelerator.backward = parts.timed(SCRIPT, accelerator.backward)
        connect(loop, hooks, optimizer, accelerator, *rest, **named)

    taken = staticmethod(parts.timed(SCRIPT, BatchTape._next))
    patches.enter_context(mock.patch.object(HfLoop, "begin", timed_begin))
    patches.enter_context(mock.patch.object(session, "connect_updates", timed_connect))
    patches.enter_context(mock.patch.object(BatchTape, "_next", taken))


def table(parts: PartClock, steps: int) -> list[str]:
    """Return the lines of a table: microseconds of the host per step of each part, most first."""
    own_s, around_s = _cost_s(parts.clock)
    spent = {
        part: max(0.0, seconds - parts.calls[part] * own_s - parts.inner[part] * around_s)
        for part, seconds in parts.own_s.items()
        if part != SCRIPT
    }
    rows = sorted(spent.items(), key=lambda row: -row[1])
    lines = [
        f"  {part:30} {1e6 * seconds / steps:6.0f} µs {parts.calls[part] / steps:6.1f} calls"
        for part, seconds in rows
    ]
    return [*lines, f"  {'all parts':30} {1e6 * sum(spent.values()) / steps:6.0f} µs"]
