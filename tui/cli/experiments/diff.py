"""`diff`: compare two runs by settings, content, interventions and outcome."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from fttui.engine.errors import ConfigError
from fttui.engine.protocol.events import Record, RunStarted
from fttui.engine.run.configs import read_configs
from fttui.engine.run.identity.content import KINDS, differences, not_compared
from fttui.engine.run.identity.recorded import read_recorded
from fttui.engine.run.journal_summary import summarize_records
from fttui.engine.run.records.record_feed import read_whole
from fttui.engine.run.run_dir import RunDirectory, runs_root
from fttui.engine.run.run_index import find_run, summarize

from ...text import format as fmt
from ...view_model.history.comparison import (
    ComparedRun,
    LossComparison,
    RunsCompared,
    ValuePair,
    compare_runs,
)
from ...view_model.history.surviving import surviving_timeline
from ..options import Commands, add_runs_dir, say, say_json, say_line, warn
from .recipe import fresh_settings, gaps, readable_config

_LONGEST_VALUE = 60
_NOT_COMPARED = "not compared: "


def add_commands(commands: Commands) -> None:
    """Register the subcommand `diff` of `fttui`."""
    parser = commands.add_parser(
        "diff", help="compare two runs by settings, content, interventions and outcome"
    )
    parser.add_argument("run", metavar="RUN_A", help="name, unique prefix, or folder")
    parser.add_argument("other", metavar="RUN_B", help="name, unique prefix, or folder")
    add_runs_dir(parser)
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")
    parser.set_defaults(handler=_diff)


def _diff(options: argparse.Namespace) -> int:
    root = runs_root(options.runs_dir)
    runs = find_run(root, options.run), find_run(root, options.other)
    one, other = (_facts(run) for run in runs)
    for run, facts in zip(runs, (one, other), strict=True):
        for line in gaps(facts.not_read, facts.timeline):
            warn(f"fttui: caution: {run.id}: {line}")
    content = content_lines(*runs)
    found = compare_runs(one, other, _content_of_batches(content))
    if options.json:
        say_json({"runs": [run.id for run in runs], "content": content, **asdict(found)})
        return 0
    for line in diff_lines(found, content, runs[0].id, runs[1].id):
        (say if line.startswith(" ") else say_line)(line)  # a row of a table stays as it is
    return 0


def content_lines(one: RunDirectory, other: RunDirectory) -> list[str]:
    """Return how base model, tokenizer, template, data and start adapter of two runs differ.

    A kind whose hash is not known is named with the reason, because it cannot be compared.
    """
    starts = read_recorded(one).starts, read_recorded(other).starts
    if not all(starts):
        unknown = [run.id for run, known in zip((one, other), starts, strict=True) if not known]
        return [f"not recorded for {' and '.join(unknown)}"]
    last = starts[0][-1].identity, starts[1][-1].identity
    unknown = [f"{_NOT_COMPARED}{text}" for text in not_compared(*last)]
    return [*(found.text for found in differences(*last)), *unknown]


def _content_of_batches(lines: list[str]) -> list[str]:
    """Return the content that decides the batches and differs or is not known, in words."""
    deciding = (*(KINDS[kind] for kind in ("tokenizer", "template", "data")), "not recorded")
    return [line for line in lines if line.removeprefix(_NOT_COMPARED).startswith(deciding)]


def diff_lines(found: RunsCompared, content: list[str], one: str, other: str) -> Iterator[str]:
    """Yield the comparison of two runs as text."""
    yield f"A  {one}"
    yield f"B  {other}"
    yield from _part("settings", _missing(found.settings_missing) + _table(found.settings))
    yield from _part("model and data", [f"  {line}" for line in content])
    yield from _part("devices and versions", _missing(found.stack_missing) + _table(found.stack))
    changes = [f"  only A  {text}" for text in found.only_one]
    changes += [f"  only B  {text}" for text in found.only_other]
    both = f"interventions ({found.both} in both)" if found.both else "interventions"
    yield from _part(both, changes)
    yield "outcome"
    yield from _table(found.outcome)
    yield _losses(found.losses)


def _part(title: str, lines: list[str]) -> Iterator[str]:
    yield title if lines else f"{title}: no difference"
    yield from lines


def _missing(runs: list[str]) -> list[str]:
    return [f"  not recorded for {' and '.join(runs)}"] if runs else []


def _table(pairs: list[ValuePair]) -> list[str]:
    """Return a line for each pair, with its values below each other."""
    rows = [(p.name, fmt.clip_to(p.one, _LONGEST_VALUE), p.other) for p in pairs]
    name, value = (max((len(row[at]) for row in rows), default=0) for at in (0, 1))
    return [
        f"  {row[0]:<{name}}  {row[1]:<{value}}  {fmt.clip_to(row[2], _LONGEST_VALUE)}".rstrip()
        for row in rows
    ]


def _losses(found: LossComparison) -> str:
    """Return how the losses of the common steps compare, as one line."""
    if not found.common_steps:
        return "losses: no step that both have trained and whose loss is reported"
    common = fmt.plural(found.common_steps, "common step")
    if found.equal:
        return f"losses: equal to the last bit in all {common}"
    gap = "" if found.mean_gap is None else f"; B − A {found.mean_gap:+.4f}"
    if gap and found.half_width is not None:
        gap += f" ± {found.half_width:.4f} (95%)"
    half = " over the second half of them" + ("" if found.unpaired else ", paired by step")
    half = half if gap else ""
    if gap and found.unpaired:
        half += f"; no interval, because their batches differ or may differ: {found.unpaired}"
    return f"losses: differ from step {found.first_different} on, of {common}{gap}{half}"


def _facts(run: RunDirectory) -> ComparedRun:
    records, not_read = read_whole(run)
    fresh = None
    with suppress(ConfigError):  # a script's run, or a configuration that is not valid any more
        fresh = fresh_settings(readable_config(run))
    known = summarize_records(records)
    return ComparedRun(
        settings=flat_settings(run),
        timeline=surviving_timeline(records, fresh),
        state=summarize(run).state.value,
        total_steps=max((e.total_steps for e in _starts(records)), default=0),
        stack=_stack(records),
        used=known.used,
        price=known.tally.price,
        not_read=tuple(not_read),
    )


def _starts(records: list[Record]) -> Iterator[RunStarted]:
    yield from (record.event for record in records if isinstance(record.event, RunStarted))


def _stack(records: list[Record]) -> dict[str, str]:
    """Return devices and versions of the last start, by name."""
    known = [event for event in _starts(records) if event.devices]
    if not known:
        return {}
    return {"devices": "; ".join(known[-1].devices), **known[-1].versions}


def flat_settings(run: RunDirectory) -> dict[str, str]:
    """Return the resolved configuration of a run as key path → value; empty if it is not YAML."""
    import yaml

    try:
        tree = yaml.safe_load(read_configs(run).resolved)
    except yaml.YAMLError:
        return {}
    return dict(_flat(tree, "")) if isinstance(tree, dict) else {}


def _flat(tree: Mapping[str, Any], above: str) -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        path = f"{above}.{key}".lstrip(".")
        if isinstance(value, dict) and value:
            yield from _flat(value, path)
        elif path != "interventions":
            yield path, "null" if value is None else str(value)
