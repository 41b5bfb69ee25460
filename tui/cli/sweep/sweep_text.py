"""A sweep in words: its plan and cost, the line of a trial, its table, and its result."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from shlex import quote

from fttui.engine.errors import FttuiError
from fttui.engine.protocol.usage.amounts import Price

from ...text import format as fmt
from ...text.usage import energy_and_money
from ...view_model.history.same_batches import unpaired_settings
from ...view_model.race.race_state import LOSS, mean_of_second_half
from ...view_model.race.rounds import MeasuredTimes
from ...view_model.race.verdict import CONFIDENCE, FEWEST_STEPS, Difference, paired_difference
from ...view_model.sweep.search_space import Axis, label, points
from ...view_model.sweep.sweep_plan import (
    FAILURES,
    SweepPlan,
    TrialResult,
    best_of,
    failures,
    ranked,
)


def plan_lines(plan: SweepPlan, space: Sequence[Axis], left: int, every_set: bool) -> Iterator[str]:
    """Yield what a sweep will do.

    Args:
        plan: what it searches.
        space: its axes.
        left: number of trials that are left.
        every_set: whether the sweep has set the interval of the evaluations.
    """
    yield (
        f"sweep of {plan.config}: {fmt.plural(left, 'trial')} of {fmt.plural(plan.steps, 'step')}, "
        f"compared by {plan.by}; sampler {plan.sampler}, pruner {plan.pruner}"
    )
    for axis in space:
        yield f"  {axis.key:<24} {_values(axis)}"
    most = points(space)
    if most is not None and most < plan.trials:
        yield f"the space has only {fmt.plural(most, 'combination')}; there are no more trials"
    if every_set:
        yield (
            f"eval.every is set to {plan.every}, so that a trial can end early; for another value: "
            "--set eval.every=N"
        )


def _values(axis: Axis) -> str:
    if axis.choices:
        return ", ".join(axis.choices)
    how = ", logarithmic" if axis.log else ""
    how += f", in steps of {axis.step:g}" if axis.step else ""
    kind = ", whole numbers" if axis.whole else ""
    return f"{axis.low:g} to {axis.high:g}{how}{kind}"


def cost_line(
    plan: SweepPlan,
    left: int,
    times: MeasuredTimes,
    keep: int,
    source: str,
    price: Price | None = None,
    *,
    at_once: int = 1,
) -> str:
    """Return what the trials of a sweep cost at most, as one line.

    Args:
        plan: what it searches.
        left: number of trials that are left.
        times: what a run of the configuration has measured.
        keep: number of checkpoints that each trial keeps.
        source: the id of that run; empty without one.
        price: that of the configuration; None without one.
        at_once: number of trials that train side by side.
    """
    took = "time unknown until the first trial, because no run of this configuration was measured"
    if (each := trial_s(plan, times)) is not None:
        beside = f" on {at_once} devices" if at_once > 1 else ""
        seconds = math.ceil(left / at_once) * each
        took = f"about {fmt.duration(seconds)}{beside}, estimated from {source}"
        if times.use_per_s is not None:
            used = times.use_per_s.scaled(left * each)
            took = ", ".join([took, *energy_and_money(used, price)])
    size = times.checkpoint_bytes
    disk = "" if size is None else f", up to {fmt.size(left * keep * size)}"
    early = "" if plan.pruner == "none" else " at most, because bad trials end early"
    return (
        f"cost: {fmt.plural(left * plan.steps, 'step')}{early}; {took}; up to "
        f"{fmt.plural(left * keep, 'checkpoint')}{disk}"
    )


def trial_s(plan: SweepPlan, times: MeasuredTimes) -> float | None:
    """Return the seconds of a trial with all steps; None if no step was measured."""
    if times.step_s is None:
        return None
    evaluations = 0 if plan.by == LOSS else plan.steps // plan.every
    return (
        (times.start_s or 0.0)
        + plan.steps * times.step_s
        + evaluations * (times.evaluation_s or 0.0)
        + (times.checkpoint_s or 0.0)
    )


def trial_line(plan: SweepPlan, space: Sequence[Axis], one: TrialResult, best: bool) -> str:
    """Return how a trial has ended, as one line."""
    parts = [
        f"trial {one.number:>3}",
        label(space, one.values),
        f"{plan.by} {fmt.number(one.score)}",
        fmt.plural(one.step, "step"),
        fmt.duration(one.seconds),
    ]
    if one.state == "failed":
        parts[2:] = [f"failed: {one.why}"]
    parts += ["best so far"] if best else []
    parts += ["ended early"] if one.state == "pruned" else []
    return "  ".join(parts)


def rest_line(left: int, training: int, at_once: int, trial_s: float) -> str:
    """Return how long the sweep still takes at most after its first trial, as one line.

    Args:
        left: number of trials that have not begun.
        training: number of trials that train now.
        at_once: number of trials that train side by side.
        trial_s: seconds of the first trial, which had all steps.
    """
    most = fmt.duration(math.ceil((left + training) / at_once) * trial_s)
    if not left:
        return f"  {fmt.plural(training, 'trial')} still training: at most {most}"
    beside = f", besides {training} training now" if training else ""
    return f"  then {fmt.plural(left, 'trial')} more{beside}: at most {most}"


def broken_line(
    space: Sequence[Axis],
    trial: tuple[int, Mapping[str, str]] | None,
    error: Exception,
    training: Sequence[int],
) -> str:
    """Return that an error ends a sweep, as one line.

    Args:
        space: the axes of the sweep.
        trial: number and settings of the trial in which it occurred; None if in none.
        error: the error.
        training: numbers of the trials that train now.
    """
    known = isinstance(error, (FttuiError, OSError))
    why = str(error).splitlines()[0] if known and str(error) else repr(error)
    where = "the sweep" if trial is None else f"trial {trial[0]}: {label(space, trial[1])}"
    after = "no further trial begins"
    if training:
        numbers = ", ".join(map(str, training))
        kind = "trial" if len(training) == 1 else "trials"
        after += f"; {kind} {numbers} still training, Ctrl-C stops with a checkpoint"
    return f"{where}  ended by an error: {why}; {after}"


def table_lines(
    plan: SweepPlan, space: Sequence[Axis], trials: Sequence[TrialResult]
) -> Iterator[str]:
    """Yield the results of the trials as a table, the best one first."""
    shown = ranked(plan.by, [one for one in trials if not one.same_as])
    best = best_of(plan.by, shown)
    score = (plan.by,) if plan.by != LOSS else ()
    head = ("trial", "settings", "steps", *score, "loss", "against best", "run")
    rows = [head, *(_row(plan, space, one, best) for one in shown)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
    left = {1, len(head) - 1}
    for row, one in zip(rows, [None, *shown], strict=True):
        pairs = enumerate(zip(row, widths, strict=True))
        cells = (c.ljust(w) if at in left else c.rjust(w) for at, (c, w) in pairs)
        yield f"  {'  '.join(cells)}  {_fate(one)}".rstrip()


def _row(
    plan: SweepPlan, space: Sequence[Axis], one: TrialResult, best: TrialResult | None
) -> tuple[str, ...]:
    score = (fmt.number(one.score),) if plan.by != LOSS else ()
    loss = fmt.number(mean_of_second_half(one.losses))
    against = "–"
    if best is not None and one is not best and one.state != "failed":
        against = _against(difference(space, best, one))
    return (
        str(one.number),
        label(space, one.values),
        str(one.step),
        *score,
        loss,
        against,
        one.run or "–",
    )


def difference(
    space: Sequence[Axis], best: TrialResult, other: TrialResult, comparisons: int = 1
) -> Difference | None:
    """Return by how much the training loss of a trial is above that of the best one.

    None if the settings that vary change the batches or the loss, so that there are no pairs.
    """
    if unpaired_settings(axis.key for axis in space):
        return None
    return paired_difference(other.losses, best.losses, comparisons)


def _against(found: Difference | None) -> str:
    if found is None:
        return "–"
    half = "?" if found.half_width == float("inf") else f"{found.half_width:.4f}"
    return f"{found.mean:+.4f} ± {half}"


def _fate(one: TrialResult | None) -> str:
    if one is None or one.state == "complete":
        return ""
    return {"pruned": "ended early", "open": "not ended"}.get(one.state, f"failed: {one.why}")


def result_lines(
    plan: SweepPlan, space: Sequence[Axis], trials: Sequence[TrialResult], best_file: str
) -> Iterator[str]:
    """Yield what a sweep has found: failures, the best trial, and how to train with it.

    Args:
        plan: what it searches.
        space: its axes.
        trials: its trials, with their losses.
        best_file: path of the configuration with the best settings.
    """
    yield _counts(trials)
    for kind, count in failures(trials).items():
        yield f"failed: {fmt.plural(count, 'trial')} {FAILURES.get(kind, kind)}"
    best = best_of(plan.by, trials)
    if best is None:
        yield f"no trial has trained all steps with a finite {plan.by}, so none is the best"
        return
    yield f"best: trial {best.number}, {label(space, best.values)}, {plan.by} {best.score:.5g}"
    yield from _verdict(plan, space, trials, best)
    yield f"train its configuration with: fttui run {quote(best_file)}"


def _counts(trials: Sequence[TrialResult]) -> str:
    trained = [one for one in trials if not one.same_as]
    found = {
        "with all steps": sum(one.state == "complete" for one in trained),
        "ended early": sum(one.state == "pruned" for one in trained),
        "failed": sum(one.state == "failed" for one in trained),
        "not ended": sum(one.state == "open" for one in trained),
        "proposed again and not trained again": len(trials) - len(trained),
    }
    parts = ", ".join(f"{count} {what}" for what, count in found.items() if count)
    return f"{fmt.plural(len(trained), 'trial')}: {parts or 'none ended'}"


def _verdict(
    plan: SweepPlan, space: Sequence[Axis], trials: Sequence[TrialResult], best: TrialResult
) -> Iterator[str]:
    """Yield how sure it is that the best trial is better than the second one."""
    others = [o for o in ranked(plan.by, trials) if o.state == "complete" and o is not best]
    others = [one for one in others if not one.same_as]
    if not others:
        return
    if keys := unpaired_settings(axis.key for axis in space):
        yield (
            f"no interval: {', '.join(keys)} changes the batches or the loss, so that trials "
            "cannot be compared step by step"
        )
        return
    found = difference(space, best, others[0], len(others))
    if found is None or found.half_width == float("inf"):
        yield (
            "too few common steps to say whether chance explains the difference to the second; it "
            f"takes at least {2 * FEWEST_STEPS - 1} --steps"
        )
        return
    how = "does not explain" if found.beyond_chance else "explains"
    yield (
        f"against trial {others[0].number}: training loss on the same {found.steps} batches "
        f"{'lower' if found.mean > 0 else 'higher'} by {abs(found.mean):.4f} ± "
        f"{found.half_width:.4f} ({CONFIDENCE:.0%} for all pairs); chance {how} this difference"
    )
