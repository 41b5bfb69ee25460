"""A training session from configuration to the last checkpoint; read top to bottom."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch
from msgspec.structs import replace

from ..config.contrastive_candidates import candidate_facts
from ..config.load import parse_resolved
from ..config.plan import Plan, plan_run
from ..config.schema import RunConfig
from ..core.lr_range import LrRange
from ..core.memory_watch import MemoryPlanCheck
from ..core.settings import RunSettings
from ..data.batch_source import Batch, BatchSource, InMemoryBatches
from ..data.collate import (
    collate_packed,
    collate_pairs,
    collate_preferences,
    collate_rated,
    collate_text,
)
from ..data.dataset import ExampleSets, load_examples, stream_batches
from ..data.sampler import BatchStream
from ..model.load import LoadedModel, load_model
from ..protocol.commands import Stop
from ..protocol.events import AnomalyResolved, RolledBack, RunStarted
from ..protocol.states import RunState
from ..run.checkpoint_store import CheckpointStore, Manifest
from ..run.journal_summary import JournalSummary
from ..run.run_dir import RunDirectory
from .checkpoint.checkpointer import Checkpointer
from .checkpoint.ema import AdapterEma
from .checkpoint.training_state import TrainingState, adapter_weights
from .control.command_executor import CommandExecutor
from .control.command_queue import CommandQueue
from .control.command_scheduler import CommandScheduler
from .control.offload import DeviceOffload, MemoryRelease
from .control.settings_store import load_desired, store_desired
from .distributed.agreement import Agreement
from .distributed.place import RankPlace
from .distributed.rank_agreement import agreement_of
from .event_log import EventLog
from .loop.memory_meter import MemoryMeter
from .loop.optimizers import rate_of
from .loop.step_loop import StepLoop
from .monitoring.anomaly_reporter import AnomalyReporter
from .monitoring.gradient_flow import GradientFlow
from .monitoring.lr_find import LrRangeTest
from .monitoring.monitor import TrainingMonitor, build_monitor
from .monitoring.profiler import WARM_UP_STEPS, StepProfiler
from .objectives.evaluator import Evaluator
from .signals import StopSignals
from .trainers import memory_probe
from .trainers.arguments import trainer_arguments
from .trainers.build import AnyTrainer, build_trainer


@dataclass(frozen=True)
class SessionOutcome:
    """How a session ended."""

    state: RunState
    checkpoint: str | None


@dataclass(frozen=True)
class SessionStart:
    """What a session starts from."""

    run: RunDirectory
    started: RunStarted
    """As journaled when the process came up."""
    history: JournalSummary
    """What earlier incarnations journaled."""
    resume: str | None
    """Checkpoint to go on from."""
    control_seq: int = 0
    """Newest command when this process came up; 0 on every rank but 0."""
    profile_steps: int = 0
    """Only take a profile of so many steps, then end; 0 trains."""
    lr_range: LrRange | None = None
    """Only sweep the learning rate; None trains."""
    restarted: bool = False
    """After a crash, and by itself: what a person asked for holds, a pause too."""


def train(
    start: SessionStart, place: RankPlace, event_log: EventLog, signals: StopSignals
) -> SessionOutcome:
    """Load, train under control, save. Every rank runs this."""
    run = start.run
    config = parse_resolved(run.config.read_text())
    agreement = agreement_of(place.rank, place.world_size)

    loaded = load_model(config, place.device, event_log.progress)
    examples = load_examples(config, loaded.tokenizer, event_log.progress)
    plan = plan_run(config, examples.per_epoch, place.world_size)

    source = build_source(config, place, loaded, examples)
    reporter = AnomalyReporter(run, event_log, loaded.tokenizer, agreement)
    monitor = build_monitor(config, CheckpointStore(run), event_log, reporter, agreement)
    queue = CommandQueue(run, agreement, signals)
    commands = build_command_scheduler(start, config, queue, event_log, monitor)
    step_loop = build_step_loop(source, commands, event_log, monitor, agreement, place.device)
    arguments = trainer_arguments(config, plan, place.device, run.path)
    trainer = build_trainer(
        config, loaded.model, loaded.tokenizer, arguments, step_loop, event_log.log
    )
    event_log.step = lambda: int(trainer.state.global_step)
    commands.schedule_lr = lambda: float(trainer.lr_scheduler.get_last_lr()[0])
    ema = build_ema(config, loaded, step_loop)
    evaluator = build_evaluator(config, trainer, loaded, examples, agreement, event_log, ema)
    state = TrainingState(trainer, loaded.model, ema)
    checkpointer = Checkpointer(run, state, agreement, start.started.incarnation)
    executor = CommandExecutor(
        config,
        event_log=event_log,
        commands=commands,
        state=state,
        checkpointer=checkpointer,
        source=source,
        evaluator=evaluator,
        monitor=monitor,
    )
    add_profiler(start, config, trainer, place, event_log, commands, executor, step_loop)
    if start.lr_range is not None:
        LrRangeTest(start.lr_range, trainer, event_log, commands.demand)
    offload = DeviceOffload(loaded.model, trainer, place.device, ema)
    commands.attach(executor, MemoryRelease(offload, agreement, event_log.log))

    def begin() -> None:
        step_loop.drive(commands.schedule_lr, functools.partial(set_lr, trainer))
        planned, facts = before_steps(config, trainer, place, loaded, examples, step_loop)
        resumed = executor.resume_from(start.resume) if start.resume else None
        commands.complete = bool(resumed and resumed.step >= plan.steps)
        open_timeline(event_log, start.history, resumed)
        devices = [text.decode() for text in agreement.gather(place.description.encode())]
        told = replace(start.started, devices=devices, planned_bytes=planned)
        event_log.record(describe(told, plan, loaded, examples, resumed, facts))

    step_loop.begin = begin
    step_loop.flow = GradientFlow(loaded.model)
    run_steps(trainer, step_loop, agreement)
    return conclude(commands, executor, event_log, monitor)


def run_steps(trainer: AnyTrainer, step_loop: StepLoop, agreement: Agreement) -> None:
    """Until the run ends; an error in a step does not undo the one before, so that is told."""
    try:
        trainer.train()
    except Exception:
        if agreement.alone:
            with suppress(Exception):
                step_loop.conclude()
        raise


def before_steps(
    config: RunConfig,
    trainer: Any,
    place: RankPlace,
    loaded: LoadedModel,
    examples: ExampleSets,
    step_loop: StepLoop,
) -> tuple[dict[str, int], dict[str, str]]:
    """The memory planned for a rank by term, and what else to say; steps are compared with it."""
    planned = memory_probe.planned_of(config, trainer)
    if planned is not None and planned.device == "cuda":
        step_loop.plan = MemoryPlanCheck(
            planned.compared, "reserved" if planned.graphs else "allocated"
        )
    facts = facts_before(config, trainer, place, loaded, examples)
    return planned.terms() if planned else {}, facts


def facts_before(
    config: RunConfig, trainer: Any, place: RankPlace, loaded: LoadedModel, examples: ExampleSets
) -> dict[str, str]:
    """What to say of the run before its first step; the longest batch is tried where it can be."""
    ranks = f"{trainer.accelerator.num_processes} of {config.train.devices}"
    facts = {"ranks": ranks, **candidate_facts(config), "fast mode": trainer.fast_fact}
    if not memory_probe.may_try(trainer, place.world_size, examples.per_epoch is not None):
        return facts
    collate = collator(config, loaded, packed=config.data.packing)
    return facts | memory_probe.try_longest(config, trainer, examples.train, collate)


def conclude(
    commands: CommandScheduler,
    executor: CommandExecutor,
    event_log: EventLog,
    monitor: TrainingMonitor,
) -> SessionOutcome:
    """Save what the end of the run needs saved and answer what still waits."""
    if not commands.ending and (executor.owes_evaluation or not commands.complete):
        if not executor.finish():
            commands.obey()
    elif commands.complete:
        event_log.log("warning", "all planned steps were done before; raise train.steps to go on")
    state = RunState.STOPPED if commands.ending else RunState.FINISHED
    commands.refuse_rest("the run was stopped" if commands.ending else "the run has finished")
    monitor.end()
    return SessionOutcome(state, executor.newest)


def build_step_loop(
    source: BatchSource,
    commands: CommandScheduler,
    event_log: EventLog,
    monitor: TrainingMonitor,
    agreement: Agreement,
    device: torch.device,
) -> StepLoop:
    """Our side of every step, with the instruments of the device."""
    return StepLoop(
        source=source,
        commands=commands,
        event_log=event_log,
        monitor=monitor,
        agreement=agreement,
        memory=MemoryMeter(device).read,
        device=device,
    )


def build_source(
    config: RunConfig, place: RankPlace, loaded: LoadedModel, examples: ExampleSets
) -> BatchSource:
    """This rank's batches."""
    collate = collator(config, loaded, packed=config.data.packing)
    train = config.train
    if examples.per_epoch is None:
        rank, ranks = place.rank, place.world_size
        streamed = stream_batches(config, loaded.tokenizer, rank, ranks)
        return BatchSource(streamed, collate)
    stream = BatchStream(
        examples.per_epoch,
        train.batch,
        train.accumulate,
        place.rank,
        place.world_size,
        train.seed,
        examples.mix,
    )
    return BatchSource(InMemoryBatches(examples.train, stream), collate)


_COLLATORS: dict[str, Callable[[Any, int], Batch]] = {
    "dpo": collate_preferences,
    "kto": collate_rated,
}


def collator(
    config: RunConfig, loaded: LoadedModel, *, packed: bool
) -> Callable[[Sequence[Any]], Batch]:
    """From examples to a batch, by task."""
    pad = int(loaded.tokenizer.pad_token_id)
    if config.task == "contrastive":
        negatives = config.contrastive.hard_negatives
        return lambda examples: collate_pairs(examples, pad, negatives)
    text: Callable[[Any, int], Batch] = collate_packed if packed else collate_text
    collate = _COLLATORS.get(config.task, text)
    return lambda examples: collate(examples, pad)


def build_ema(config: RunConfig, loaded: LoadedModel, step_loop: StepLoop) -> AdapterEma | None:
    """The moving average of the adapter, if one is wanted."""
    if not config.train.ema:
        return None
    ema = AdapterEma(adapter_weights(loaded.model), config.train.ema)
    step_loop.updated = ema.update
    return ema


def build_evaluator(
    config: RunConfig,
    trainer: AnyTrainer,
    loaded: LoadedModel,
    examples: ExampleSets,
    agreement: Agreement,
    event_log: EventLog,
    ema: AdapterEma | None,
) -> Evaluator:
    """Evaluates the averaged adapter where there is one; its records are never packed."""
    return Evaluator(
        config,
        trainer,
        loaded.tokenizer,
        examples.eval,
        collator(config, loaded, packed=False),
        agreement=agreement,
        progress=event_log.progress,
        weights=ema.in_place_of_weights if ema else nullcontext,
    )


def add_profiler(
    start: SessionStart,
    config: RunConfig,
    trainer: AnyTrainer,
    place: RankPlace,
    event_log: EventLog,
    commands: CommandScheduler,
    executor: CommandExecutor,
    step_loop: StepLoop,
) -> None:
    """Takes profiles when asked; of a run that is only profiled, one after the warm-up."""
    profiler = StepProfiler(
        config,
        trainer.model,
        place.device,
        event_log,
        start.run.profiles,
        place.rank,
        fast=trainer.fast is not None,
    )
    if start.profile_steps:
        profiler.ask(start.profile_steps, after=WARM_UP_STEPS)
        profiler.done = lambda: commands.demand(Stop(save=False), "profile", "it is taken")
    executor.profile = profiler.ask
    profiler.conclude = step_loop.conclude
    step_loop.profiler = profiler


def build_command_scheduler(
    start: SessionStart,
    config: RunConfig,
    command_queue: CommandQueue,
    event_log: EventLog,
    monitor: TrainingMonitor,
) -> CommandScheduler:
    """The control of this session, with what was asked before it."""

    def store(desired: RunSettings) -> None:
        try:
            if command_queue.leads:
                store_desired(start.run, desired, config)
        except OSError as error:
            event_log.log("error", f"the settings hold, but a restart would not know them: {error}")

    wanted = load_desired(start.run, config, restarted=start.restarted)
    for change in wanted.overridden:
        event_log.log("warning", f"the configuration overrides what was asked: {change}")
    commands = CommandScheduler(
        command_queue,
        event_log,
        desired=wanted.desired,
        norm_percentile=monitor.norm_percentile,
        on_desired=store,
    )
    for entry in command_queue.left_over(start.control_seq, start.history.answered):
        commands.fail(entry, "the engine ended before it was applied; send it again")
    return commands


def set_lr(trainer: AnyTrainer, lr: float) -> None:
    """The learning rate of the very next update, in every group as a multiple of it."""
    for group in trainer.optimizer.param_groups:
        group.update(rate_of(lr, group["lr_ratio"]))


def open_timeline(event_log: EventLog, history: JournalSummary, resumed: Manifest | None) -> None:
    """Go on with the old timeline, or open a new one where steps are left behind."""
    event_log.timeline = history.timeline
    to_step = resumed.step if resumed else 0
    if history.step <= to_step:
        return
    event_log.timeline += 1
    event_log.record(
        RolledBack(
            checkpoint=resumed.name if resumed else "the beginning",
            from_step=history.step,
            to_step=to_step,
            old_timeline=history.timeline,
            new_timeline=event_log.timeline,
        )
    )
    for anomaly, step in history.unresolved.items():
        if step > to_step:
            event_log.record(AnomalyResolved(id=anomaly, verdict="rolled back"))


def describe(
    started: RunStarted,
    plan: Plan,
    loaded: LoadedModel,
    examples: ExampleSets,
    resumed: Manifest | None,
    facts: dict[str, str],
) -> RunStarted:
    """The start of the run, now that everything about it is known."""
    return replace(
        started,
        total_steps=plan.steps,
        resumed_from=resumed.name if resumed else None,
        start_step=resumed.step if resumed else 0,
        trainable_params=loaded.trainable_params,
        total_params=loaded.total_params,
        facts={**loaded.facts, **examples.facts, **facts},
    )
