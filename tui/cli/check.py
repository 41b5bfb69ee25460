"""`check`: validate a configuration and its data, plan steps and memory; also used by `run`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from fttui.engine.errors import ConfigError
from fttui.engine.protocol.data.messages import RowLengths, ShownRecords
from fttui.engine.run.run_dir import require_runs_folder, runs_root

from .options import Commands, add_runs_dir, say, say_line
from .preflight.plan import course, divided_by_length, needs
from .preflight.start_adapter import with_start_adapter
from .preflight.training_packages import require_training_packages


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
        "--free", metavar="GIB", type=gib, help="assume a GPU with this much free memory"
    )
    parser.add_argument(
        "--free-host", metavar="GIB", type=gib, help="assume this much free host memory"
    )
    parser.add_argument("--devices", metavar="N", type=int, help="short for --set train.devices=N")
    parser.add_argument("--nodes", metavar="N", type=int, help="short for --set train.nodes=N")
    parser.add_argument(
        "--show",
        metavar="N",
        type=_count,
        default=0,
        help="print the first N records of each training source as the model sees them",
    )
    parser.add_argument(
        "--tokens", action="store_true", help="with --show: list every token with id and label"
    )
    add_runs_dir(parser)
    parser.set_defaults(handler=_check)


def gib(text: str) -> int:
    """Parse a size in GiB; return it in bytes.

    Raises:
        argparse.ArgumentTypeError: The text is not a number above 0.
    """
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
    return check_configuration(
        options.config,
        [*options.overrides, *_counts(options)],
        runs_dir=options.runs_dir,
        free_bytes=options.free,
        free_host_bytes=options.free_host,
        show=options.show,
        tokens=options.tokens,
    )


def _counts(options: argparse.Namespace) -> list[str]:
    """Return the numbers of devices and nodes that are given, as `key=value` texts."""
    given = {"train.devices": options.devices, "train.nodes": options.nodes}
    return [f"{key}={number}" for key, number in given.items() if number is not None]


def check_configuration(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    runs_dir: str | None = None,
    free_bytes: int | None = None,
    free_host_bytes: int | None = None,
    show: int = 0,
    tokens: bool = False,
) -> int:
    """Check a configuration, its memory and its data, and print what is found; return 0.

    Args:
        path: the configuration file.
        overrides: `key=value` texts.
        runs_dir: folder with the runs, for an adapter of a run.
        free_bytes: free memory of an assumed GPU; None looks at this machine.
        free_host_bytes: assumed free host memory; None looks at this machine.
        show: number of records of each training source to print.
        tokens: whether to print every token of them.

    Raises:
        FttuiError: the run could not start as configured.
    """
    require_training_packages("fttui check")
    from fttui.engine.config.checks import check_hardware, check_sources, require
    from fttui.engine.config.load import load_config
    from fttui.engine.config.memory.hardware import probe_hardware, with_cards

    from .preflight.expected import expected_lines, measured_before

    if runs_dir is not None:
        require_runs_folder(runs_root(runs_dir))
    loaded = load_config(path, overrides)
    hardware = probe_hardware()
    if free_bytes is not None:
        hardware = with_cards(hardware, loaded.config.train.devices, free_bytes)
    if free_host_bytes is not None:
        hardware = replace(hardware, host_free_bytes=free_host_bytes)
    require(check_hardware(loaded.config, hardware), loaded.places, str(path))
    loaded = with_start_adapter(loaded, runs_dir, str(path), say)
    say(f"{path}: valid; {loaded.config.task} on {loaded.config.model.id}")
    missing = check_sources(loaded.config)
    for problem in missing:
        say(f"warning: not found yet: {problem.key}: {problem.text}")
    for line in chain(course(loaded.config), needs(loaded, hardware)):
        say(line)  # the estimate is printed before a model that does not fit is refused
    root = runs_root(runs_dir)
    for line in expected_lines(loaded.config, measured_before(loaded.config, root)):
        say(line)
    if not missing:
        lengths = look_into_data(loaded.resolved, show, tokens=tokens)
        divided_by_length(loaded, hardware, lengths, force=True, say=say)
    return 0


def look_into_data(
    resolved: str,
    show: int = 0,
    *,
    tokens: bool = False,
    say: Callable[[str], None] = say_line,
    plain: bool = False,
) -> list[int]:
    """Check the data in a separate process, which may load the tokenizer and data libraries.

    Args:
        resolved: the resolved configuration as YAML.
        show: number of records of each training source to print with their targets.
        tokens: whether to print every token of them.
        say: prints a line.
        plain: whether progress rewrites no line of the terminal.

    Returns:
        Tokens of training rows that stand for all; empty if they are not known.

    Raises:
        DataError: the data cannot be used, or a finding needs consent.
        FttuiError: the configuration names something that does not exist, such as a template.
    """
    from .data_check.process import data_messages, print_lines
    from .data_check.text import print_record

    lengths: list[int] = []
    arguments = [f"--show={show}", *(["--tokens"] if tokens else [])]
    for message in print_lines(data_messages("validate", arguments, resolved), say, plain=plain):
        if isinstance(message, ShownRecords):
            for record in message.records:
                print_record(record)
        if isinstance(message, RowLengths):
            lengths = message.lengths
    return lengths
