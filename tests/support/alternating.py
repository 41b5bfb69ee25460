"""A stepper that makes some steps as ever, some in silence and some as the bare HF loop would."""

from __future__ import annotations

import statistics
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import fttui.engine.train.controlled_session as session
from fttui.engine.data.batches.batch_source import Batch
from fttui.engine.protocol.events import AnyEvent, StepFinished
from fttui.engine.train.loop import hf_bridge
from fttui.engine.train.loop.step_loop import StepLoop
from fttui.engine.train.loop.step_metrics import StepMetrics
from fttui.engine.train.loop.update_gate import UpdateGate
from fttui.engine.train.patches import poison_nonfinite
from tests.support.device_clock import between, mark

_POLL_S = 0.02
_BURSTS, _BURST = 50, 200
"""Records of a burst come at once; between bursts the writer thread gets done."""


class Ways:
    """How each step goes, and what is measured of all of them."""

    def __init__(self, steps: list[str], seen: Path) -> None:
        self.steps = steps
        """By step: `watched`, `waited` for its verdict as well, `quiet` or `bare`; with `, counted`
        its waits for the device are counted."""
        self.seen = seen
        """A file that says that the viewers are there."""
        self.marks: list[Any] = []
        self.idle: list[tuple[Any, Any]] = []
        """From the end of what one step has asked the device for to what the next one asks."""
        self.cold: list[float] = []
        self.burst: list[float] = []
        self.waits = Waits()

    def install(self) -> None:
        """From now on the engine's stepper goes these ways."""
        session_patch: Any = session
        session_patch.StepLoop = lambda **parts: Alternating(self, **parts)
        bridge_patch: Any = hf_bridge
        bridge_patch.poison_nonfinite = _poison_unless_bare(poison_nonfinite)

    def measured(self) -> dict[str, Any]:
        """Seconds by step, and the rest."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        pairs = zip(self.marks, self.marks[1:], strict=False)
        return {
            "spans": [between(before, after) for before, after in pairs],
            "idle_s": statistics.median(between(*marks) for marks in self.idle),
            "handoff_us": 1e6 * statistics.fmean(self.burst),
            "handoff_cold_us": 1e6 * statistics.median(self.cold),
            "waits": self.waits.found(self.steps),
        }


class Alternating(StepLoop):
    """Goes the way that is planned for each step."""

    def __init__(self, ways: Ways, **parts: Any) -> None:
        super().__init__(**parts)
        self._ways = ways
        self._late: Any = self._conclusion
        self._speaking: Any = self._late._event_log
        self._journal_writer: Any = vars(self._speaking)["_journal_writer"]
        self._number = 0
        self._bare = False
        self._asked_last: Any = None
        self._gate: UpdateGate | None = None
        emit = self._journal_writer.emit

        def timed(event: AnyEvent, **where: int) -> None:
            started = time.perf_counter()
            emit(event, **where)
            ways.cold.append(time.perf_counter() - started)

        self._emit = emit
        self._journal_writer.emit = timed

    @property
    def bare(self) -> bool:
        """The step at hand is the HF loop's alone."""
        return self._bare

    def begin_step(self) -> bool:
        """The next way; a bare step has no boundary."""
        while self._number == 0 and not self._ways.seen.exists():
            time.sleep(_POLL_S)
        way = self._ways.steps[self._number]
        if way.startswith(("bare", "waited")):
            self.conclude()
        self._gate = self._gate or self._late.gate
        self._late.gate = None if way.startswith("waited") else self._gate
        self._number += 1
        self._ways.marks.append(mark())
        self._ways.waits.watch(way if "counted" in way else "")
        self._bare = way.startswith("bare")
        watched = way.startswith(("watched", "waited"))
        self._speaking._journal_writer = self._journal_writer if watched else None
        if self._bare:
            self.tally = StepMetrics()
            return True
        return super().begin_step()

    def fetch(self, micro_batches: int) -> list[Batch]:
        """The step's micro-batches; a bare step counts nothing."""
        if not self._bare:
            return super().fetch(micro_batches)
        batches = self.source.fetch(micro_batches)
        for batch in batches:
            batch.pop("token_count", None)
            batch.pop("document_count", None)
        return batches

    def may_continue(self) -> bool:
        """Also tells how long the device had nothing to do before a step."""
        if self._bare:
            return True
        if self._asked_last is not None:
            self._ways.idle.append((self._asked_last, mark()))
            self._asked_last = None
        return super().may_continue()

    def may_backward(self) -> bool:
        """Nothing is asked in a bare step."""
        return self._bare or super().may_backward()

    def check_update(self, clip: Callable[[float], Tensor]) -> Tensor:
        """A bare step is clipped and not judged."""
        return clip(1.0) if self._bare else super().check_update(clip)

    def may_update(self) -> bool:
        """A bare step always may."""
        return self._bare or super().may_update()

    def end_step(self, *, last: bool = False) -> bool:
        """After the last one, hand many records over."""
        self._asked_last = None if self._bare or self._late.gate is None else mark()
        counted = True if self._bare else super().end_step(last=last)
        if self._number == len(self._ways.steps):
            self._ways.marks.append(mark())
            self._ways.waits.watch("")
            self._speaking._journal_writer = self._journal_writer
            self._hand_over()
        return counted

    def _hand_over(self) -> None:
        event = StepFinished(loss=1.0, parts={"ce": 1.0}, grad_norm=1.0, lr=1e-4, tokens=4096)
        for _ in range(_BURSTS):
            started = time.perf_counter()
            for _ in range(_BURST):
                self._emit(event, step=self._speaking.step, timeline=1)
            self._ways.burst.append((time.perf_counter() - started) / _BURST)
            time.sleep(0.03)


class Waits:
    """Counts what waits for the device, by PyTorch's own word, and where."""

    def __init__(self) -> None:
        self._way = ""
        self._places: dict[str, Counter[str]] = {}
        self._plain = warnings.showwarning

    def watch(self, way: str) -> None:
        """Count the waits of the steps that follow as this way's; nothing with an empty name."""
        self._way = way
        if not torch.cuda.is_available():
            return
        torch.cuda.set_sync_debug_mode("warn" if way else "default")
        if way:
            self._places.setdefault(way, Counter())
            warnings.simplefilter("always")
            warnings.showwarning = self._heard

    def _heard(self, message: Any, *rest: Any, **named: Any) -> None:
        if self._way and "synchronizing CUDA operation" in str(message):
            self._places[self._way][_place()] += 1

    def found(self, steps: list[str]) -> dict[str, Any]:
        """Waits per step and their places, by way."""
        return {
            way: {"per_step": places.total() / steps.count(way), "where": dict(places)}
            for way, places in self._places.items()
        }


def _place() -> str:
    frames = [f for f in traceback.extract_stack() if "alternating" not in f.filename]
    named = [f for f in frames if "/engine/" in f.filename] or frames
    deepest = [f for f in frames if "warnings" not in f.filename][-1]
    return " in ".join(f"{Path(f.filename).name}:{f.lineno}" for f in (deepest, named[-1]))


def _poison_unless_bare(poison: Callable[[Any, StepLoop], None]) -> Callable[[Any, Any], None]:
    def install(accelerator: Any, step_loop: Any) -> None:
        plain = accelerator.backward
        poison(accelerator, step_loop)
        marked = accelerator.backward

        def backward(loss: Tensor, **named: Any) -> None:
            (plain if step_loop.bare else marked)(loss, **named)

        accelerator.backward = backward

    return install
