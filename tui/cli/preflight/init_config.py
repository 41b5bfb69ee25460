"""`init`: write somebody's first configuration, from their data, model and card."""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from fttui.engine.errors import ConfigError, DataError, FttuiError
from fttui.engine.protocol.data.messages import DataSummary

from ..check import check_configuration, gib
from ..options import Commands, add_columns, say
from .import_config import write_new
from .training_packages import require_training_packages

if TYPE_CHECKING:
    from fttui.engine.config.first.choices import DataFacts
    from fttui.engine.config.first.writing import First
    from fttui.engine.config.memory.hardware import Hardware

Ask = Callable[[str, str], str]
"""Asks a question with a default, and returns the answer; the default for an empty one."""


def add_commands(commands: Commands) -> None:
    """Register the subcommand `init` of `fttui`."""
    parser = commands.add_parser(
        "init",
        help="write a first configuration that fits your data, model and card",
        description="Ask for data, model and free GPU memory, and write a configuration with a "
        "comment beside every key. Without a terminal, and with --yes, the defaults are taken.",
    )
    parser.add_argument(
        "data", metavar="DATA", nargs="?", help="a file, a folder, or the id of a Hub dataset"
    )
    parser.add_argument("--model", metavar="M", help="a Hub id or a local folder")
    add_columns(parser)
    parser.add_argument(
        "--role",
        metavar="NAME=ROLE",
        type=_role,
        action="append",
        default=[],
        help="read this name of a role as user, assistant, system or tool; may be repeated",
    )
    parser.add_argument(
        "--free", metavar="GIB", type=gib, help="free memory of the GPU that will train"
    )
    parser.add_argument(
        "-o", "--out", metavar="FILE", type=Path, help="file to write (default: NAME.yaml)"
    )
    parser.add_argument("--yes", action="store_true", help="take the defaults, ask nothing")
    parser.add_argument("--no-check", action="store_true", help="do not check the written file")
    parser.set_defaults(handler=_init)


def _init(options: argparse.Namespace) -> int:
    require_training_packages("fttui init")
    ask = _default if options.yes or not sys.stdin.isatty() else _asked
    given = _Given(
        options.data,
        options.model,
        options.free,
        options.out,
        dict(options.column),
        dict(options.role),
    )
    out, text = first_file(given, ask)
    write_new(out, text)
    say(f"written to {out}")
    if options.no_check:
        say(f"check it with: fttui check {quote(str(out))}")
        return 0
    return check_configuration(out, free_bytes=options.free)


@dataclass(frozen=True)
class _Given:
    """What the command line says; None for what has to be asked."""

    data: str | None
    model: str | None
    free_bytes: int | None
    out: Path | None
    columns: Mapping[str, str] = field(default_factory=dict)
    """Columns by the field of the records that they hold."""
    roles: Mapping[str, str] = field(default_factory=dict)
    """Roles by the names that the records have for them."""


def first_file(given: _Given, ask: Ask) -> tuple[Path, str]:
    """Return the path and the text of a first configuration.

    Args:
        given: The command line.
        ask: Asks for what it does not say.

    Raises:
        ConfigError: No data are named.
        DataError: The data cannot be read, or no record of them can be learned.
        FttuiError: The model cannot be trained as configured.
    """
    from fttui.engine.config.first.choices import likely_size, suggested_model
    from fttui.engine.config.first.writing import First, first_configuration

    source = given.data or ask("data (a file, a folder or a Hub dataset)", "")
    if not source:
        raise ConfigError("no data given; use: fttui init DATA, such as fttui init chats.jsonl")
    facts = facts_of(source, given.model or "", given.columns, given.roles)
    say(f"{source}: {facts.records:,} records, task {facts.task}")
    hardware = _hardware(given.free_bytes, ask)
    model = given.model or ask("model", suggested_model(facts.task, hardware))
    if facts.tokens_p95 is None:
        counted = facts_of(source, model, given.columns, given.roles)
        facts = replace(facts, tokens_p95=counted.tokens_p95, tokens_most=counted.tokens_most)
    out = given.out or Path(ask("file to write", f"{_name(source)}.yaml"))
    facts = replace(facts, source=_seen_from(out, source))
    first = First(out.stem, model, facts, likely_size(facts), hardware, estimated=False)
    return out, first_configuration(_fitted(first), str(out))


def facts_of(
    source: str, model: str, columns: Mapping[str, str], roles: Mapping[str, str]
) -> DataFacts:
    """Read the data in a process of its own, and return what a configuration needs to know.

    Args:
        source: A file, a folder, or the id of a dataset on the Hub.
        model: Counts tokens, if its tokenizer can be loaded; empty counts none.
        columns: Columns by the field of the records that they hold; for others the names decide.
        roles: Roles by the names that the records have for them, for names that are not known.

    Raises:
        DataError: The data cannot be read, or no record of them can be learned.
    """
    from fttui.engine.config.first.choices import DataFacts

    from ..data_check.process import data_messages, print_lines

    arguments = [source, "--split=train", f"--model={model}", f"--columns={json.dumps(columns)}"]
    arguments.append(f"--roles={json.dumps(roles)}")
    found = None
    for message in print_lines(data_messages("summary", arguments, ""), say):
        if isinstance(message, DataSummary):
            found = message
    if found is None or found.problem or not found.task:
        why = found.problem if found else "the data could not be summarised"
        if "set data.roles" in why:
            why += "; fttui init takes such names as --role NAME=ROLE, once for each name"
        elif found and not found.format and found.unused:
            why += "; fttui init takes such names as --column FIELD=COLUMN, once for each field"
        raise DataError(why or f"{source}: no record format is recognized; see: fttui data")
    import yaml  # here, so that other commands start without it

    section = yaml.safe_load(found.section) or {}
    return DataFacts(
        records=found.records,
        task=found.task,
        source=source,
        columns=columns,
        roles=roles,
        contrastive=section.get("contrastive", {}),
        characters_p95=found.characters.p95 if found.characters else None,
        tokens_p95=found.tokens.p95 if found.tokens else None,
        tokens_most=found.tokens.most if found.tokens else None,
    )


def _fitted(first: First) -> First:
    """Return the configuration with the largest size that fits, if the model's sizes are known.

    Raises:
        ConfigError: The configuration asks for something that the model does not have.
    """
    from fttui.engine.config.first.choices import fitting_size
    from fttui.engine.config.first.writing import first_configuration
    from fttui.engine.config.load import load_config
    from fttui.engine.config.memory.planning import known_architecture

    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder) / "draft.yaml"
        draft.write_text(first_configuration(first, "draft.yaml"), encoding="utf-8")
        loaded = load_config(draft)
        architecture = known_architecture(loaded)
    if isinstance(architecture, FttuiError):
        say(f"memory is not estimated, because {first.model} cannot be measured: {architecture}")
        return first
    size = fitting_size(first.facts, loaded.config, architecture, first.hardware)
    if size is None:
        say("no size fits by the high estimate; the smallest one is written")
        return replace(first, size=replace(first.size, max_length=128))
    return replace(first, size=size, estimated=True)


def _hardware(free_bytes: int | None, ask: Ask) -> Hardware:
    """Return this machine, or one with a GPU of the given free memory.

    Raises:
        ConfigError: The answer is not a size in GiB.
    """
    from fttui.engine.config.memory.hardware import probe_hardware, with_cards

    here = probe_hardware()
    if free_bytes is None:
        free = min((device.free_bytes for device in here.devices), default=0) / 2**30
        found = f"{free:.1f}" if here.kind == "cuda" else ""
        answer = ask("free GPU memory in GiB (empty: train on the CPU)", found)
        if not answer or answer == found:
            return here
        try:
            free_bytes = gib(answer)
        except argparse.ArgumentTypeError as error:
            raise ConfigError(str(error)) from None
    return with_cards(here, 1, free_bytes)


def _name(source: str) -> str:
    """Return a name for a run on this source: letters, digits and hyphens."""
    stem = Path(source.rstrip("/")).name.split(".")[0]
    return re.sub(r"[^A-Za-z0-9]+", "-", stem).strip("-").lower() or "my-run"


def _seen_from(out: Path, source: str) -> str:
    """Return a source as the configuration in `out` has to name it."""
    path = Path(source).expanduser()
    if not path.exists() or out.parent.absolute() == Path.cwd():
        return source
    return str(path.absolute())


def _role(text: str) -> tuple[str, str]:
    """Return name and role of `NAME=ROLE`.

    Raises:
        argparse.ArgumentTypeError: It has another form.
    """
    name, equals, role = text.rpartition("=")
    if not (name and equals and role):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected NAME=ROLE, as in narrator=user")
    return name, role


def _asked(question: str, default: str) -> str:
    hint = f" [{default}]" if default else ""
    return input(f"{question}{hint}: ").strip() or default


def _default(_question: str, default: str) -> str:
    return default
