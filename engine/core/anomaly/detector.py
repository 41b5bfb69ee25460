"""The detector: one call per logged record, a few alerts per run."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from .alerts import ALARM, INFO, INSTABILITY, WATCH, Alert, Verdict
from .channel import WARMUP_RECORDS, from_scale, to_scale
from .instability import Finding, Instability
from .machine import Memory, Throughput
from .runstate import Dead, NoLearning, Overfit
from .verdicts import Verdicts

_Record = dict[str, Any]


class State(msgspec.Struct):
    """Everything the detector knows; holds finite numbers only, so it survives JSON."""

    sensitivity: float = 1.0
    last_step: int = -1
    unstable: Instability = msgspec.field(default_factory=Instability)
    dead: Dead = msgspec.field(default_factory=Dead)
    learning: NoLearning = msgspec.field(default_factory=NoLearning)
    overfit: Overfit = msgspec.field(default_factory=Overfit)
    throughput: Throughput = msgspec.field(default_factory=Throughput)
    memory: Memory = msgspec.field(default_factory=Memory)
    verdicts: Verdicts = msgspec.field(default_factory=Verdicts)


class Detector:
    """Finds what is wrong in a stream of training records.

    Counts records, not steps, so it works for any logging interval. Its only knob is
    `sensitivity`: all limits on noise and size are divided by its square root, so that 4 halves
    and 0.25 doubles them.
    """

    def __init__(self, sensitivity: float = 1.0) -> None:
        self._state = State(sensitivity=sensitivity)
        self._verdicts: list[Verdict] = []

    def update(self, record: _Record) -> list[Alert]:
        """Judge one record and learn from it.

        Args:
            record: `step`, `loss`, `grad_norm`, `lr`, `epoch`, `eval_loss`, `tok_s` and
                `mem_allocated`; any may be missing or None, loss and norm may be NaN or infinite.
        """
        state = self._state
        step = int(record.get("step") or 0)
        if step < state.last_step:
            self.relearn()
        state.last_step = step
        found = self._training(record, step) + self._machine(record)
        evaluated = record.get("eval_loss")
        if evaluated is not None and math.isfinite(evaluated):
            found += self._overfit(evaluated)
        alerts = [_to_alert(finding, step) for finding in found]
        for alert in alerts:
            if alert.severity == ALARM and alert.kind in INSTABILITY:
                state.verdicts.watch(alert, state.unstable)
        return alerts

    def take_verdicts(self) -> list[Verdict]:
        """Verdicts on earlier alarms since the last call."""
        taken, self._verdicts = self._verdicts, []
        return taken

    def relearn(self) -> None:
        """Learn the levels anew: after a rollback to foreign state, a new LR, other data.

        For about a dozen records only what is not finite is an alarm.
        """
        self._state.unstable.relearn()

    def state(self) -> dict[str, Any]:
        """All it knows, as plain values for a checkpoint."""
        return _as_dict(msgspec.to_builtins(self._state))

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Detector:
        """A detector that goes on exactly where the one that gave `state` was.

        Raises:
            msgspec.ValidationError: this is not such a state.
        """
        detector = cls()
        detector._state = msgspec.convert(state, State)
        return detector

    def _training(self, record: _Record, step: int) -> list[Finding]:
        """What the loss and the gradient of a step say; nothing in a record without either."""
        state = self._state
        loss, norm = record.get("loss"), record.get("grad_norm")
        if loss is None and norm is None:
            return []
        found = state.unstable.update(loss, norm, 1 / math.sqrt(state.sensitivity))
        if state.verdicts.pending:
            self._verdicts += state.verdicts.update(_on_scale(loss, norm), step)
        grad = state.unstable.grad.recent
        usual = math.exp(grad.median()) if len(grad) else None
        if state.dead.update(loss, norm, usual):
            found.append(Finding(kind="dead", severity=ALARM, what="gradient", value=norm or 0.0))
        level = state.learning.update(loss) if loss is not None and math.isfinite(loss) else None
        if level is not None:
            tail = "after all these steps: not learning"
            found.append(
                Finding(kind="plateau", severity=INFO, what="loss", value=level, tail=tail)
            )
        return found

    def _overfit(self, evaluated: float) -> list[Finding]:
        channel = self._state.unstable.loss
        shaken = bool(self._state.verdicts.pending)
        if shaken or channel.count < WARMUP_RECORDS:
            return []
        best = self._state.overfit.update(evaluated, from_scale(channel.recent.median()))
        if best is None:
            return []
        what, tail = "evaluation loss", "while training still improves"
        return [
            Finding(
                kind="overfit", severity=INFO, what=what, value=evaluated, level=best, tail=tail
            )
        ]

    def _machine(self, record: _Record) -> list[Finding]:
        found = []
        rate, memory = record.get("tok_s"), record.get("mem_allocated")
        if (
            rate is not None
            and math.isfinite(rate)
            and (low := self._state.throughput.update(rate))
        ):
            found.append(_machine_finding("throughput_drop", "throughput", low))
        if memory is not None and (leak := self._state.memory.update(float(memory))):
            found.append(_machine_finding("vram_leak", "allocated memory", leak))
        return found


def _on_scale(loss: float | None, norm: float | None) -> dict[str, float | None]:
    return {
        "loss": to_scale(loss) if loss is not None and math.isfinite(loss) else None,
        "grad": math.log(norm) if norm and norm > 0 and math.isfinite(norm) else None,
    }


def _machine_finding(kind: str, what: str, values: tuple[float, float]) -> Finding:
    return Finding(kind=kind, severity=WATCH, what=what, value=values[0], level=values[1])


def _to_alert(finding: Finding, step: int) -> Alert:
    value, level = finding.value, finding.level
    ratio = None
    if level is not None and level > 0 and math.isfinite(value):
        ratio = value / level
    return Alert(
        id=f"{finding.kind}-{step}",
        kind=finding.kind,
        severity=finding.severity,
        step=step,
        headline=_headline(finding, ratio),
        value=value,
        baseline=level,
        z=finding.z,
        ratio=ratio,
    )


def _headline(finding: Finding, ratio: float | None) -> str:
    words = [f"{finding.what} {_figure(finding.value)}"]
    if ratio is not None and ratio > 0 and finding.level is not None:
        words.append(f"is ×{ratio:.3g} its level {_figure(finding.level)}")
    elif finding.level is not None:
        words.append(f"against its level {_figure(finding.level)}")
    if finding.z is not None:
        words.append(f"(z {finding.z:.0f})")
    if finding.tail:
        words.append(finding.tail)
    return " ".join(words)


def _figure(value: float) -> str:
    return f"{value:.4g}"


def _as_dict(value: Any) -> dict[str, Any]:
    assert isinstance(value, dict)
    return value
