"""`import`: turn the configuration of another training tool into one of fttui."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from fttui.engine.errors import ConfigError

from ...text.format import plural
from ..check import check_configuration
from ..options import Commands, say
from .training_packages import unusable

if TYPE_CHECKING:
    from fttui.engine.config.foreign.draft import Imported, KeyOutcome, Verdict

_ORDER: tuple[Verdict, ...] = ("refused", "dropped", "nearly", "same", "no effect")

_TASKS = ("sft", "dpo", "kto", "reward")
"""The tasks that a configuration of TRL can have."""


def add_commands(commands: Commands) -> None:
    """Register the subcommand `import` of `fttui`."""
    parser = commands.add_parser(
        "import", help="turn a configuration of axolotl, LLaMA-Factory or TRL into one of fttui"
    )
    parser.add_argument("config", metavar="FILE", type=Path, help="a YAML or JSON file")
    parser.add_argument(
        "-o", "--out", metavar="FILE", type=Path, help="file to write; default: print it"
    )
    parser.add_argument(
        "--task",
        choices=_TASKS,
        help="for TRL, if the keys do not show it",
    )
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="K=V",
        help="set a key of fttui, such as model.id=FOLDER",
    )  # fmt: skip
    parser.add_argument(
        "--accept",
        action="store_true",
        help="import although keys that change the result are left out",
    )
    parser.add_argument("--no-check", action="store_true", help="do not check the written file")
    parser.set_defaults(handler=_import)


def _import(options: argparse.Namespace) -> int:
    # Deferred, so that commands that read no configuration start faster.
    from fttui.engine.config.foreign.reading import read_foreign
    from fttui.engine.config.foreign.writing import written
    from fttui.engine.config.load import load_config, parse_override, read_config

    text = read_config(options.config)
    overrides = dict(_flat(parse_override(one) for one in options.overrides))
    task = options.task or _task_of(overrides)
    imported = read_foreign(options.config, text, task).settled(overrides)
    for line in table(imported.rows):
        say(line)
    counts = Counter(row.verdict for row in imported.rows if row.key)
    say(f"{imported.tool}: " + ", ".join(f"{counts[one]} {one}" for one in _ORDER if counts[one]))
    _require_possible(imported, options)
    yaml = written(imported, options.config.name, text)
    if options.out is None:
        say("")
        say(yaml.rstrip("\n"))
        return 0
    write_new(options.out, yaml)
    say(f"written to {options.out}")
    load_config(options.out)
    if options.no_check or list(unusable()):
        say(f"check it with: fttui check {quote(str(options.out))}")
        return 0
    return check_configuration(options.out)


def table(rows: Sequence[KeyOutcome]) -> list[str]:
    """Return a line for each key: verdict, key and value, then the key of fttui or the reason."""
    ordered = sorted(rows, key=lambda row: _ORDER.index(row.verdict))
    cells = [(row.verdict, _their(row), _ours(row)) for row in ordered]
    width = min(60, max((len(theirs) for _, theirs, _ in cells), default=0))
    return [f"{verdict:<9}  {theirs:<{width}}  {ours}".rstrip() for verdict, theirs, ours in cells]


def _their(row: KeyOutcome) -> str:
    return f"{row.key}: {row.value}" if row.key else "(not given)"


def _ours(row: KeyOutcome) -> str:
    parts = [f"→ {row.ours}" if row.ours else "", f"({row.reason})" if row.reason else ""]
    return " ".join(filter(None, parts))


def _flat(overrides: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the overrides of single keys; a section given as a mapping becomes its keys."""
    for path, value in overrides:
        if "." not in path and isinstance(value, Mapping):
            yield from ((f"{path}.{key}", inner) for key, inner in value.items())
        else:
            yield path, value


def _task_of(overrides: Mapping[str, Any]) -> str | None:
    """Return the task that `--set` gives, by its own key or by one that only a task has."""
    given = overrides.get("task")
    if given in _TASKS:
        return str(given)
    return "dpo" if "preference.loss" in overrides else None


def _require_possible(imported: Imported, options: argparse.Namespace) -> None:
    """Refuse what cannot be trained, and what would be trained differently without consent.

    Raises:
        ConfigError: a key is refused, one that changes the result is dropped, or model or training
            data are not named.
    """
    if refused := imported.of("refused"):
        raise ConfigError(
            f"{options.config}: cannot be trained with fttui:\n"
            + "\n".join(f"  {row.key}: {row.value}: {row.reason}" for row in refused)
        )
    missing = [key for key in ("model.id", "data.train") if not imported.values.get(key)]
    if missing:
        wanted = " ".join(f"--set {key}=…" for key in missing)
        raise ConfigError(f"{options.config}: names no {' and no '.join(missing)}; add {wanted}")
    dropped = imported.of("dropped")
    if dropped and not options.accept:
        raise ConfigError(
            f"{options.config}: fttui has no counterpart for {plural(len(dropped), 'key')} that "
            "would change the result; to import all the same, add --accept:\n"
            + "\n".join(f"  {row.key}: {row.value}: {row.reason}" for row in dropped)
        )


def write_new(path: Path, text: str) -> None:
    """Write a configuration into a new file.

    Raises:
        ConfigError: The file exists already, or cannot be written.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{path}: exists already; choose another name for -o") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None
