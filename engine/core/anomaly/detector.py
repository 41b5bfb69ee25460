"""Anomaly detection on training metrics: one call per record, baselines updated online."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from ..sliding_window import median_of
from .alerts import ALARM, INFO, WATCH, Alert, AlertVerdict, Finding, Findings, to_alert
from .channel import WARMUP_RECORDS
from .progress import NEAR_NORM
from .scale import FIRST_LOSSES
from .state import USUAL_RATE, State, memory_by_rank
from .system import Memory
from .verdicts import Verdicts

_Record = dict[str, Any]
_MEMORY_KEYS = ("vram_gb", "vram_bytes", "mem_allocated_bytes")
"""Other keys for `mem_allocated`; the unit does not matter."""


class Detector:
    """Raises alerts about a stream of training records.

    It counts records, not steps, so it works for any logging interval. Its setting is the rate of
    false alarms of instability; `sensitivity` is a factor on it. Least sizes of a rise are divided
    by the square root of the sensitivity.
    """

    def __init__(
        self,
        sensitivity: float = 1.0,
        *,
        falls_to_zero: bool = False,
        false_alarms: float | None = None,
    ) -> None:
        """Start without any records.

        Args:
            sensitivity: higher values raise more alerts; 1 is the default, and each doubling
                allows ten times as many false alarms.
            false_alarms: false alarms of instability per 10,000 steps at a sensitivity of 1, for
                noise whose tail is no heavier than exponential; None is the usual rate.
            falls_to_zero: the loss goes from chance to zero, as in preference training; it is
                compared in units of the first losses, not by ratios.
        """
        rate = USUAL_RATE if false_alarms is None else false_alarms
        self._state = State(sensitivity=sensitivity, rate=rate)
        self._strict = self._state.strict()
        if falls_to_zero:
            self._state.stability.scale.near_zero = FIRST_LOSSES
        self._verdicts: list[AlertVerdict] = []

    def update(self, record: _Record) -> list[Alert]:
        """Return the alerts that a record raises, and update the baselines with it.

        A step below the one before, as after a rollback, first resets the levels (see `relearn`).
        Verdicts on earlier alerts that are due are kept for `take_verdicts`.

        Args:
            record: `step`, `loss`, `grad_norm`, `lr`, `epoch`, `eval_loss`, `tokens` (of the step,
                on all ranks), `tok_s`, `mem_allocated`, `rank_mem` (the same of every rank),
                `loss_scale`, `rank_s` (each rank's own seconds); for contrastive runs `neg_cos`,
                `contrastive` (that part of the loss) and `candidates`; `forgetting` (the rise of
                the loss on general texts) with `forgetting_limit`. Any may be missing or None;
                a missing step is 0. Loss and norm may be NaN or infinite.
        """
        state = self._state
        if record.get("mem_allocated") is None:
            record = _named(record)
        step = int(record.get("step") or 0)
        gap = step - state.last_step
        if gap < 0:
            self.relearn()
        elif gap != state.interval.steps or state.interval.other:
            self._pass_gap(gap)
        state.last_step = step
        found = self._training(record) + self._settings(record) + self._machine(record)
        if state.verdicts.pending:
            self._judge_earlier(record, step)
        evaluated = record.get("eval_loss")
        if evaluated is not None and math.isfinite(evaluated):
            found += self._overfit(evaluated, step)
        if (rise := record.get("forgetting")) is not None:
            found += self._forgets(rise, record["forgetting_limit"], step)
        if not found:
            return []
        for finding in found:
            state.verdicts.watch(f"{finding.kind}-{step}", state.yardstick(finding))
        interval = max(1, state.interval.steps)
        return [to_alert(finding, step, interval) for finding in found]

    def usual_up_to(self) -> float | None:
        """Return the loss above which the next record may be a spike.

        None while it is unknown, or if it is not finite.
        """
        return self._state.stability.usual_up_to(self._strict)

    def usual_loss(self) -> float | None:
        """Return the usual loss at present, or None while it is unknown."""
        return self._state.stability.loss_level()

    def take_verdicts(self) -> list[AlertVerdict]:
        """Return the verdicts on alerts that were reached since the last call, each only once."""
        taken, self._verdicts = self._verdicts, []
        return taken

    def back_before(self) -> set[str]:
        """Return the ids of alerts without a verdict whose quantity was back to its earlier level.

        The newest record does not count, because it may be an alarm.
        """
        return self._state.verdicts.back()

    def last_verdicts(self) -> list[AlertVerdict]:
        """Return verdicts on all waiting alerts, because the run ends; the state is unchanged."""
        state = self._state
        waiting = Verdicts(pending=list(state.verdicts.pending))
        return waiting.settle(state.last_step, state.back)

    def relearn(self) -> None:
        """Reset the baseline levels, as after a rollback, a new learning rate or other data.

        Spikes and gradient explosions can be found again from the 7th record on, divergences from
        the 16th.
        """
        self._state.stability.relearn()
        self._state.plateau.relearn()

    @property
    def live_state(self) -> State:
        """The state of the detector itself, not a copy; it changes with every record."""
        return self._state

    def state(self) -> dict[str, Any]:
        """Return the whole state as plain values, for a checkpoint."""
        state: dict[str, Any] = msgspec.to_builtins(self._state)
        return state

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Detector:
        """Return a detector that continues exactly from a saved state.

        Raises:
            msgspec.ValidationError: the value is not the state of a detector.
        """
        return cls.over(msgspec.convert(state, State))

    @classmethod
    def over(cls, state: State) -> Detector:
        """Return a detector that works on a state and updates it in place."""
        detector = cls()
        detector._state, detector._strict = state, state.strict()
        return detector

    def _pass_gap(self, gap: int) -> None:
        """Take note of a number of steps between records that is not the usual one.

        All baselines are reset if the log has changed to another interval.
        """
        state = self._state
        if gap and state.last_step >= 0 and state.interval.add(gap):
            state.stability.renew()

    def _judge_earlier(self, record: _Record, step: int) -> None:
        state = self._state
        if (record.get("loss"), record.get("grad_norm")) != (None, None):
            self._verdicts += state.verdicts.update(state.measures(record), step, state.back)

    def _training(self, record: _Record) -> Findings:
        """Return the findings about loss and gradient; empty if a record has neither of them."""
        state = self._state
        loss, norm, lr = record.get("loss"), record.get("grad_norm"), record.get("lr")
        if loss is None and norm is None:
            return ()
        found = state.stability.update(
            loss,
            norm,
            self._strict,
            scaled=bool(record.get("loss_scale")),
            tokens=record.get("tokens") or 0,
            after_gap=state.interval.other > 0,
        )
        climbing = lr is not None and state.top_lr.update(lr)
        if lr is not None:
            state.raised_lr.update(lr)
        if found and climbing and any(f.kind == "divergence" and f.z is None for f in found):
            found += (_lr_too_high(found[0], lr),)
        finite = loss is not None and math.isfinite(loss)
        if not (finite and loss and norm and self._moves(norm)):
            found += self._dead(loss, norm)
        else:
            state.dead.moves(loss)
        if loss is not None and finite:
            found += self._progress(loss, lr)
        if loss is not None and lr is not None and (lr == 0 or state.lr_zero.zeros):
            found += self._lr_zero(lr)
        return found

    def _lr_zero(self, lr: float) -> Findings:
        if not self._state.lr_zero.update(lr):
            return ()
        what, tail = "learning rate", "for ten steps, so nothing is learned"
        return (Finding(kind="lr_misconfig", severity=WATCH, what=what, value=lr, tail=tail),)

    def _moves(self, norm: float) -> bool:
        """Return whether the newest gradient norm is near the largest of the recent ones.

        Such a record needs no test for a dead gradient. False if the records before it are counted
        as records without a gradient.
        """
        recent = self._state.stability.grad.recent
        if not (recent.values and 0 < norm < math.inf):
            return False
        near = recent.ordered[-1] - recent.values[-1] < NEAR_NORM
        return near and not self._state.dead.zeros

    def _dead(self, loss: float | None, norm: float | None) -> Findings:
        state = self._state
        scale, recent = state.stability.scale, state.stability.grad.recent
        idle = False
        if loss == 0:
            if scale.near_zero == FIRST_LOSSES:
                return ()
            # The loss of on-policy objectives may be 0 or negative and still have a gradient.
            idle = norm is not None and (scale.unit is None or scale.signed)
        usual = math.exp(median_of(recent.ordered)) if recent.ordered else None
        if not state.dead.update(None if idle else loss, norm, usual):
            return ()
        if loss == 0 and norm != 0:
            return (Finding(kind="dead", severity=ALARM, what="loss", value=0.0),)
        return (Finding(kind="dead", severity=ALARM, what="gradient", value=norm or 0.0),)

    def _progress(self, loss: float, lr: float | None) -> Findings:
        state = self._state
        learning, scale = state.learning, state.stability.scale
        told = learning.learned or learning.told
        level = None if told else learning.update(loss)
        tail = "has not fallen since the start: the model is not learning"
        if level is None:
            if scale.unit is None:
                return ()
            # A loss other than 0 has been placed, and is the newest value of its signal.
            placed = loss and not state.interval.other
            x = state.stability.loss.last if placed else None
            if not state.plateau.update(scale.to(loss) if x is None else x, lr):
                return ()
            level = state.stability.loss_level()
            tail = f"has not improved measurably for {state.plateau.records} steps"
        if level is None:
            return ()
        return (Finding(kind="plateau", severity=INFO, what="loss", value=level, tail=tail),)

    def _overfit(self, evaluated: float, step: int) -> Findings:
        state = self._state
        self._verdicts += state.verdicts.update({"eval": evaluated}, step, state.back)
        train = state.stability.loss_level()
        shaken = state.verdicts.watches("loss") and not state.plateau.told
        if shaken or train is None or state.stability.loss.count < WARMUP_RECORDS:
            return ()
        best = state.overfit.update(evaluated, train, settled=state.raised_lr.settled)
        if best is None:
            return ()
        what, tail = "evaluation loss", "while training still improves"
        return (
            Finding(
                kind="overfit",
                severity=INFO,
                what=what,
                value=evaluated,
                level=best,
                level_name="its best",
                tail=tail,
            ),
        )

    def _forgets(self, rise: float, limit: float, step: int) -> Findings:
        state = self._state
        self._verdicts += state.verdicts.update({"forgetting": rise}, step, state.back)
        if not state.forgetting.update(rise, limit):
            return ()
        what, name = "rise of the loss on general texts", "its limit"
        found = Finding(
            kind="forgetting", severity=ALARM, what=what, value=rise, level=limit, level_name=name
        )
        return (found,)

    def _settings(self, record: _Record) -> Findings:
        """Return the findings about loss scale and collapse of a contrastive run."""
        found: Findings = ()
        scale = record.get("loss_scale")
        if scale and (fall := self._state.loss_scale.update(scale)):
            found = (_watch("nonfinite", "loss scale", *fall, tail="(repeated overflows)"),)
        negatives, candidates = record.get("neg_cos"), record.get("candidates")
        if negatives is not None or candidates is not None:
            found += self._collapse(record, negatives, candidates)
        return found

    def _collapse(
        self, record: _Record, negatives: float | None, candidates: float | None
    ) -> Findings:
        loss = record.get("contrastive", record.get("loss"))
        alike = self._state.collapse.update(negatives, loss, candidates)
        if alike is None:
            return ()
        what, value, level = alike
        name = "the limit" if what.startswith("mean cosine") else "the loss of random guessing"
        return (
            Finding(
                kind="collapse",
                severity=ALARM,
                what=what,
                value=value,
                level=level,
                level_name=name,
            ),
        )

    def _machine(self, record: _Record) -> Findings:
        state = self._state
        found: Findings = ()
        rate = record.get("tok_s")
        finite = rate is not None and math.isfinite(rate)
        if rate is not None and finite and (low := state.throughput.update(rate)):
            found = (_watch("throughput_drop", "throughput", *low),)
        allocated, memories = record.get("mem_allocated"), state.memories
        if record.get("rank_mem") or not memories:
            if memory := memory_by_rank(record):
                found += self._leaks(memory)
        elif len(memories) > 1:
            pass  # Not every step lists the memory of the ranks; that of this one differs by rank.
        elif allocated is not None and (leak := memories[0].update(float(allocated))):
            alert = _watch("vram_leak", "allocated memory", *leak)
            found += (msgspec.structs.replace(alert, rank=0),)
        seconds = record.get("rank_s")
        if seconds and (slow := state.straggler.update(seconds)):
            rank, own, others = slow
            alert = _watch("straggler", f"seconds of rank {rank}:", own, others)
            found += (msgspec.structs.replace(alert, level_name="those of the other ranks,"),)
        return found

    def _leaks(self, memory: list[float]) -> Findings:
        """Return the worst memory leak that a record completes, or no finding.

        Its text names the other ranks whose memory leaks. Another number of ranks than before
        restarts the detection.
        """
        memories = self._state.memories
        if len(memories) != len(memory):
            memories[:] = [Memory() for _ in memory]
        lows = [*map(Memory.update, memories, memory)]
        if not any(lows):
            return ()
        leaks = [(rank, leak) for rank, leak in enumerate(lows) if leak is not None]
        worst, (now, before) = max(leaks, key=lambda item: item[1][0] / item[1][1])
        what = f"allocated memory of rank {worst}" if len(memory) > 1 else "allocated memory"
        others = ", ".join(str(rank) for rank, _ in leaks if rank != worst)
        found = _watch("vram_leak", what, now, before, tail=others and f"(also on rank {others})")
        return (msgspec.structs.replace(found, rank=worst),)


def _named(record: _Record) -> _Record:
    """Return a record without `mem_allocated` with its memory, if it has any, under that key."""
    for key in _MEMORY_KEYS:
        if record.get(key) is not None:
            return {**record, "mem_allocated": record[key]}
    return record


def _watch(kind: str, what: str, value: float, level: float, tail: str = "") -> Finding:
    return Finding(kind=kind, severity=WATCH, what=what, value=value, level=level, tail=tail)


def _lr_too_high(divergence: Finding, lr: float | None) -> Finding:
    tail = f"while the learning rate rose to {lr:.3g}: too high for this run"
    return _watch("lr_misconfig", "loss", divergence.value, divergence.level or 0.0, tail)
