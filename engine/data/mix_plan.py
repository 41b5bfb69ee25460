"""The weights of several sources over a run: the schedule of their changes, and facts about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..config.schema import RunConfig
from ..config.sections.mix import step_of
from ..config.step_plan import StepPlan
from ..errors import ConfigError
from .batches.mixing import MixChange, MixSchedule
from .batches.sampler import Mix

MIX_FACTS = BY_PHASES, OVER_THE_RUN = "mix by phases", "mix over the run"
"""Names of the facts of a run that say how its sources are mixed."""
Phases = list[tuple[int, tuple[float, ...]]]
"""Finished steps at which each phase begins, and the weights of the sources in it."""


def first_weights(config: RunConfig) -> list[float] | None:
    """Return the weights of the sources with which a run begins; None if they have none."""
    data = config.data
    if data.mix:
        return [data.mix[0].weights[name] for name in data.source_names]
    weights = [one.weight for one in data.sources if one.weight is not None]
    return weights or None


def phases_of(config: RunConfig, mix: Mix | None, steps: int) -> Phases:
    """Return the phases of a run of several sources.

    Args:
        config: The run.
        mix: The records of the sources; None for streamed data, whose sources have weights.
        steps: Optimizer steps of the run.

    Raises:
        ConfigError: Two phases of `data.mix` begin at the same step.
    """
    data = config.data
    if not data.mix:
        weights = first_weights(config) or (mix.counts if mix else [1.0] * len(data.sources))
        return [(0, tuple(map(float, weights)))]
    found: Phases = []
    for one in data.mix:
        start = step_of(one.at, steps)
        if found and start <= found[-1][0]:
            raise ConfigError(
                f"data.mix: the phase at {one.at:g} begins at step {start:,} of {steps:,}, and the "
                f"one before it at step {found[-1][0]:,}; change `at`, or train more steps"
            )
        found.append((start, tuple(one.weights[name] for name in data.source_names)))
    return found


def mix_schedule(config: RunConfig, mix: Mix | None, steps: int) -> MixSchedule | None:
    """Return the configured weights by position in the data; None for a single source.

    The arguments and the error are those of `phases_of`.
    """
    if len(config.data.sources) < 2:
        return None
    each = config.train.accumulation
    phases = phases_of(config, mix, steps)
    return MixSchedule(
        tuple(config.data.source_names),
        tuple(MixChange(start * each, weights) for start, weights in phases),
    )


def mix_facts(config: RunConfig, mix: Mix | None, plan: StepPlan) -> dict[str, str]:
    """Return the shares of the sources in each phase, and how often the run uses their records.

    Raises:
        ConfigError: Two phases of `data.mix` begin at the same step.
    """
    if len(config.data.sources) < 2:
        return {}
    phases = phases_of(config, mix, plan.steps)
    facts = {}
    if len(phases) > 1:
        facts[BY_PHASES] = "; ".join(_phase_texts(config, phases, plan.steps))
    if mix is not None:
        facts[OVER_THE_RUN] = _uses(config, mix.counts, phases, plan)
    return facts


def _phase_texts(config: RunConfig, phases: Phases, steps: int) -> Iterator[str]:
    names = config.data.source_names
    ends = [start for start, _ in phases[1:]] + [steps]
    for (start, weights), end in zip(phases, ends, strict=True):
        shares = ", ".join(
            f"{name} {weight / sum(weights):.0%}"
            for name, weight in zip(names, weights, strict=True)
        )
        if start >= steps:
            yield f"{shares} from step {start + 1:,}, which this run of {steps:,} does not reach"
        else:
            yield f"steps {start + 1:,} to {min(end, steps):,}: {shares}"


def _uses(config: RunConfig, counts: Sequence[int], phases: Phases, plan: StepPlan) -> str:
    """Return how often the run uses each record of every source, on average."""
    ends = [start for start, _ in phases[1:]] + [plan.steps]
    used = [0.0] * len(counts)
    for (start, weights), end in zip(phases, ends, strict=True):
        total = max(0, min(end, plan.steps) - start) * plan.samples_per_step
        for source, weight in enumerate(weights):
            used[source] += total * weight / sum(weights)
    each = zip(config.data.source_names, used, counts, strict=True)
    unit = "rows" if config.data.packing else "records"
    return ", ".join(
        f"{name} {total:,.0f} {unit} (each of its {count:,} {total / count:.2g} times)"
        for name, total, count in each
    )
