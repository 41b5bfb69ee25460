"""`check`: validate a configuration and its data, plan steps and memory; also used by `run`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from fttui.engine.errors import ConfigError, FttuiError, ModelError
from fttui.engine.protocol.data_messages import ShownRecords
from fttui.engine.run.run_dir import require_runs_folder, runs_root

from ..text.format import memory_term, size
from .options import Commands, add_runs_dir, say
from .start_adapter import with_start_adapter

if TYPE_CHECKING:
    from fttui.engine.config.load import LoadedConfig
    from fttui.engine.config.memory.estimate import MemoryEstimate
    from fttui.engine.config.memory.fit import Fit
    from fttui.engine.config.memory.hardware import Hardware
    from fttui.engine.config.schema import RunConfig


def add_commands(commands: Commands) -> None:
    """Register the subcommand `check` of `fttui`."""
    parser = commands.add_parser(
        "check", help="validate a configuration, estimate its memory, check its data"
    )
    parser.add_argument("config", metavar="CONFIG", nargs="?", type=Path, help="a YAML file")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="K=V", help="as for run"
    )
    parser.add_argument(
        "--schema", action="store_true", help="print the JSON Schema of configurations, for editors"
    )
    parser.add_argument(
        "--free", metavar="GIB", type=_gib, help="assume a GPU with this much free memory"
    )
    parser.add_argument(
        "--show",
        metavar="N",
        type=_count,
        default=0,
        help="print the first N records of each training source as they are learned",
    )
    parser.add_argument(
        "--tokens", action="store_true", help="with --show: list every token with id and label"
    )
    add_runs_dir(parser)
    parser.set_defaults(handler=_check)


def _gib(text: str) -> int:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < 1e6:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected free memory in GiB, such as 5.6")
    return int(found * 2**30)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a number of records, such as 3")
    return int(text)


def _check(options: argparse.Namespace) -> int:
    from fttui.engine.config.schema_export import schema_text

    if options.schema:
        say(schema_text().rstrip("\n"))
        return 0
    if options.config is None:
        raise ConfigError("no configuration given; use: fttui check CONFIG, or --schema")
    from fttui.engine.config.checks import check_hardware, check_sources, require
    from fttui.engine.config.load import load_config
    from fttui.engine.config.memory.hardware import probe_hardware, with_cards

    if options.runs_dir is not None:
        require_runs_folder(runs_root(options.runs_dir))
    loaded = load_config(options.config, options.overrides)
    hardware = probe_hardware()
    if options.free is not None:
        hardware = with_cards(hardware, loaded.config.train.devices, options.free)
    require(check_hardware(loaded.config, hardware), loaded.places, str(options.config))
    loaded = with_start_adapter(loaded, options.runs_dir, str(options.config), say)
    say(f"{options.config}: valid; {loaded.config.task} on {loaded.config.model.id}")
    missing = check_sources(loaded.config)
    for problem in missing:
        say(f"warning: not found yet: {problem.key}: {problem.text}")
    for line in chain(course(loaded.config), needs(loaded, hardware)):
        say(line)  # the estimate is printed before a model that does not fit is refused
    if not missing:
        look_into_data(loaded.resolved, options.show, tokens=options.tokens)
    return 0


def look_into_data(
    resolved: str, show: int = 0, *, tokens: bool = False, say: Callable[[str], None] = say
) -> None:
    """Check the data in a separate process, which may load the tokenizer and data libraries.

    Args:
        resolved: the resolved configuration as YAML.
        show: number of records of each training source to print with their targets.
        tokens: whether to print every token of them.
        say: prints a line.

    Raises:
        DataError: the data cannot be used, or a finding needs consent.
    """
    from .data_check.process import data_messages, print_lines
    from .data_check.text import print_record

    arguments = [f"--show={show}", *(["--tokens"] if tokens else [])]
    for message in print_lines(data_messages("validate", arguments, resolved), say):
        if isinstance(message, ShownRecords):
            for record in message.records:
                print_record(record)


def course(config: RunConfig) -> Iterator[str]:
    """Yield lines about batch size and length of the run, as far as known without the data."""
    from fttui.engine.config.step_plan import warmup_steps

    train = config.train
    per_step = train.batch * train.accumulate * train.devices
    unit = "pairs" if config.task in ("contrastive", "dpo") else "sequences"
    yield (
        f"step: {per_step} {unit} = batch {train.batch} × accumulate {train.accumulate} "
        f"× {train.devices} {'device' if train.devices == 1 else 'devices'}"
    )
    if train.steps is None:
        epochs = f"{train.epochs:g} epoch{'' if train.epochs == 1 else 's'}"
        yield f"length: {epochs}; the number of steps is known once the data is read"
        return
    warmup = warmup_steps(train.warmup, train.steps)
    yield f"length: {train.steps} steps, {train.steps * per_step} {unit}, {warmup} warm-up steps"


def needs(loaded: LoadedConfig, hardware: Hardware) -> Iterator[str]:
    """Yield lines with the memory estimate by terms, the decisions it led to, and advice.

    Raises:
        ConfigError: the model lacks something that the configuration refers to.
        ModelError: the run does not fit in memory; the text says what to change.
    """
    from fttui.engine.config.fast_mode import fast_fact, why_not_fast
    from fttui.engine.config.memory.architecture import MixtureOfExperts
    from fttui.engine.config.memory.fit import advice, fit, too_large
    from fttui.engine.config.memory.planning import known_architecture

    config, architecture = loaded.config, known_architecture(loaded)
    if isinstance(architecture, FttuiError):
        why = f"without {config.model.id}'s config.json: {architecture}"
        if isinstance(architecture, MixtureOfExperts):
            why = f"for this model: {architecture}"
        yield f"memory: cannot be estimated {why}"
        return
    found = fit(config, architecture, hardware)
    estimate = found.estimate
    yield (
        f"memory per rank: {size(estimate.likely)} likely, {size(estimate.low)} to "
        f"{size(estimate.high)}; {size(found.free_bytes)} free ({hardware.kind})"
    )
    for name, term_bytes in estimate.terms().items():
        yield f"  {memory_term(name):<24} {size(term_bytes):>10}"
    if architecture.sees_images:
        yield "  not planned: the vision tower of the model, which is frozen"
    yield checkpoint_line(found.config, estimate)
    yield from decided(found)
    yield f"fast mode: {fast_fact(found.config, why_not_fast(found.config, hardware.kind))}"
    if not found.fits:
        raise ModelError(too_large(found))
    yield from advice(estimate, found.free_bytes, found.config)


def checkpoint_line(config: RunConfig, estimate: MemoryEstimate) -> str:
    """Return the size of a checkpoint on disk: trained weights, their average, optimizer state."""
    average = config.train.ema > 0
    each = estimate.gradients // (2 if config.train.devices > 1 and not estimate.graphs else 1)
    each = each * (1 + average) + estimate.optimizer
    kept = config.checkpoint.keep
    return f"checkpoints: about {size(each)} each, {size(each * kept)} for the newest {kept}"


def decided(found: Fit) -> Iterator[str]:
    """Yield the values chosen for keys left on `auto`, with the reason."""
    yield from (f"chosen to fit in memory: {setting}" for setting in found.chosen)
    yield from (f"chosen for speed, as memory allows: {setting}" for setting in found.faster)


def fitted(loaded: LoadedConfig, *, force: bool, say: Callable[[str], None]) -> LoadedConfig:
    """Return the configuration with every key left on `auto` decided for this machine.

    It is unchanged if the model's sizes are not known, so that memory cannot be estimated.

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
    from fttui.engine.config.memory.planning import fit_on

    found = fit_on(loaded, probe_hardware(), force=force)
    if found is None:
        return loaded
    estimate = found.estimate
    say(
        f"memory per rank: {size(estimate.likely)} likely, at most "
        f"{size(estimate.high)}; {size(found.free_bytes)} free"
    )
    terms = (f"{memory_term(name)} {size(held)}" for name, held in estimate.terms().items())
    say("; ".join(terms))
    for line in decided(found):
        say(line)
    return with_config(loaded, found.config)
