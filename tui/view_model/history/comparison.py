"""The comparison of two runs by what led to their weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from fttui.engine.protocol.usage.amounts import Price, Usage
from fttui.engine.protocol.usage.cost import energy_words, money_of

from ...text import format as fmt
from ..race.verdict import paired_difference
from .same_batches import unpaired_changes, unpaired_settings
from .surviving import SurvivingTimeline

_LAST_STEPS = 50
"""Steps at the end of a run over which its loss is averaged."""
MISSING = "–"
OWN_NAMES = frozenset({"name"})
"""Settings that name a run and change nothing in it."""


@dataclass(frozen=True)
class ComparedRun:
    """What is known about one run."""

    settings: Mapping[str, str]
    """The resolved configuration as key path → value; empty if it cannot be read."""
    timeline: SurvivingTimeline
    state: str
    total_steps: int = 0
    """Planned steps; 0 if unknown."""
    stack: Mapping[str, str] = field(default_factory=dict)
    """Devices and versions of the libraries; empty if they are not recorded."""
    used: Usage | None = None
    price: Price | None = None
    not_read: tuple[str, ...] = ()
    """What of the journal could not be read, in words."""

    @property
    def last_step(self) -> int:
        """The last step of the surviving timeline."""
        return max(self.timeline.steps, default=0)


@dataclass(frozen=True)
class ValuePair:
    """Something that differs: its name, and its value in both runs."""

    name: str
    one: str
    other: str


@dataclass(frozen=True)
class LossComparison:
    """The training losses of two runs, step by step."""

    common_steps: int
    first_different: int | None
    """The first common step whose losses are not the same number; None if all are equal."""
    mean_gap: float | None = None
    """Mean loss of the other run minus that of the one, over the second half of the common steps;
    None without a common step."""
    half_width: float | None = None
    """Half the width of its confidence interval; None for too few steps, and without pairs."""
    unpaired: str = ""
    """Why a step of the one is not compared with the same batch of the other; empty if it is."""

    @property
    def equal(self) -> bool:
        """Whether all losses of the common steps are the same numbers."""
        return self.common_steps > 0 and self.first_different is None


@dataclass(frozen=True)
class RunsCompared:
    """The differences of two runs."""

    settings: list[ValuePair]
    settings_missing: list[str]
    """The runs, `A` or `B`, whose configuration cannot be read, so that it is not compared."""
    stack: list[ValuePair]
    stack_missing: list[str]
    """The runs, `A` or `B`, whose devices and versions are not recorded."""
    only_one: list[str]
    """Interventions that only the first run has, such as `step 640: lr scale 0.5`."""
    only_other: list[str]
    both: int
    """Number of interventions that both have at the same step."""
    outcome: list[ValuePair]
    """The figures of both runs, equal or not."""
    losses: LossComparison


def compare_runs(one: ComparedRun, other: ComparedRun, content: Sequence[str] = ()) -> RunsCompared:
    """Return the differences of two runs.

    Args:
        one: the first run.
        other: the second run.
        content: the kinds of content, such as `data`, that are not known to be the same.
    """
    mine, theirs = _interventions(one.timeline), _interventions(other.timeline)
    settings = [p for p in _pairs(one.settings, other.settings) if p.name not in OWN_NAMES]
    changed = unpaired_changes([t for t in mine if t not in theirs])
    changed += unpaired_changes([t for t in theirs if t not in mine])
    reasons = [*unpaired_settings(p.name for p in settings), *content, *changed]
    if _missing(one.settings, other.settings):
        reasons = ["settings that are not recorded"]
    return RunsCompared(
        settings=settings,
        settings_missing=_missing(one.settings, other.settings),
        stack=_pairs(one.stack, other.stack),
        stack_missing=_missing(one.stack, other.stack),
        only_one=[text for text in mine if text not in theirs],
        only_other=[text for text in theirs if text not in mine],
        both=sum(text in theirs for text in mine),
        outcome=_outcome(one, other),
        losses=compare_losses(one.timeline, other.timeline, ", ".join(reasons)),
    )


def _missing(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    return [name for name, known in (("A", one), ("B", other)) if not known]


def _pairs(one: Mapping[str, str], other: Mapping[str, str]) -> list[ValuePair]:
    """Return the entries that differ, in the order of the first mapping.

    If one of them is empty, nothing is known about its run, and nothing is compared.
    """
    if not (one and other):
        return []
    names = dict.fromkeys([*one, *other])
    found = (ValuePair(name, one.get(name, MISSING), other.get(name, MISSING)) for name in names)
    return [pair for pair in found if pair.one != pair.other]


def _interventions(timeline: SurvivingTimeline) -> list[str]:
    return [f"step {change.step}: {change.command}" for change in timeline.changes]


def _outcome(one: ComparedRun, other: ComparedRun) -> list[ValuePair]:
    figures = _figures(one), _figures(other)
    names = dict.fromkeys([*figures[0], *figures[1]])
    return [ValuePair(n, figures[0].get(n, MISSING), figures[1].get(n, MISSING)) for n in names]


def _figures(facts: ComparedRun) -> dict[str, str]:
    """Return the outcome of a run as name → value in words."""
    timeline = facts.timeline
    planned = f" of {facts.total_steps}" if facts.total_steps else ""
    found = {"state": facts.state, "steps": f"{facts.last_step}{planned}"}
    if timeline.abandoned_steps:
        found["rolled back"] = f"{timeline.abandoned_steps} steps"
    last = [timeline.steps[step] for step in sorted(timeline.steps)][-_LAST_STEPS:]
    if losses := [event.loss for event in last if event.loss is not None]:
        found[f"loss, mean of the last {len(losses)}"] = f"{fmean(losses):.5g}"
    if last:
        found["seconds per step"] = f"{median(e.step_s for e in last):.3g}"
    found |= _used(facts)
    evaluated = {s: m["loss"] for s, m in timeline.evaluations.items() if "loss" in m}
    if evaluated:
        best = min(evaluated, key=lambda step: (evaluated[step], step))
        found["best eval.loss"] = f"{evaluated[best]:.5g} at step {best}"
        newest = max(timeline.evaluations)
        for name, value in timeline.evaluations[newest].items():
            found[f"last eval.{name}"] = f"{value:.5g} at step {newest}"
    for name, (step, score) in timeline.benchmarks.items():
        found[name] = f"{score.text} at step {step}"
    return found


def _used(facts: ComparedRun) -> dict[str, str]:
    """Return what a run has used in all of its starts, as name → value in words."""
    if facts.used is None:
        return {}
    money = money_of(facts.used, facts.price)
    energy = energy_words(facts.used).removeprefix("energy ")
    found = {"time used": fmt.duration(facts.used.seconds), "energy": energy}
    return found if money is None else {**found, "money": money.words}


def compare_losses(
    one: SurvivingTimeline, other: SurvivingTimeline, unpaired: str = ""
) -> LossComparison:
    """Compare the losses of the steps that both runs have trained.

    Args:
        one: the steps of the first run.
        other: the steps of the second run; those of which neither run reports a loss are left out.
        unpaired: what makes the batches of the same step differ; empty if they are the same.
    """
    both = sorted(one.steps.keys() & other.steps.keys())
    events = {step: (one.steps[step], other.steps[step]) for step in both}
    # A script may report no loss. Steps of which neither run has one say nothing about them.
    common = [s for s, pair in events.items() if any(e.loss is not None for e in pair)]
    pairs = {step: (events[step][0].loss_or_nan, events[step][1].loss_or_nan) for step in common}
    different = (step for step, (a, b) in pairs.items() if a != b and not (a != a and b != b))
    first = next(different, None)
    finite = {s: (a, b) for s, (a, b) in pairs.items() if abs(a) < float("inf") > abs(b)}
    mine, theirs = ({s: pair[n] for s, pair in finite.items()} for n in (0, 1))
    gap = paired_difference(theirs, mine)
    if gap is None:
        return LossComparison(len(common), first)
    known = gap.half_width < float("inf") and not unpaired
    half_width = gap.half_width if known else None
    return LossComparison(len(common), first, gap.mean, half_width, unpaired)
