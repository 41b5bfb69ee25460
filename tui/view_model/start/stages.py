"""The stages of a start: what is loaded one after another until the first step, with its time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from fttui.engine.protocol.events import ProgressMade, Record, RunStarted

IMPORT, FIRST_STEP = "importing PyTorch and the libraries", "first step"
_LABELS = {
    "Loading tokenizer": "tokenizer",
    "Loading weights": "weights",
    "Attaching adapters": "adapters",
    "Unfreezing weights": "trained weights",
    "tokenizing training data": "tokens",
    "tokenizing evaluation data": "evaluation tokens",
}
"""Names of stages by the labels of their progress; another label is its own name."""
EXPECTED = (IMPORT, "tokenizer", "weights", "adapters", "records", "tokens", FIRST_STEP)
"""The stages of most starts in their order, those ahead of the present one to be listed."""


@dataclass(frozen=True)
class StartStage:
    """One stage of a start."""

    name: str
    since: float
    """Unix seconds of its beginning, by the clock of the run's machine."""
    until: float | None = None
    """Unix seconds of its end; None while it lasts."""
    share: float | None = None
    """How much of it is done, from 0 to 1; None if it is not measured."""

    def seconds(self, now: float) -> float:
        """Return how long it took, or has taken so far at `now` (Unix seconds)."""
        return max(0.0, (now if self.until is None else self.until) - self.since)


def after_record(stages: tuple[StartStage, ...], record: Record) -> tuple[StartStage, ...]:
    """Return the stages after a record that came before the first step."""
    match record.event:
        case RunStarted(devices=[]):
            return (StartStage(IMPORT, record.time),)
        case RunStarted():
            return (*_ended(stages, record.time), StartStage(FIRST_STEP, record.time))
        case ProgressMade() as progress:
            return _progressed(stages, progress, record.time)
        case _:
            return stages


def _progressed(
    stages: tuple[StartStage, ...], progress: ProgressMade, time: float
) -> tuple[StartStage, ...]:
    if stages and stages[-1].name == FIRST_STEP:  # such as an evaluation before it
        return (*_progressed(stages[:-1], progress, time), StartStage(FIRST_STEP, time))
    name = _name(progress.label)
    share = min(1.0, progress.done / progress.total) if progress.total > 0 else None
    until = time if share == 1.0 else None
    if stages and stages[-1].name == name:
        return (*stages[:-1], replace(stages[-1], share=share, until=until))
    return (*_ended(stages, time), StartStage(name, time, until, share))


def _name(label: str) -> str:
    if label.startswith("reading "):
        return "records"
    return _LABELS.get(label, label)


def _ended(stages: tuple[StartStage, ...], time: float) -> tuple[StartStage, ...]:
    """Return the stages with the last one ended, if it has not ended before."""
    if not stages or stages[-1].until is not None:
        return stages
    return (*stages[:-1], replace(stages[-1], until=time))


def ahead(stages: Iterable[StartStage]) -> tuple[str, ...]:
    """Return the names of the expected stages after the newest one; all before the first."""
    seen = [EXPECTED.index(stage.name) for stage in stages if stage.name in EXPECTED]
    return EXPECTED[max(seen, default=-1) + 1 :]
