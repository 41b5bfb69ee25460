"""Training session: builds all parts of a run from its configuration and trains to the end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from ..config.load import read_resolved
from ..config.memory.contrastive_candidates import candidate_facts
from ..config.memory.estimate import MemoryEstimate
from ..config.memory.micro_batch import smaller_micro_batch
from ..config.schema import RunConfig
from ..config.sections.optimizers import passes_fact
from ..config.step_plan import in_steps, plan_steps
from ..core.memory_watch import MemoryPlanCheck
from ..data.batches.batch_source import BatchSource
from ..data.batches.leave_out import kept_in
from ..data.batches.streaming import StreamedBatches
from ..data.cache.hashes import dataset_revision
from ..data.cache.token_cache import TokenCache
from ..data.dataset import ExampleSets, load_examples
from ..data.mix_plan import mix_facts
from ..errors import DataError, ModelError
from ..model.adapter.initial import initialize_eva
from ..model.limits import limits_of
from ..model.load import LoadedModel, load_model
from ..protocol.commands import Stop
from ..protocol.events import ForgettingBaseMeasured, NoteAdded, RunStarted
from ..run.checkpoint_store import CheckpointStore, Manifest
from ..run.identity.run_identity import RunIdentity
from ..telemetry.gpu import BackgroundSampler
from .checkpoint.ema import WeightsEma
from .control.command_queue import CommandQueue
from .control.control_state import ControlState
from .control.culprit_search import Repeatable
from .controlled_session import ControlledSession, SessionOutcome, SessionParts, meter_of
from .distributed.place import RankPlace
from .distributed.rank_agreement import agreement_of
from .event_log import EventLog
from .loop.memory_meter import sampler_of
from .loop.step_loop import StepLoop
from .monitoring.anomaly_reporter import AnomalyReporter
from .monitoring.lr_find import begin_range_test
from .monitoring.monitor import TrainingMonitor, build_monitor
from .monitoring.profiler import WARM_UP_STEPS, StepProfiler
from .monitoring.sample_preview import SamplePreview
from .monitoring.stream_findings import StreamFindings
from .node_content import data_digest, require_same_on_nodes, weights_digest
from .objectives.evaluator import Evaluator
from .objectives.forgetting import forgetting_of
from .objectives.row_losses import RowLossComputer
from .run_data import Setup, collator, keep_sample, open_data
from .session_start import SessionStart
from .signals import StopSignals
from .trainers import memory_probe
from .trainers.arguments import trainer_arguments
from .trainers.build import AnyTrainer, build_trainer
from .trainers.controlled import EngineTrainer
from .trainers.device_offload import DeviceOffload
from .trainers.divide import divide_further
from .trainers.graphs_ahead import make_graphs_ahead
from .trainers.strategy import average_of, averaged_weights, flow_of, state_of

EVA_BATCHES = 256
"""Batches of training data, at most, from which `adapter.init: eva` takes activations."""


def train(
    start: SessionStart,
    started: RunStarted,
    place: RankPlace,
    event_log: EventLog,
    signals: StopSignals,
) -> SessionOutcome:
    """Load the run and train it on every rank; return how it ended, or raise an `FttuiError`.

    If the longest batch does not fit into the memory at the first start of the run, and smaller
    ones are the same training, everything is loaded again for these.

    Args:
        start: run folder, history and launch options that the session starts from.
        started: the event that was journaled before loading.
        place: number and device of this rank.
        event_log: records the events of the run.
        signals: counts stop requests from outside.
    """
    identity = hash_content(start, started.incarnation, place, event_log)
    sampler = sampler_of(place.device)
    known, divided = event_log.listeners, ""
    while True:
        try:
            return _train(start, started, place, event_log, signals, identity, sampler, divided)
        except memory_probe.MicroBatchTooLarge as error:
            smaller = error.smaller
        # The error kept everything alive that was built for the larger micro-batch.
        event_log.restore_listeners(known)
        memory_probe.free_unused(place.device)
        started, divided = divide_further(start.run, started, smaller, event_log)
        start = dataclasses.replace(start, loads_again=True)


def is_new(start: SessionStart) -> bool:
    """Whether no earlier process of the run has counted anything in its micro-batches."""
    return start.history.newest is None


def _train(
    start: SessionStart,
    started: RunStarted,
    place: RankPlace,
    event_log: EventLog,
    signals: StopSignals,
    identity: RunIdentity | None,
    sampler: BackgroundSampler | None,
    divided: str,
) -> SessionOutcome:
    """Load and train the run once.

    Raises:
        MicroBatchTooLarge: the longest batch does not fit, and smaller ones are the same training.
    """
    setup = load(start, place, event_log)
    trainer = build_hf_trainer(setup, start, event_log)
    monitor = monitor_of(setup, start, trainer, event_log)
    queue = CommandQueue(start.run, setup.agreement, signals, event_log.folder_losses)
    source, control = open_data(setup, start, event_log, queue, monitor)
    planned = memory_probe.planned_of(setup.config, trainer)
    ema = average_of(trainer, setup.loaded.model, setup.config.train.ema)
    known_base = start.history.forgetting_base
    controlled = engine_trainer(setup, trainer, source, ema, event_log, known_base)
    parts = SessionParts(
        config=setup.config,
        run=start.run,
        incarnation=started.incarnation,
        agreement=setup.agreement,
        event_log=event_log,
        monitor=monitor,
        queue=queue,
        control=control,
        trainer=controlled,
        repeatable=repeatable_of(setup, controlled),
        device=place.device,
        flow=flow_of(trainer, setup.loaded.model),
        meter=meter_of(start, setup.config, setup.agreement, sampler, event_log, control),
        sampler=sampler,
        profiler=build_profiler(setup, start, trainer, event_log, control),
        memory_plan=memory_probe.plan_check(planned),
        identity=identity,
        nodes=place.nodes,
        after_update=after_update(setup, source, ema, event_log),
    )
    session = ControlledSession(parts)

    def begin() -> None:
        facts = division_fact(setup.config, divided)
        facts |= facts_before(setup, trainer, planned, parts.memory_plan, may_divide=is_new(start))
        if identity:
            identity.loaded()
        resumed = session.resume(start.resume, start.history, setup.plan.steps)
        facts |= controlled.begin() | record_accepted(identity, event_log)
        known = with_data_settings(started, planned, source, control)
        event_log.record(describe(known, setup, resumed, facts))

    begin_range_test(start.lr_range, event_log, control.demand)
    run_steps(trainer, session.step_loop, begin, queue, alone=setup.agreement.alone)
    return session.conclude()


def with_data_settings(
    started: RunStarted,
    planned: MemoryEstimate | None,
    source: BatchSource,
    control: ControlState,
) -> RunStarted:
    """Return the start event with the planned memory and the settings that commands have made."""
    return replace(
        started,
        planned_bytes=planned.terms() if planned else {},
        quarantine=list(control.settings.quarantine),
        sources=list(source.schedule.names) if source.schedule else [],
        mix=control.settings.mix,
        weight_decay=control.settings.weight_decay,
        dropout=control.settings.dropout,
    )


def hash_content(
    start: SessionStart, incarnation: int, place: RankPlace, event_log: EventLog
) -> RunIdentity | None:
    """Start to hash model and data on rank 0 while they are loaded; return None on other ranks."""
    if place.rank:
        return None
    config = read_resolved(start.run.config)
    accept = start.accept_changed
    return RunIdentity(start.run, config, incarnation, accept, dataset_revision, event_log.log)


def record_accepted(identity: RunIdentity | None, event_log: EventLog) -> dict[str, str]:
    """Journal the content changes that were accepted on resume, and return them as a fact.

    Without any, nothing is journaled and there is no fact.
    """
    if identity is None or not identity.accepted:
        return {}
    text = "; ".join(identity.accepted)
    event_log.record(NoteAdded(text=f"accepted change: {text}", issuer="--accept-changed"))
    return {"accepted changes": text}


def load(start: SessionStart, place: RankPlace, event_log: EventLog) -> Setup:
    """Load model and data, and plan the steps; rank 0 writes the sample of the data.

    Raises:
        ConfigError: the configuration does not fit the model or the data.
        ModelError: the model cannot be loaded.
        DataError: the data cannot be read or used, or a finding in them needs consent.
    """
    config = read_resolved(start.run.config)
    agreement = agreement_of(place.rank, place.world_size)
    loaded = load_model(config, place.device, event_log.progress)
    if place.nodes.several:
        require_same_on_nodes(agreement, "base weights", weights_digest(loaded.model), ModelError)
    accepted = start.resume is not None
    examples = load_examples(
        config,
        loaded.tokenizer,
        event_log.progress,
        accepted=accepted,
        cache=TokenCache(),
        limits=limits_of(loaded.model.config),
    )
    if place.nodes.several:
        require_same_on_nodes(agreement, "training data", data_digest(examples), DataError)
    if config.adapter.init == "eva" and start.resume is None and not config.adapter.continues:
        begin_with_inputs(config, loaded, examples, place)
    if place.rank == 0:
        keep_sample(start.run, examples)
    plan = plan_steps(config, examples.per_epoch, place.world_size)
    return Setup(in_steps(config, plan), place, agreement, loaded, examples, plan)


def begin_with_inputs(
    config: RunConfig, loaded: LoadedModel, examples: ExampleSets, place: RankPlace
) -> None:
    """Initialize the adapter by the activations for the first `EVA_BATCHES` batches of training."""
    collate = collator(config, loaded, packed=config.data.packing)
    size, names = max(config.train.micro_batch_size, 2), ("input_ids", "attention_mask", "labels")
    train = kept_in(examples.train, config.data.kept_out)
    chosen = [train[n : n + size] for n in range(0, len(train), size)]
    batches = [collate(one) for one in chosen[:EVA_BATCHES]]
    initialize_eva(
        loaded.model,
        ({n: batch[n].to(place.device) for n in names if n in batch} for batch in batches),
    )


def monitor_of(
    setup: Setup, start: SessionStart, trainer: AnyTrainer, event_log: EventLog
) -> TrainingMonitor:
    """Build the training monitor and its anomaly reporter."""
    agreement, checkpoints = setup.agreement, CheckpointStore(start.run)
    collate = collator(setup.config, setup.loaded, packed=False)
    losses = RowLossComputer(setup.config, trainer, collate)
    reporter = AnomalyReporter(
        start.run, event_log, setup.loaded.tokenizer, agreement, row_losses=losses
    )
    return build_monitor(setup.config, checkpoints, event_log, reporter, agreement)


def build_hf_trainer(setup: Setup, start: SessionStart, event_log: EventLog) -> AnyTrainer:
    """Build the Hugging Face trainer of the task.

    Raises:
        ConfigError: `train.devices` or `train.fast` cannot be met.
    """
    arguments = trainer_arguments(setup.config, setup.plan, setup.place.device, start.run.path)
    return build_trainer(
        setup.config,
        setup.loaded.model,
        setup.loaded.tokenizer,
        arguments,
        event_log.position,
        event_log.log,
        start.lr_range.factor if start.lr_range else None,
        weighted=may_have_weights(setup),
    )


def may_have_weights(setup: Setup) -> bool:
    """Return whether records have weights; of streamed ones that is not known beforehand."""
    streamed = setup.config.data.streaming and not setup.config.learns_next_token
    return setup.examples.weighted or streamed


def engine_trainer(
    setup: Setup,
    trainer: AnyTrainer,
    source: BatchSource,
    ema: WeightsEma | None,
    event_log: EventLog,
    known_base: ForgettingBaseMeasured | None,
) -> EngineTrainer:
    """Return the trainer with the parts that save its state, evaluate it and free its memory.

    The averaged weights are evaluated if the run keeps them; evaluation examples are not packed.
    """
    model = setup.loaded.model
    evaluator = Evaluator(
        setup.config,
        trainer,
        setup.loaded.tokenizer,
        setup.examples.eval,
        collator(setup.config, setup.loaded, packed=False),
        agreement=setup.agreement,
        event_log=event_log,
        weights=averaged_weights(trainer, ema),
    )
    offload = DeviceOffload(model, trainer, setup.place.device, ema)
    forgetting = forgetting_of(
        setup.config,
        evaluator,
        model,
        setup.loaded.tokenizer,
        setup.agreement,
        known_base,
        event_log.record,
    )
    state = state_of(trainer, setup.loaded, ema)
    return EngineTrainer(trainer, source, state, evaluator, offload, forgetting)


def repeatable_of(setup: Setup, trainer: EngineTrainer) -> Repeatable:
    """Return the parts with which steps are repeated to find culprits."""
    config = setup.config
    return Repeatable(
        state=trainer.state,
        source=trainer.data,
        set_lr=trainer.set_lr,
        prepare=trainer.prepare,
        prepared=lambda: trainer.prepared,
        describe=SamplePreview(setup.loaded.tokenizer).of,
        accumulate=config.train.accumulation,
        in_batch_negatives=config.contrastive.kind in ("infonce", "pairwise", "triplet"),
    )


def build_profiler(
    setup: Setup,
    start: SessionStart,
    trainer: AnyTrainer,
    event_log: EventLog,
    control: ControlState,
) -> StepProfiler:
    """Build the profiler; a run that was started only for a profile ends after it."""
    profiler = StepProfiler(
        setup.config,
        trainer.model,
        setup.place.device,
        event_log,
        start.run.profiles,
        setup.place.rank,
        fast=trainer.forward.uses_graphs,
        on_done=(
            (lambda: control.demand(Stop(save=False), "profile", "the profile is complete"))
            if start.profile_steps
            else None
        ),
    )
    if start.profile_steps:
        profiler.ask(start.profile_steps, after=WARM_UP_STEPS)
    return profiler


def after_update(
    setup: Setup, source: BatchSource, ema: WeightsEma | None, event_log: EventLog
) -> list[Callable[[], None]]:
    """Return the calls after each update: average the weights, report findings of a stream."""
    follow = [ema.update] if ema else []
    if isinstance(source.batches, StreamedBatches):
        known, accept = setup.examples.findings, setup.config.data.accept
        follow.append(StreamFindings(known, source.batches.findings, accept, event_log).report)
    return follow


def division_fact(config: RunConfig, divided: str) -> dict[str, str]:
    """Return how the sequences of an update are divided, if their number is configured.

    Args:
        config: the configuration of the run.
        divided: why the micro-batch is smaller than planned; empty if it is not.
    """
    train = config.train
    if train.sequences_per_update is None:
        return {}
    text = f"{train.micro_batch_size} of {train.sequences_per_update} sequences per update"
    return {"micro-batch": f"{text}; {divided}" if divided else text}


def facts_before(
    setup: Setup,
    trainer: Any,
    planned: MemoryEstimate | None,
    plan: MemoryPlanCheck | None,
    *,
    may_divide: bool,
) -> dict[str, str]:
    """Return the facts to show before the first step; runs the memory probe if possible.

    Args:
        setup: the loaded run.
        trainer: its trainer.
        planned: the memory estimate; None without one.
        plan: compares the steps of the run with the estimate.
        may_divide: whether no step depends on the micro-batch yet, so that the run begins here.

    Raises:
        MicroBatchTooLarge: the longest batch does not fit, and smaller ones are the same training.
        ModelError: the longest batch does not fit into the memory of the GPU.
    """
    config, place, examples = setup.config, setup.place, setup.examples
    ranks = f"{trainer.accelerator.num_processes} of {config.train.ranks}"
    if config.train.nodes > 1:
        ranks += f" on {config.train.nodes} nodes"
    facts = {"ranks": ranks, **candidate_facts(config), "fast mode": trainer.forward.fact}
    if costs := passes_fact(config.train):
        facts["optimizer"] = costs
    facts |= mix_facts(config, examples.mix, setup.plan)
    if trainer.sharded is not None:
        shared = (
            "FSDP within a node, DDP between nodes" if config.train.strategy == "hybrid" else "FSDP"
        )
        facts["strategy"] = f"{shared}: each rank has 1/{trainer.sharded.ranks} of every weight"
    if not memory_probe.may_try(trainer, place.world_size, examples.per_epoch is not None):
        return facts
    collate = collator(config, setup.loaded, packed=config.data.packing)
    smaller = None
    if may_divide and planned is not None:
        smaller = smaller_micro_batch(config, mixture=planned.architecture.mixture is not None)
    facts |= memory_probe.try_longest(
        config, trainer, examples.train, collate, planned, plan, smaller=smaller
    )
    steps = setup.plan.steps
    return facts | make_graphs_ahead(config, trainer, examples.train, steps, asks=may_divide)


def describe(
    started: RunStarted, setup: Setup, resumed: Manifest | None, facts: dict[str, str]
) -> RunStarted:
    """Return the start event of the run with the facts known after loading; a collective."""
    loaded = setup.loaded
    return replace(
        started,
        devices=[d.decode() for d in setup.agreement.gather(setup.place.description.encode())],
        rank_hosts=setup.place.rank_hosts,
        total_steps=setup.plan.steps,
        resumed_from=resumed.name if resumed else None,
        start_step=resumed.step if resumed else 0,
        trainable_params=loaded.trainable_params,
        total_params=loaded.total_params,
        facts={**loaded.facts, **setup.examples.facts, **facts},
        findings=setup.examples.findings.to_structs(),
    )


def run_steps(
    trainer: AnyTrainer,
    step_loop: StepLoop,
    begin: Callable[[], None],
    queue: CommandQueue,
    *,
    alone: bool,
) -> None:
    """Train to the end; if a step of a single rank fails, journal the step before it.

    With several ranks, the totals of that step need ranks that may be lost. If the run is to start
    again with smaller micro-batches, the queue of its commands is closed.
    """
    try:
        trainer.run(step_loop, begin)
    except memory_probe.MicroBatchTooLarge:
        queue.close()
        raise
    except Exception:
        if alone:
            with suppress(Exception):
                step_loop.conclude()
        raise
