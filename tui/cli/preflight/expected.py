"""Cost of a whole run, estimated from an earlier run of the same kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from fttui.engine.config.checks.budget import budget_of, price_of
from fttui.engine.config.load import read_resolved
from fttui.engine.config.schema import RunConfig
from fttui.engine.errors import FttuiError
from fttui.engine.protocol.events import Record, StepFinished
from fttui.engine.protocol.usage.amounts import Usage
from fttui.engine.protocol.usage.cost import spent_of
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.run.run_index import list_runs, read_ends

from ...text import format as fmt
from ...text.usage import energy_and_money, use_per_s

LOOKED_AT = 20
"""Newest runs that are compared with the configuration."""
_MEASURED_STEPS = 50


@dataclass(frozen=True)
class EarlierSpeed:
    """The speed of an earlier run."""

    run: str
    step_s: float
    """Median seconds of its newest steps."""
    use_per_s: Usage | None
    """What it has used in a second; None in journals of older versions."""


def kind_of(config: RunConfig) -> tuple[object, ...]:
    """Return the settings that two runs of the same speed have in common.

    Those that `auto` decides by the free memory are left out.
    """
    train, model, data = config.train, config.model, config.data
    return (
        (config.task, model.id, model.quantize, model.precision, config.adapter.kind),
        (train.micro_batch_size * train.accumulation, train.devices, train.nodes, train.strategy),
        (train.optimizer, data.max_length, data.packing, data.train),
    )


def measured_before(config: RunConfig, root: Path) -> EarlierSpeed | None:
    """Return the speed of the newest run of the same kind in a folder; None without one."""
    for known in list_runs(root)[:LOOKED_AT]:
        run = RunDirectory(Path(known.path))
        with suppress(FttuiError, OSError):
            if kind_of(read_resolved(run.config)) == kind_of(config):
                found = speed_of(known.id, read_ends(run.journal))
                if found is not None:
                    return found
    return None


def speed_of(run: str, records: Iterable[Record]) -> EarlierSpeed | None:
    """Return the speed that the end of a journal shows; None if it has too few steps."""
    steps = [r.event for r in records if isinstance(r.event, StepFinished)][-_MEASURED_STEPS:]
    if len(steps) < 2:
        return None
    used = use_per_s(steps[0].usage, steps[-1].usage)
    return EarlierSpeed(run, median(step.step_s for step in steps), used)


def expected_lines(config: RunConfig, found: EarlierSpeed | None) -> Iterator[str]:
    """Yield time, energy and money of a whole run, and the limit that it will reach first.

    Without a number of steps, and without a measured speed, it says what is missing if the
    configuration has a price or a budget, and is silent otherwise.
    """
    price, budget, steps = price_of(config), budget_of(config), config.train.steps
    if found is None or steps is None:
        if price is not None or budget is not None:
            missing = "no similar run has measured its speed yet"
            if found is not None:
                missing = f"train.steps is not given; {found.step_s:.3g} s per step in {found.run}"
            yield f"whole run: time and cost unknown, because {missing}"
        return
    seconds = steps * found.step_s
    used = found.use_per_s.scaled(seconds) if found.use_per_s else Usage(seconds=seconds)
    known = energy_and_money(used, price) if found.use_per_s else []
    yield (
        f"whole run: about {', '.join([fmt.duration(seconds), *known])} for "
        f"{fmt.plural(steps, 'step')}, by {found.run} ({found.step_s:.3g} s per step); "
        "evaluations and checkpoints are not included"
    )
    over = [spent for spent in spent_of(used, price, budget) if spent.share >= 1]
    if over:
        yield (
            f"warning: {over[0].key} will be reached after about "
            f"{fmt.count(steps / over[0].share)} of {fmt.count(steps)} steps, and the run stops"
        )
