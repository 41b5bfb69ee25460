"""Replay plan: the steps to train again from a checkpoint up to the step of an anomaly.

A journal holds every step with its learning rate and clip, and every command that moved the data or
changed the quarantine or the mix. Read in order, with the steps dropped that a rollback has undone,
it says by which steps the training state of an anomaly came about.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from statistics import median

import msgspec

from ...protocol.commands import SkipBatches
from ...protocol.culprit_text import SEARCHED
from ...protocol.events import (
    AnomalyRaised,
    AnyEvent,
    CheckpointSaved,
    CommandApplied,
    Record,
    RolledBack,
    RunStarted,
    StepFinished,
)
from ...protocol.settings import RunSettings
from ..anomaly import INFO
from .culprits import Figures, Noise

NOISE_STEPS = 20
"""Steps before the anomaly from which the usual noise is estimated."""
EARLIER_STEPS, MOST_EARLIER_STEPS = 3, 8
"""Steps before the first alarm of an incident in which its cause may lie, and the most steps before
an anomaly that are searched."""


class Unrepeatable(Exception):
    """The step of an anomaly cannot be trained again; the text says why."""


class PlannedStep(msgspec.Struct, frozen=True):
    """A step as it was trained, to be trained again."""

    step: int
    position: int
    """Micro-batches that each rank had consumed since the checkpoint, skipped ones included."""
    loss: float
    grad_norm: float
    lr: float
    clip: float | None
    skipped: bool
    """Whether the guard refused the update."""
    quarantine: tuple[str, ...]
    mix: dict[str, float] = {}
    """Weights of the sources by a command; empty for those of the configuration."""
    weight_decay: float | None = None
    """Weight decay by a command; None for that of the configuration."""
    dropout: float | None = None
    """Dropout by a command; None for that of the configuration."""


class ReplayPlan(msgspec.Struct, frozen=True):
    """The way from a checkpoint to the step of an anomaly."""

    anomaly: str
    """Public id of the anomaly."""
    checkpoint: str
    steps: list[PlannedStep]
    """The steps after the checkpoint; the last one is that of the anomaly."""
    noise: Noise
    usual: Figures | None = None
    """Usual figures of the steps before; None if none of them was finite."""
    earlier: int = 0
    """Steps before that of the anomaly whose samples are searched too."""
    wider: ReplayPlan | None = None
    """The plan from an earlier checkpoint, by which the steps before are searched too.

    None if no checkpoint allows it.
    """


class _Saved(msgspec.Struct, frozen=True):
    name: str
    step: int


class _Skipped(msgspec.Struct, frozen=True):
    steps: int


class _Step(msgspec.Struct, frozen=True):
    step: int
    event: StepFinished
    settings: RunSettings
    """The settings in force, of which quarantine, mix, weight decay and dropout are read."""


class _Path:
    """The events by which the present training state came about."""

    def __init__(self) -> None:
        self.entries: list[_Saved | _Skipped | _Step] = []
        self._settings = RunSettings()

    def follow(self, step: int, event: AnyEvent) -> None:
        """Add what the next event of the journal says, or drop what a rollback or resume undid."""
        match event:
            case StepFinished():
                self.entries.append(_Step(step, event, self._settings))
            case CheckpointSaved(name=name, mean_of=[]):
                self.entries.append(_Saved(name, step))
            case RolledBack():
                self._go_back(event.checkpoint, event.to_step)
                self.entries.append(_Skipped(event.skipped_batches))
            case RunStarted(devices=[_, *_]):
                self._settings = RunSettings(
                    quarantine=tuple(event.quarantine),
                    mix=event.mix,
                    weight_decay=event.weight_decay,
                    dropout=event.dropout,
                )
                if event.resumed_from:
                    self._go_back(event.resumed_from, event.start_step)
            case CommandApplied():
                self._change(event)
            case _:
                pass

    def _change(self, event: CommandApplied) -> None:
        if isinstance(command := event.typed, SkipBatches):
            self.entries.append(_Skipped(command.steps))
        if event.settings is not None:
            self._settings = event.settings

    def _go_back(self, checkpoint: str, step: int) -> None:
        """Drop the entries after the record of a checkpoint.

        Without such a record, drop those after `step`, and data skipped at `step` itself: whether
        the checkpoint was written before or after that is not known.
        """
        for at in range(len(self.entries) - 1, -1, -1):
            entry = self.entries[at]
            if isinstance(entry, _Saved) and entry.name == checkpoint:
                del self.entries[at + 1 :]
                return
        later = (isinstance(one, _Step | _Saved) and one.step > step for one in self.entries)
        del self.entries[next((at for at, one in enumerate(later) if one), len(self.entries)) :]
        while self.entries and isinstance(self.entries[-1], _Skipped):
            self.entries.pop()


def plan_replay(
    records: Callable[[], Iterable[Record]],
    anomaly: str,
    checkpoints: Collection[str],
    accumulate: int,
) -> ReplayPlan:
    """Plan how to train the step of an anomaly again.

    Args:
        records: returns the records of the journal, from the beginning, each time it is called.
        anomaly: public id of the anomaly; empty for the newest instability.
        checkpoints: names of the checkpoints that are on disk.
        accumulate: micro-batches of a step.

    Raises:
        Unrepeatable: there is no such anomaly, samples cannot cause its kind, no checkpoint before
            it is on disk, or the journal lacks steps.
    """
    found = _anomaly(records(), anomaly)
    path = _Path()
    for record in records():
        if record.seq == found.seq:
            break
        path.follow(record.step, record.event)
    event = found.event
    assert isinstance(event, AnomalyRaised)
    start = _start(path.entries, found.step, checkpoints, event.id)
    saved = path.entries[start]
    assert isinstance(saved, _Saved)
    steps = _steps(path.entries[start + 1 :], accumulate)
    if not _follow_one_another(saved.step, steps, found.step):
        raise Unrepeatable(
            f"the journal lacks some of the steps {saved.step + 1} to {found.step}, which lead to "
            f"{event.id}"
        )
    before = [one for one in path.entries if isinstance(one, _Step) and one.step < found.step]
    noise = Noise.of([_figures(one.event) for one in before[-NOISE_STEPS:]])
    usual = _usual([_figures(one.event) for one in before[-NOISE_STEPS:]])
    plan = ReplayPlan(event.id, saved.name, steps, noise, usual)
    wanted = found.step - _first_alarm(records(), found) + EARLIER_STEPS
    wider = _wider(plan, path.entries, checkpoints, accumulate, min(wanted, MOST_EARLIER_STEPS))
    return msgspec.structs.replace(plan, wider=wider)


def _follow_one_another(saved: int, steps: Sequence[PlannedStep], last: int) -> bool:
    return [one.step for one in steps] == list(range(saved + 1, last + 1))


def _usual(before: Sequence[Figures]) -> Figures | None:
    finite = [one for one in before if one.finite]
    if not finite:
        return None
    return Figures(median(one.loss for one in finite), median(one.grad_norm for one in finite))


def _first_alarm(records: Iterable[Record], found: Record) -> int:
    """Return the step of the first alarm of an anomaly's incident, or its own step."""
    assert isinstance(found.event, AnomalyRaised)
    first = found.step
    for record in records:
        if record.seq == found.seq:
            break
        if isinstance(record.event, AnomalyRaised) and record.event.id == found.event.incident:
            first = min(record.step, found.step)
    return first


def _wider(
    plan: ReplayPlan,
    entries: Sequence[_Saved | _Skipped | _Step],
    checkpoints: Collection[str],
    accumulate: int,
    wanted: int,
) -> ReplayPlan | None:
    """Return the plan for a search of the steps before that of an anomaly; None if impossible.

    It covers as many steps as wanted, or as many as the checkpoints and the journal allow.
    """
    last = plan.steps[-1].step
    known = [
        (at, entry)
        for at, entry in enumerate(entries)
        if isinstance(entry, _Saved) and entry.step < last - 1 and entry.name in checkpoints
    ]
    before = [one for one in known if one[1].step < last - wanted]
    if not known:
        return None
    at, saved = before[-1] if before else known[0]
    steps = _steps(entries[at + 1 :], accumulate)
    if not _follow_one_another(saved.step, steps, last):
        return None
    earlier = min(wanted, len(steps) - 1)
    return msgspec.structs.replace(plan, checkpoint=saved.name, steps=steps, earlier=earlier)


def _anomaly(records: Iterable[Record], wanted: str) -> Record:
    found: Record | None = None
    for record in records:
        event = record.event
        if not isinstance(event, AnomalyRaised):
            continue
        newest = not wanted and event.severity != INFO and event.kind in SEARCHED
        if newest or event.id == wanted:
            found = record
    if found is None:
        raise Unrepeatable(
            f"no anomaly has the id {wanted}"
            if wanted
            else "no anomaly of the loss or the gradient norm was raised yet"
        )
    assert isinstance(found.event, AnomalyRaised)
    if found.event.kind not in SEARCHED:
        raise Unrepeatable(
            f"{wanted} is an anomaly of the kind {found.event.kind}, which samples do not cause; "
            f"expected one of the kinds {', '.join(sorted(SEARCHED))}"
        )
    return found


def _start(
    entries: Sequence[_Saved | _Skipped | _Step], step: int, known: Collection[str], anomaly: str
) -> int:
    """Return the index of the newest checkpoint before a step that is still on disk.

    Raises:
        Unrepeatable: no such checkpoint; the text names the anomaly.
    """
    for at in range(len(entries) - 1, -1, -1):
        entry = entries[at]
        if isinstance(entry, _Saved) and entry.step < step and entry.name in known:
            return at
    raise Unrepeatable(
        f"no checkpoint from before {anomaly} is on disk; keep more of them (checkpoint.keep), or "
        "pin one (checkpoint pin)"
    )


def _steps(entries: Sequence[_Saved | _Skipped | _Step], accumulate: int) -> list[PlannedStep]:
    position, steps = 0, []
    for entry in entries:
        if isinstance(entry, _Skipped):
            position += entry.steps * accumulate
        elif isinstance(entry, _Step):
            event, (loss, norm), now = entry.event, _figures(entry.event), entry.settings
            steps.append(
                PlannedStep(
                    entry.step,
                    position,
                    loss,
                    norm,
                    event.lr,
                    event.clip,
                    event.skipped,
                    now.quarantine,
                    now.mix,
                    now.weight_decay,
                    now.dropout,
                )
            )
            position += accumulate
    return steps


def _figures(event: StepFinished) -> Figures:
    norm = event.grad_norm
    return Figures(event.loss_or_nan, float("nan") if norm is None else norm)
