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
from ..core.memory_watch import PlanWatch
from ..core.settings import Desired
from ..data.batch_source import Batch, BatchSource, HeldBatches
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
from ..run.checkpoint_store import Manifest
from ..run.run_dir import RunDirectory
from .checkpoint.checkpointer import Checkpointer
from .checkpoint.ema import AdapterEma
from .checkpoint.training_state import TrainingState, adapter_weights
from .control.command_executor import StepOperations
from .control.command_queue import Inbox
from .control.command_scheduler import Conductor
from .control.offload import Lending, Offload
from .control.settings_store import load_desired, store_desired
from .distributed.place import Place
from .distributed.rank_agreement import Agreement
from .event_log import Chronicle
from .loop.memory_meter import MemoryMeter
from .loop.optimizers import rate_of
from .loop.step_loop import Stepper
from .monitoring.anomaly_reporter import Reporter
from .monitoring.gradient_flow import GradientFlow
from .monitoring.lr_find import LrFind
from .monitoring.monitor import Watch
from .monitoring.profiler import WARM_UP_STEPS, StepProfiler
from .objectives.evaluator import Evaluator
from .run_history import History
from .signals import StopSignals
from .trainers import memory_probe
from .trainers.arguments import trainer_arguments
from .trainers.build import AnyTrainer, build_trainer


@dataclass(frozen=True)
class Outcome:
    """How a session ended."""

    state: RunState
    checkpoint: str | None


@dataclass(frozen=True)
class Start:
    """What a session starts from."""

    run: RunDirectory
    started: RunStarted
    """As journaled when the process came up."""
    history: History
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


def train(start: Start, place: Place, chronicle: Chronicle, signals: StopSignals) -> Outcome:
    """Load, train under control, save. Every rank runs this."""
    run = start.run
    config = parse_resolved(run.config.read_text())
    agreement = Agreement(place.rank, place.world_size)

    loaded = load_model(config, place.device, chronicle.progress)
    examples = load_examples(config, loaded.tokenizer, chronicle.progress)
    plan = plan_run(config, examples.per_epoch, place.world_size)

    source = build_source(config, place, loaded, examples)
    reporter = Reporter(run, chronicle, loaded.tokenizer, agreement)
    watch = Watch(config, run, chronicle, reporter, agreement)
    conductor = build_conductor(start, config, Inbox(run, agreement, signals), chronicle, watch)
    stepper = build_stepper(source, conductor, chronicle, watch, agreement, place.device)
    arguments = trainer_arguments(config, plan, place.device, run.path)
    trainer = build_trainer(
        config, loaded.model, loaded.tokenizer, arguments, stepper, chronicle.log
    )
    chronicle.step = lambda: int(trainer.state.global_step)
    conductor.schedule_lr = lambda: float(trainer.lr_scheduler.get_last_lr()[0])
    ema = build_ema(config, loaded, stepper)
    evaluator = build_evaluator(config, trainer, loaded, examples, agreement, chronicle, ema)
    state = TrainingState(trainer, loaded.model, ema)
    checkpointer = Checkpointer(run, state, agreement, start.started.incarnation)
    operations = StepOperations(
        config,
        chronicle=chronicle,
        conductor=conductor,
        state=state,
        checkpointer=checkpointer,
        source=source,
        evaluator=evaluator,
        watch=watch,
    )
    add_profiler(start, config, trainer, place, chronicle, conductor, operations, stepper)
    if start.lr_range is not None:
        LrFind(start.lr_range, trainer, chronicle, conductor.demand)
    offload = Offload(loaded.model, trainer, place.device, ema)
    conductor.attach(operations, Lending(offload, agreement, chronicle.log))

    def begin() -> None:
        stepper.drive(conductor.schedule_lr, functools.partial(set_lr, trainer))
        planned, facts = before_steps(config, trainer, place, loaded, examples, stepper)
        resumed = operations.resume_from(start.resume) if start.resume else None
        conductor.complete = bool(resumed and resumed.step >= plan.steps)
        open_timeline(chronicle, start.history, resumed)
        devices = [text.decode() for text in agreement.gather(place.description.encode())]
        told = replace(start.started, devices=devices, planned_bytes=planned)
        chronicle.record(describe(told, plan, loaded, examples, resumed, facts))

    stepper.begin = begin
    stepper.flow = GradientFlow(loaded.model)
    run_steps(trainer, stepper, agreement)
    outcome = conclude(conductor, operations, chronicle)
    watch.end()
    return outcome


def run_steps(trainer: AnyTrainer, stepper: Stepper, agreement: Agreement) -> None:
    """Until the run ends; an error in a step does not undo the one before, so that is told."""
    try:
        trainer.train()
    except Exception:
        if agreement.alone:
            with suppress(Exception):
                stepper.conclude()
        raise


def before_steps(
    config: RunConfig,
    trainer: Any,
    place: Place,
    loaded: LoadedModel,
    examples: ExampleSets,
    stepper: Stepper,
) -> tuple[dict[str, int], dict[str, str]]:
    """The memory planned for a rank by term, and what else to say; steps are compared with it."""
    planned = memory_probe.planned_of(config, trainer)
    if planned is not None and planned.device == "cuda":
        stepper.plan = PlanWatch(planned.compared, "reserved" if planned.graphs else "allocated")
    facts = facts_before(config, trainer, place, loaded, examples)
    return planned.terms() if planned else {}, facts


def facts_before(
    config: RunConfig, trainer: Any, place: Place, loaded: LoadedModel, examples: ExampleSets
) -> dict[str, str]:
    """What to say of the run before its first step; the longest batch is tried where it can be."""
    ranks = f"{trainer.accelerator.num_processes} of {config.train.devices}"
    facts = {"ranks": ranks, **candidate_facts(config), "fast mode": trainer.fast_fact}
    if not memory_probe.may_try(trainer, place.world_size, examples.per_epoch is not None):
        return facts
    collate = collator(config, loaded, packed=config.data.packing)
    return facts | memory_probe.try_longest(config, trainer, examples.train, collate)


def conclude(conductor: Conductor, operations: StepOperations, chronicle: Chronicle) -> Outcome:
    """Save what the end of the run needs saved and answer what still waits."""
    if not conductor.ending and (operations.owes_evaluation or not conductor.complete):
        if not operations.finish():
            conductor.obey()
    elif conductor.complete:
        chronicle.log("warning", "all planned steps were done before; raise train.steps to go on")
    if conductor.ending:
        conductor.refuse_rest("the run was stopped")
        return Outcome(RunState.STOPPED, operations.newest)
    conductor.refuse_rest("the run has finished")
    return Outcome(RunState.FINISHED, operations.newest)


def build_stepper(
    source: BatchSource,
    conductor: Conductor,
    chronicle: Chronicle,
    watch: Watch,
    agreement: Agreement,
    device: torch.device,
) -> Stepper:
    """Our side of every step, with the instruments of the device."""
    return Stepper(
        source=source,
        conductor=conductor,
        chronicle=chronicle,
        watch=watch,
        agreement=agreement,
        memory=MemoryMeter(device).read,
        device=device,
    )


def build_source(
    config: RunConfig, place: Place, loaded: LoadedModel, examples: ExampleSets
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
    return BatchSource(HeldBatches(examples.train, stream), collate)


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


def build_ema(config: RunConfig, loaded: LoadedModel, stepper: Stepper) -> AdapterEma | None:
    """The moving average of the adapter, if one is wanted."""
    if not config.train.ema:
        return None
    ema = AdapterEma(adapter_weights(loaded.model), config.train.ema)
    stepper.updated = ema.update
    return ema


def build_evaluator(
    config: RunConfig,
    trainer: AnyTrainer,
    loaded: LoadedModel,
    examples: ExampleSets,
    agreement: Agreement,
    chronicle: Chronicle,
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
        progress=chronicle.progress,
        weights=ema.in_place_of_weights if ema else nullcontext,
    )


def add_profiler(
    start: Start,
    config: RunConfig,
    trainer: AnyTrainer,
    place: Place,
    chronicle: Chronicle,
    conductor: Conductor,
    operations: StepOperations,
    stepper: Stepper,
) -> None:
    """Takes profiles when asked; of a run that is only profiled, one after the warm-up."""
    profiler = StepProfiler(
        config,
        trainer.model,
        place.device,
        chronicle,
        start.run.profiles,
        place.rank,
        fast=trainer.fast is not None,
    )
    if start.profile_steps:
        profiler.ask(start.profile_steps, after=WARM_UP_STEPS)
        profiler.done = lambda: conductor.demand(Stop(save=False), "profile", "it is taken")
    operations.profile = profiler.ask
    profiler.conclude = stepper.conclude
    stepper.profiler = profiler


def build_conductor(
    start: Start,
    config: RunConfig,
    inbox: Inbox,
    chronicle: Chronicle,
    watch: Watch,
) -> Conductor:
    """The control of this session, with what was asked before it."""

    def store(desired: Desired) -> None:
        try:
            if inbox.leads:
                store_desired(start.run, desired, config)
        except OSError as error:
            chronicle.log("error", f"the settings hold, but a restart would not know them: {error}")

    wanted = load_desired(start.run, config, restarted=start.restarted)
    for change in wanted.overridden:
        chronicle.log("warning", f"the configuration overrides what was asked: {change}")
    conductor = Conductor(
        inbox,
        chronicle,
        desired=wanted.desired,
        norm_percentile=watch.norm_percentile,
        on_desired=store,
    )
    for entry in inbox.left_over(start.control_seq, start.history.answered):
        conductor.fail(entry, "the engine ended before it was applied; send it again")
    return conductor


def set_lr(trainer: AnyTrainer, lr: float) -> None:
    """The learning rate of the very next update, in every group as a multiple of it."""
    for group in trainer.optimizer.param_groups:
        group.update(rate_of(lr, group["lr_ratio"]))


def open_timeline(chronicle: Chronicle, history: History, resumed: Manifest | None) -> None:
    """Go on with the old timeline, or open a new one where steps are left behind."""
    chronicle.timeline = history.timeline
    to_step = resumed.step if resumed else 0
    if history.step <= to_step:
        return
    chronicle.timeline += 1
    chronicle.record(
        RolledBack(
            checkpoint=resumed.name if resumed else "the beginning",
            from_step=history.step,
            to_step=to_step,
            old_timeline=history.timeline,
            new_timeline=chronicle.timeline,
        )
    )
    for anomaly, step in history.unresolved.items():
        if step > to_step:
            chronicle.record(AnomalyResolved(id=anomaly, verdict="rolled back"))


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
