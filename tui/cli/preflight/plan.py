"""The plan of a run before it starts: its length, its memory by terms, the decided settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from fttui.engine.errors import FttuiError, ModelError

from ...text.format import memory_term, plural, size
from .strategies import strategy_lines
from .streaming import streaming_cost

if TYPE_CHECKING:
    from fttui.engine.config.load import LoadedConfig
    from fttui.engine.config.memory.estimate import MemoryEstimate
    from fttui.engine.config.memory.fit import Fit
    from fttui.engine.config.memory.hardware import Hardware
    from fttui.engine.config.schema import RunConfig


def course(config: RunConfig) -> Iterator[str]:
    """Yield lines about batch size and length of the run, as far as known without the data."""
    from fttui.engine.config.step_plan import warmup_steps

    train = config.train
    per_step = train.micro_batch_size * train.accumulation * train.ranks
    unit = "pair" if config.task in ("contrastive", "dpo", "reward") else "sequence"
    devices = f"{train.ranks} {'device' if train.ranks == 1 else 'devices'}"
    devices += f" on {train.nodes} nodes" if train.nodes > 1 else ""
    division = f"= batch {train.micro_batch_size} × accumulate {train.accumulation} × {devices}"
    if train.batch == "auto":
        division = f"in micro-batches as memory allows, on {devices}"
    yield f"step: {plural(per_step, unit)} {division}"
    if train.steps is None:
        epochs = f"{train.epochs:g} epoch{'' if train.epochs == 1 else 's'}"
        yield f"length: {epochs}; the number of steps is known once the data is read"
        return
    warmup = warmup_steps(train.warmup, train.steps)
    learned = plural(train.steps * per_step, unit)
    yield f"length: {plural(train.steps, 'step')}, {learned}, {plural(warmup, 'warm-up step')}"


def needs(loaded: LoadedConfig, hardware: Hardware) -> Iterator[str]:
    """Yield lines on memory by terms, size of checkpoints, decided settings, fast mode, and advice.

    If memory cannot be estimated, the only line says why.

    Raises:
        ConfigError: the model lacks something that the configuration refers to.
        ModelError: the run does not fit in memory; the text says what to change.
    """
    from fttui.engine.config.fast_mode import MIXTURE_OF_EXPERTS, fast_fact, why_not_fast
    from fttui.engine.config.memory.architecture import MixtureOfExperts
    from fttui.engine.config.memory.fit import advice, fit, too_large
    from fttui.engine.config.memory.planning import known_architecture
    from fttui.engine.config.sections.optimizers import passes_fact

    config, architecture = loaded.config, known_architecture(loaded)
    if isinstance(architecture, FttuiError):
        why = f"without {config.model.id}'s config.json: {architecture}"
        if isinstance(architecture, MixtureOfExperts):
            why = f"for this model: {architecture}"
        yield f"memory: cannot be estimated {why}"
        yield from _smallest(loaded)
        return
    found = fit(config, architecture, hardware)
    estimate = found.estimate
    yield (
        f"memory per rank: {size(estimate.likely)} likely, {size(estimate.low)} to "
        f"{size(estimate.high)}; {size(found.free_bytes)} free ({hardware.kind})"
    )
    for name, term_bytes in estimate.terms().items():
        yield f"  {memory_term(name):<24} {size(term_bytes):>10}"
    yield checkpoint_line(found.config, estimate)
    yield from decided(found)
    yield from streaming_cost(found, hardware)
    why_not = why_not_fast(found.config, hardware.kind)
    why_not = why_not or (MIXTURE_OF_EXPERTS if architecture.mixture else None)
    yield f"fast mode: {fast_fact(found.config, why_not)}"
    if costs := passes_fact(found.config.train):
        yield f"optimizer: {costs}"
    yield from strategy_lines(config, architecture, hardware)
    if not found.fits:
        raise ModelError(too_large(found))
    yield from advice(estimate, found.free_bytes, found.config, found.host_free_bytes)


def checkpoint_line(config: RunConfig, estimate: MemoryEstimate) -> str:
    """Return a line with the size of a checkpoint on disk, and of all that are kept.

    A checkpoint holds the trained weights, with `train.ema` their moving average too, and the state
    of the optimizer.
    """
    from fttui.engine.config.memory.sharding import gradient_copies, parts

    average = config.train.ema > 0
    each = estimate.gradients // gradient_copies(config, graphs=estimate.graphs)
    each = (each * (1 + average) + estimate.optimizer) * parts(config)
    kept = config.checkpoint.keep
    return f"checkpoints: about {size(each)} each, {size(each * kept)} for the newest {kept}"


def decided(found: Fit) -> Iterator[str]:
    """Yield a line for each value that was chosen for a key left on `auto`, with the reason."""
    yield from (f"chosen to fit in memory: {setting}" for setting in found.chosen)
    yield from (f"chosen for speed, as memory allows: {setting}" for setting in found.faster)
    if found.divided:
        yield f"chosen for speed, as memory allows: {found.divided}"
        yield from _noise(found.config)


def _noise(config: RunConfig) -> Iterator[str]:
    """Yield a line if another micro-batch, as on another card, does not give the same result."""
    from fttui.engine.config.memory.micro_batch import noise_by_batch

    if settings := noise_by_batch(config):
        yield (
            f"note: with {' and '.join(settings)}, random numbers depend on the micro-batch size, "
            "so the run is similar on another card, but not equal up to rounding; resumes, "
            "rollbacks and replays keep the micro-batch size"
        )


def _smallest(loaded: LoadedConfig) -> Iterator[str]:
    """Yield a line if single sequences are taken because memory cannot be estimated."""
    if loaded.config.train.batch == "auto":
        yield (
            "train.batch: auto uses 1, because the memory of larger micro-batches cannot be "
            "estimated; set a number"
        )


def fitted(loaded: LoadedConfig, *, force: bool, say: Callable[[str], None]) -> LoadedConfig:
    """Return the configuration with every key left on `auto` decided for this machine.

    If the model's sizes are not known, so that memory cannot be estimated, only `train.batch: auto`
    is decided: single sequences.

    Args:
        loaded: the configuration as read.
        force: start even if the run does not fit by the estimate.
        say: prints the estimate and the decisions.

    Raises:
        ConfigError: the model lacks something that the configuration refers to.
        ModelError: the run does not fit in memory; the text says what to change.
    """
    from fttui.engine.config.load import with_config
    from fttui.engine.config.memory.hardware import probe_hardware
    from fttui.engine.config.memory.planning import fit_on, with_smallest_batch

    hardware = probe_hardware()
    found = fit_on(loaded, hardware, force=force)
    if found is None:
        for line in _smallest(loaded):
            say(line)
        return with_smallest_batch(loaded)
    estimate = found.estimate
    say(
        f"memory per rank: {size(estimate.likely)} likely, at most "
        f"{size(estimate.high)}; {size(found.free_bytes)} free"
    )
    terms = (f"{memory_term(name)} {size(held)}" for name, held in estimate.terms().items())
    say("; ".join(terms))
    for line in (*decided(found), *streaming_cost(found, hardware)):
        say(line)
    return with_config(loaded, found.config)


def divided_by_length(
    loaded: LoadedConfig,
    hardware: Hardware,
    lengths: Sequence[int],
    *,
    force: bool,
    say: Callable[[str], None],
) -> LoadedConfig | None:
    """Return the configuration with `train.batch: auto` decided by the lengths of the data, too.

    None if it is decided already, the lengths are not known, or memory cannot be estimated.

    Args:
        loaded: the configuration as read.
        hardware: the machine that trains.
        lengths: tokens of training rows that stand for all.
        force: start even if the run does not fit by the estimate.
        say: prints what is decided otherwise than without the lengths, and the memory with it.
    """
    from fttui.engine.config.load import with_config
    from fttui.engine.config.memory.planning import fit_on

    if loaded.config.train.batch != "auto" or not lengths:
        return None
    found = fit_on(loaded, hardware, lengths, force=force)
    before = fit_on(loaded, hardware, force=force)
    if found is None or before is None:
        return None
    if found.config == before.config:
        return with_config(loaded, found.config)
    for setting in (found.divided, *found.faster):
        say(f"chosen by the lengths of the records: {setting}")
    estimate = found.estimate
    say(f"memory per rank then: {size(estimate.likely)} likely, at most {size(estimate.high)}")
    return with_config(loaded, found.config)
