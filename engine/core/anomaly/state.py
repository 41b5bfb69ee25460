"""The state of the detector, and the yardstick by which each kind of alert gets its verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from .alerts import Finding
from .contrastive import Collapse
from .instability import Instability, Strictness
from .lr_checks import LossScale, LrZero, RaisedLr, TopLr
from .progress import FLAT_BLOCKS, Dead, Forgetting, NoLearning, Overfit, Plateau
from .system import SLOW_RANK, Memory, Straggler, Throughput
from .verdicts import Verdicts, Yardstick

BACK_SD = 2.0
BACK_RISE = 0.03
"""A loss within 3 % or two standard deviations of its old level counts as recovered."""
GRAD_BACK_RISE = math.log(2)
"""A gradient norm within a factor of two of its old level counts as recovered."""
RATE_BACK = 0.1
"""Throughput within about 10 % of its old level counts as recovered."""
IMPROVED = 0.02
"""A plateau is over if the loss has fallen by 2 %, or by one standard deviation."""
SCALE_BACK = math.log(4)
"""A loss scale within a factor of four of its old value counts as recovered."""

INTERVAL_FACTOR = 4
"""Ratio of steps between records from which the log has changed to another interval."""

USUAL_RATE = 5.0
"""False alarms of instability per 10,000 steps."""
RATE_POWER = 3.3
"""Twice the sensitivity allows ten times as many false alarms."""


def _by_value(finding: Finding) -> Yardstick:
    """Return the yardstick for a finding while the run has no level to compare with yet.

    The finding is over when the loss is near the finding's own level or, if it has none, when
    values are finite again.
    """
    if finding.level is None:
        return Yardstick(channel="odd", level=0.0)
    return Yardstick(channel="plain loss", level=finding.level, margin=BACK_RISE * finding.level)


def memory_by_rank(record: Mapping[str, Any]) -> list[float]:
    """Return the allocated memory of each rank in a record, in the record's unit.

    A record without that gives the memory of its own rank, or an empty list.
    """
    ranks = record.get("rank_mem")
    if ranks:
        return [float(held) for held in ranks]
    alone = record.get("mem_allocated")
    return [] if alone is None else [float(alone)]


class Interval(msgspec.Struct):
    """The number of steps between records, and whether it has changed for good.

    Records that are much closer together or further apart than those before have another noise,
    and change more from one to the next.
    """

    steps: int = 0
    """Usual number of steps between records; 0 while unknown."""
    other: int = 0
    """The last number of steps, if it is far from the usual one; else 0."""

    def add(self, gap: int) -> bool:
        """Add the number of steps since the record before; return whether a new interval begins.

        One gap alone is a pause of the log; two alike are another interval.
        """
        if not self.steps or not _far_apart(gap, self.steps):
            self.steps, self.other = gap, 0
            return False
        if not self.other or _far_apart(gap, self.other):
            self.other = gap
            return False
        self.steps, self.other = gap, 0
        return True


def _far_apart(gap: int, other: int) -> bool:
    return gap > INTERVAL_FACTOR * other or other > INTERVAL_FACTOR * gap


class State(msgspec.Struct):
    """The state of all parts of the detector; all numbers are finite, so that JSON can hold it."""

    sensitivity: float = 1.0
    rate: float = USUAL_RATE
    """False alarms of instability per 10,000 steps, at a sensitivity of 1."""
    last_step: int = -1
    interval: Interval = msgspec.field(default_factory=Interval)
    stability: Instability = msgspec.field(default_factory=Instability)
    dead: Dead = msgspec.field(default_factory=Dead)
    learning: NoLearning = msgspec.field(default_factory=NoLearning)
    plateau: Plateau = msgspec.field(default_factory=Plateau)
    overfit: Overfit = msgspec.field(default_factory=Overfit)
    forgetting: Forgetting = msgspec.field(default_factory=Forgetting)
    collapse: Collapse = msgspec.field(default_factory=Collapse)
    lr_zero: LrZero = msgspec.field(default_factory=LrZero)
    top_lr: TopLr = msgspec.field(default_factory=TopLr)
    raised_lr: RaisedLr = msgspec.field(default_factory=RaisedLr)
    loss_scale: LossScale = msgspec.field(default_factory=LossScale)
    throughput: Throughput = msgspec.field(default_factory=Throughput)
    memories: list[Memory] = []
    """Leak detectors by rank."""
    straggler: Straggler = msgspec.field(default_factory=Straggler)
    verdicts: Verdicts = msgspec.field(default_factory=Verdicts)

    def strict(self) -> Strictness:
        """Return the thresholds of instability alarms, from rate and sensitivity."""
        rate = self.rate * self.sensitivity**RATE_POWER
        return Strictness.of_rate(rate, 1 / math.sqrt(self.sensitivity))

    def yardstick(self, finding: Finding) -> Yardstick:
        """Return the yardstick that decides whether a finding is over."""
        return self._by_level(finding) or _by_value(finding)

    def _by_level(self, finding: Finding) -> Yardstick | None:
        """Return the yardstick by the level learned so far; None if none is known yet."""
        level = finding.level or 0.0
        match finding.kind, finding.what:
            case "grad_explosion" | "nonfinite" | "unstable", "grad norm":
                by = self._grad_back()
            case "plateau", _:
                by = self._improved()
            case "nonfinite", "loss scale":
                by = Yardstick(channel="scale", level=-math.log(level), margin=SCALE_BACK)
            case "throughput_drop", _:
                by = Yardstick(channel="rate", level=-math.log(level), margin=RATE_BACK)
            case "vram_leak", _:
                now = finding.value
                by = Yardstick(
                    channel=f"memory {finding.rank}", level=now, margin=0.01 * now, records=60
                )
            case "overfit" | "forgetting", _:
                channel = "eval" if finding.kind == "overfit" else finding.kind
                by = Yardstick(channel=channel, level=level, records=2, last=1)
            case "straggler", _:
                by = Yardstick(channel="lead", level=SLOW_RANK)
            case "dead" | "collapse", _:
                by = Yardstick(channel=finding.kind, level=0.0)
            case "lr_misconfig", "learning rate":
                by = Yardstick(channel="lr_zero", level=0.0)
            case _:
                by = self._loss_back(finding.kind)
        return by

    def _grad_back(self) -> Yardstick | None:
        recent = self.stability.grad.recent
        if not len(recent):
            return None
        margin = max(BACK_SD * self._sd("grad"), GRAD_BACK_RISE)
        return Yardstick(channel="grad", level=recent.median(), margin=margin)

    def _loss_back(self, kind: str) -> Yardstick | None:
        source = self.stability.loss.recent
        if kind == "divergence" and len(self.stability.trend.best):
            source = self.stability.trend.best
        if not len(source):
            return None
        margin = max(BACK_SD * self._sd("loss"), BACK_RISE)
        return Yardstick(channel="loss", level=source.median(), margin=margin)

    def _improved(self) -> Yardstick | None:
        recent = self.stability.loss.recent
        if not len(recent):
            return None
        level = recent.median() - max(IMPROVED, self._sd("loss"))
        return Yardstick(channel="loss", level=level, records=FLAT_BLOCKS)

    def _sd(self, channel: str) -> float:
        signal = self.stability.loss if channel == "loss" else self.stability.grad
        return signal.sds()[0] if len(signal.bends) else 0.0

    def measures(self, record: Mapping[str, Any]) -> dict[str, float | None]:
        """Return the quantities of a record by name, on the scales of the yardsticks.

        The value is None if it has no place on its scale, such as one that is not finite. A
        quantity that the record does not have is left out.
        """
        loss, norm, rate = record.get("loss"), record.get("grad_norm"), record.get("tok_s")
        known = [value for value in (loss, norm) if value is not None]
        odd = not all(math.isfinite(value) for value in known)
        found: dict[str, float | None] = {
            "odd": None if odd else 0.0,
            "dead": self.dead.zeros,
            "collapse": self.collapse.alike + self.collapse.guessing,
            "lr_zero": self.lr_zero.zeros,
        }
        if loss is not None and self.stability.scale.unit is not None:
            found["loss"] = self.stability.scale.to(loss) if math.isfinite(loss) else None
        if loss is not None:
            found["plain loss"] = loss if math.isfinite(loss) else None
        if norm is not None:
            found["grad"] = math.log(norm) if norm > 0 and math.isfinite(norm) else None
        if rate is not None and rate > 0 and math.isfinite(rate):
            found["rate"] = -math.log(rate)
        if scale := record.get("loss_scale"):
            found["scale"] = -math.log(scale)
        for rank, held in enumerate(memory_by_rank(record)):
            found[f"memory {rank}"] = held
        if self.straggler.leads:
            found["lead"] = max(self.straggler.leads)
        return found

    def back(self, channel: str, x: float) -> float:
        """Convert a value from the scale of a quantity to its own unit."""
        match channel:
            case "loss":
                return self.stability.scale.back(x)
            case "grad" | "lead":
                return math.exp(x)
            case "rate" | "scale":
                return math.exp(-x)
            case _:
                return x
