"""What the journal of a run says about the time of its parts."""

from __future__ import annotations

from statistics import median

from fttui.engine.protocol.codec import decode_readable
from fttui.engine.protocol.events import CheckpointSaved, EvalFinished, RunStarted, StepFinished
from fttui.engine.protocol.settings import LearningRate
from fttui.engine.run.checkpoint_store import Manifest
from fttui.engine.run.journal import FrameReader
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.run.run_index import read_ends

from ...text.usage import use_per_s
from ...view_model.race.rounds import MeasuredTimes

_MEASURED_STEPS = 50
_SEARCHED_BYTES = 64 * 2**20
"""Size of a journal that is still searched for a step."""


def measured_times(run: RunDirectory, *, starts: bool) -> MeasuredTimes:
    """Return the times of the parts of a run, those of its newest records.

    Args:
        run: the run.
        starts: whether an engine will be started, so that its time counts.
    """
    records = read_ends(run.journal)
    events = [record.event for record in records]
    begun = [record.time for record in records if isinstance(record.event, RunStarted)]
    steps = [e.step_s for e in events if isinstance(e, StepFinished)][-_MEASURED_STEPS:]
    evaluations = [e.seconds for e in events if isinstance(e, EvalFinished)]
    used = [e.usage for e in events if isinstance(e, StepFinished)][-_MEASURED_STEPS:]
    saved = [e for e in events if isinstance(e, CheckpointSaved)]
    return MeasuredTimes(
        step_s=median(steps) if steps else None,
        evaluation_s=evaluations[-1] if evaluations else None,
        checkpoint_s=saved[-1].seconds if saved else None,
        checkpoint_bytes=saved[-1].size_bytes if saved else None,
        start_s=_start_s(begun) if starts else 0.0,
        use_per_s=use_per_s(used[0], used[-1]) if used else None,
    )


def rate_at(run: RunDirectory, checkpoint: Manifest) -> LearningRate:
    """Return the learning rate of the step of a checkpoint.

    It is not known before the first step, and in a journal that is too long to be searched.
    """
    found = LearningRate()
    if run.journal.stat().st_size > _SEARCHED_BYTES:
        return found
    for frame in FrameReader(run.journal):
        record = decode_readable(frame)
        if record is None or record.timeline > checkpoint.timeline:
            continue
        if record.step == checkpoint.step and isinstance(record.event, StepFinished):
            found = record.event.rate
    return found


def _start_s(begun: list[float]) -> float | None:
    """Return the seconds between the first two records of a start; None if there are not two."""
    return max(0.0, begun[1] - begun[0]) if len(begun) > 1 else None
