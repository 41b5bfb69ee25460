"""The data of a loaded run: the source of its batches, and what the settings change in them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from ..config.memory.contrastive_candidates import hard_negatives_used
from ..config.memory.micro_batch import divides_by_length
from ..config.schema import RunConfig
from ..config.step_plan import StepPlan
from ..data.batches.batch_source import Batch, Batches, BatchSource, InMemoryBatches
from ..data.batches.collate import (
    collate_packed,
    collate_pairs,
    collate_preferences,
    collate_rated,
    collate_text,
)
from ..data.batches.sampler import BatchStream, WholeSteps
from ..data.dataset import ExampleSets
from ..data.mix_plan import mix_schedule
from ..data.streams import stream_batches
from ..errors import DataError
from ..model.limits import limits_of
from ..model.load import LoadedModel
from ..protocol.settings import RunSettings, mix_text, why_not_mixed
from ..run.data_sample import write_sample
from ..run.run_dir import RunDirectory
from .control.command_queue import CommandQueue
from .control.control_state import ControlState
from .controlled_session import open_control
from .distributed.agreement import Agreement
from .distributed.place import RankPlace
from .event_log import EventLog
from .monitoring.monitor import TrainingMonitor
from .session_start import SessionStart

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Setup:
    """The loaded run on one rank: configuration, model, data and plan."""

    config: RunConfig
    place: RankPlace
    agreement: Agreement
    loaded: LoadedModel
    examples: ExampleSets
    plan: StepPlan


def build_source(setup: Setup, settings: Callable[[], RunSettings] = RunSettings) -> BatchSource:
    """Build the source of this rank's batches.

    Args:
        setup: the loaded run.
        settings: returns the settings in force, whose quarantine and mix it obeys.
    """
    config, examples = setup.config, setup.examples
    collate = collator(config, setup.loaded, packed=config.data.packing)
    schedule = mix_schedule(config, examples.mix, setup.plan.steps)
    return BatchSource(
        _batches(setup),
        collate,
        left_out=lambda: settings().quarantine,
        schedule=schedule,
        chosen_mix=lambda: settings().mix,
    )


def _batches(setup: Setup) -> Batches:
    """Return the micro-batches of this rank by position, from memory or from a stream."""
    config, place, examples = setup.config, setup.place, setup.examples
    train = config.train
    if examples.per_epoch is None:
        rank, ranks = place.rank, place.world_size
        limits = limits_of(setup.loaded.model.config)
        return stream_batches(config, setup.loaded.tokenizer, rank, ranks, limits)
    stream = BatchStream(
        examples.per_epoch,
        train.micro_batch_size,
        train.accumulation,
        place.rank,
        place.world_size,
        train.seed,
        examples.mix,
        _whole_steps(config, examples),
    )
    return InMemoryBatches(examples.train, stream)


def _whole_steps(config: RunConfig, examples: ExampleSets) -> WholeSteps | None:
    """Return how the steps are divided if the number of their sequences is configured."""
    if config.train.sequences_per_update is None:
        return None
    if not divides_by_length(config):
        return WholeSteps()
    return WholeSteps([example.row_length for example in examples.train])


def open_data(
    setup: Setup,
    start: SessionStart,
    event_log: EventLog,
    queue: CommandQueue,
    monitor: TrainingMonitor,
) -> tuple[BatchSource, ControlState]:
    """Return the source of this rank's batches, and the control whose settings it obeys.

    Raises:
        DataError: the quarantine leaves no samples to train on.
    """
    source = build_source(setup, lambda: control.settings)
    why_not, names = source.batches.why_not_kept_out, setup.config.data.source_names
    control = open_control(start, setup.config, queue, event_log, monitor, why_not, names)
    drop_unknown_mix(control, names, event_log)
    note_quarantine(source.batches, control.settings.quarantine, event_log)
    return source, control


def drop_unknown_mix(control: ControlState, names: Sequence[str], event_log: EventLog) -> None:
    """Return to the configured weights if those of a command belong to other sources; log it."""
    chosen = control.settings.mix
    if chosen and (reason := why_not_mixed(chosen, names)):
        text = f"the mix {mix_text(chosen)} of a command is replaced by the configured one"
        event_log.log("warning", f"{text}: {reason}")
        control.change(replace(control.settings, mix={}))


def note_quarantine(batches: Batches, kept_out: Sequence[str], event_log: EventLog) -> None:
    """Log how many samples are in quarantine, and how many of them the data do not have any more.

    Raises:
        DataError: no samples would be left to train on in their places.
    """
    absent = batches.unknown(kept_out)
    if absent:
        text = f"{len(absent)} samples in quarantine are not in the data, such as {absent[0]!r}"
        event_log.log("warning", text)
    if reason := batches.why_not_kept_out([one for one in kept_out if one not in absent]):
        raise DataError(f"quarantine: {reason}")
    if kept_out:
        event_log.log("info", f"{len(kept_out):,} samples are in quarantine and not trained on")


_COLLATORS: dict[str, Callable[[Any, int], Batch]] = {
    "dpo": collate_preferences,
    "kto": collate_rated,
    "reward": collate_preferences,
}


def collator(
    config: RunConfig, loaded: LoadedModel, *, packed: bool
) -> Callable[[Sequence[Any]], Batch]:
    """Return the function that collates examples into a batch of the task."""
    pad = int(loaded.tokenizer.pad_token_id)
    if config.task == "contrastive":
        negatives = hard_negatives_used(config)
        return lambda examples: collate_pairs(examples, pad, negatives)
    text: Callable[[Any, int], Batch] = collate_packed if packed else collate_text
    collate = _COLLATORS.get(config.task, text)
    return lambda examples: collate(examples, pad)


def keep_sample(run: RunDirectory, examples: ExampleSets) -> None:
    """Write the sample of the data into the run folder, for the app's data screen.

    If that fails, the log says so and the run continues.
    """
    try:
        write_sample(run, examples.sample)
    except (OSError, UnicodeEncodeError) as error:
        log.warning("the sample of the data cannot be written: %s", error)
