"""A race in words: its plan and cost, its table, its verdict, and where it was interrupted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from shlex import quote
from typing import TYPE_CHECKING

from fttui.engine.protocol.command_kinds import lr_slip
from fttui.engine.protocol.data.messages import ReadingProgress
from fttui.engine.protocol.settings import LearningRate, RunSettings
from fttui.engine.protocol.usage.amounts import Price, Usage
from fttui.engine.protocol.usage.cost import spent_of
from fttui.engine.protocol.usage.tally import UsageTally

from ..text import format as fmt
from ..text.usage import energy_and_money, used_words
from ..view_model.race.race_state import CPU, LOSS, RaceState, mean_of_second_half
from ..view_model.race.request import PlannedRace
from ..view_model.race.rounds import Cost, Round, steps_of
from ..view_model.race.verdict import CONFIDENCE, FEWEST_STEPS, Difference

if TYPE_CHECKING:
    from ..view_model.app_state import AppState
    from ..view_model.run_view import RunView

_ERROR = "fttui: "
"""What the message of a command that failed begins with."""
_AFTERWARDS = {"go": "continues training", "pause": "stays paused", "stop": "stops"}
"""What a run does after a race, by the value of `--then`."""


def planned_lines(planned: PlannedRace) -> Iterator[str]:
    """Yield what a race will do, what it costs, and what a person should know before."""
    yield from plan_lines(planned.state, planned.run, planned.rate, planned.start, planned.keep)
    yield cost_line(planned.cost, planned.tally.price)
    if caution := budget_line(planned.cost, planned.used, planned.tally):
        yield caution
    yield from planned.notes


def plan_lines(
    state: RaceState, run: str, now: LearningRate, start: str, keep: str
) -> Iterator[str]:
    """Yield what a race will do.

    Args:
        state: the race, before it begins.
        run: the id of the run.
        now: the learning rate in force.
        start: where it starts, in words, such as `step 400`.
        keep: what the run continues with: `best`, `none` or the number of a variant.
    """
    plan = state.plan
    yield (
        f"race of {run} from {start}: {len(plan)} variants, compared by {state.by} after "
        f"{fmt.plural(state.steps, 'step')}"
    )
    settings = RunSettings(lr_scale=now.scale)
    for number, variant in enumerate(plan, 1):
        slips = [slip for c in variant.commands(settings) if (slip := lr_slip(c, now))]
        caution = f"   caution: {slips[0]}" if slips else ""
        yield f"  {number:>2}  {variant.label}{caution}"
    if len(state.rounds) > 1:
        yield f"rounds: {', '.join(_round_words(state.rounds))}"
    if state.devices:
        yield from _device_lines(state)
    kept = f"of {'the best variant' if keep == 'best' else f'variant {keep}'}"
    if keep == "none":
        kept = "from before the first variant"
    yield f"afterwards the run has the state and settings {kept}, and {_AFTERWARDS[state.then]}"


def _device_lines(state: RaceState) -> Iterator[str]:
    """Yield where the variants train, and what the run does meanwhile."""
    gpus = [one for one in state.devices if one != CPU]
    parts = [f"GPU {', '.join(gpus)}"] if gpus else []
    if on_cpu := len(state.devices) - len(gpus):
        parts.append("the processor" + (f" ({on_cpu} at a time)" if on_cpu > 1 else ""))
    yield f"side by side on {' and '.join(parts)}, each in an engine of its own"
    freed = ", with the memory of its GPU released" if gpus else ""
    yield f"the run is paused meanwhile{freed}; then it trains the steps of the best variant again"


def _round_words(rounds: Sequence[Round]) -> Iterator[str]:
    for number, one in enumerate(rounds):
        who = f"all {one.entrants}" if number == 0 else f"the best {one.entrants}"
        yield f"{who} to step +{one.steps}"


def cost_line(cost: Cost, price: Price | None = None) -> str:
    """Return what a race costs, as one line; `price` is that of the run."""
    took = "time unknown, because the run has measured no step yet"
    if cost.seconds is not None:
        took = f"about {fmt.duration(cost.seconds)}, estimated from this run"
        if cost.not_measured:
            took += f" (without {' and '.join(cost.not_measured)}, which are not measured yet)"
    if cost.used is not None:
        took = ", ".join([took, *energy_and_money(cost.used, price)])
    disk = f", {fmt.size(cost.bytes)}" if cost.bytes is not None else ""
    kept = f"{fmt.plural(cost.checkpoints, 'pinned checkpoint')}{disk}"
    return f"cost: {fmt.plural(cost.steps, 'step')}, {took}; {kept}"


def budget_line(cost: Cost, used: Usage, tally: UsageTally) -> str:
    """Return a caution if the run has a budget that the race will use up; empty if it has not.

    Args:
        cost: the cost of the race.
        used: what the run has used.
        tally: its prices and its budget.
    """
    if cost.used is None:
        return ""
    after = used.plus(cost.used)
    over = [s for s in spent_of(after, tally.price, tally.budget) if s.share >= 1]
    if not over:
        return ""
    return (
        f"caution: the race will use up the budget ({over[0].key}: about {over[0].words} after "
        "it), so the run will stop before the race ends"
    )


def table_lines(state: RaceState) -> Iterator[str]:
    """Yield the results of the variants as a table, the best one first."""
    head = (
        "#",
        "variant",
        "steps",
        *((state.by,) if state.by != LOSS else ()),
        "loss",
        "against best",
    )
    rows = [head, *(_row(state, place, n) for place, n in enumerate(state.ranking, 1))]
    widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
    for row, n in zip(rows, [None, *state.ranking], strict=True):
        cells = (c.ljust(w) if at == 1 else c.rjust(w) for at, (c, w) in enumerate(
            zip(row, widths, strict=True)))  # fmt: skip
        yield f"  {'  '.join(cells)}  {_fate(state, n)}".rstrip()


def _row(state: RaceState, place: int, index: int) -> tuple[str, ...]:
    one, best = state.variants[index], state.best
    score = (fmt.number(one.score),) if state.by != LOSS else ()
    against = "–"
    if best is not None and index != best:
        against = _against(state.against(best, index))
    loss = fmt.number(mean_of_second_half(one.losses))
    trained = str(one.step - state.base_step)
    return str(place), state.plan[index].label, trained, *score, loss, against


def _against(found: Difference | None) -> str:
    if found is None:
        return "–"
    if not math.isfinite(found.half_width):
        return f"{found.mean:+.4f} ± ?"
    return f"{found.mean:+.4f} ± {found.half_width:.4f}"


def _fate(state: RaceState, index: int | None) -> str:
    if index is None:
        return ""
    one = state.variants[index]
    parts = [one.failed] if one.failed else []
    parts += ["ended early"] if one.beaten else []
    parts += ["kept"] if state.ended and state.kept == index else []
    parts += [f"loss not finite in {fmt.plural(one.not_finite, 'step')}"] if one.not_finite else []
    parts += [f"changed during the race: {remark}" for remark in one.remarks]
    return "; ".join(parts)


def verdict_lines(state: RaceState) -> Iterator[str]:
    """Yield which variant is best, by how much, and whether chance explains the difference."""
    best = state.best
    if best is None:
        yield f"no variant has a finite {state.by}, so none is the best"
        return
    first, label = state.variants[best], state.plan[best].label
    yield f"best: {label}, {state.by} {fmt.number(first.score)}"
    others = [n for n in state.ranking if n != best and not state.variants[n].failed]
    if not others:
        return
    yield _verdict(state, best, others[0])
    if remarks := sum(len(state.variants[n].remarks) for n in (best, others[0])):
        yield f"caution: {fmt.plural(remarks, 'change')} by others during the race disturbed it"


def _verdict(state: RaceState, best: int, second: int) -> str:
    found, label = state.against(best, second), state.plan[second].label
    if found is None or not math.isfinite(found.half_width):
        return (
            f"against {label}: too few common steps to say whether the difference is chance; "
            f"race for at least {2 * FEWEST_STEPS - 1} --steps"
        )
    level = f"{CONFIDENCE:.0%}" if len(state.variants) == 2 else f"{CONFIDENCE:.0%} for all pairs"
    measured = (
        f"against {label}: training loss on the same {found.steps} batches "
        f"{'lower' if found.mean > 0 else 'higher'} by {abs(found.mean):.4f} ± "
        f"{found.half_width:.4f} ({level})"
    )
    if not found.beyond_chance:
        return f"{measured}; this difference may be chance, and more --steps may decide it"
    if found.mean < 0:
        return f"{measured}, which contradicts {state.by}; look at both before you decide"
    return f"{measured}; chance does not explain this difference"


def place_line(state: RaceState) -> str:
    """Return where a race that has not ended was interrupted."""
    done = sum(one.rounds > 0 for one in state.variants)
    if state.running is None:
        return f"after {done} of {fmt.plural(len(state.variants), 'variant')}"
    label = state.plan[state.running].label
    return f"in variant {state.running + 1} of {len(state.variants)} ({label})"


def unfinished_lines(state: RaceState, run: str) -> Iterator[str]:
    """Yield that a race of a run has not ended, where it was, and the two ways out."""
    where = "the settings of that variant are in force"
    if state.devices and state.running is None:
        where = "the run is paused at its start, with the settings before it"
    yield (
        f"a race of {run} ({' '.join(state.words)}) was interrupted {place_line(state)}; {where}"
    )
    yield f"resume it: fttui race {quote(run)} --resume"
    yield f"return the run to its state before the race: fttui race {quote(run)} --cancel"


def progress_of(
    state: RaceState, index: int, step: int, target: int, loss: float | None
) -> ReadingProgress:
    """Return how far a variant is in its round."""
    begun = max(state.variants[index].step, state.base_step)
    name = f"{index + 1}/{len(state.variants)} {state.plan[index].label}"
    label = f"{name}  step {step - begun}/{target - begun}  loss {fmt.number(loss)} "
    return ReadingProgress(label=label, done=step - begun, total=target - begun)


def side_progress(state: RaceState, index: int, step: int, target: int) -> ReadingProgress:
    """Return how far the variants are that train side by side.

    Args:
        state: the race.
        index: the variant that has trained a step just now.
        step: that step.
        target: the last step of the round.
    """
    if state.running is not None:
        label = f"the run trains {state.plan[index].label} again  step {step - state.base_step} "
        total = target - state.base_step
        return ReadingProgress(label=label, done=step - state.base_step, total=total)
    training = [(n, one.at) for n, one in enumerate(state.variants) if one.at is not None]
    parts = [f"{n + 1} on {state.variants[n].device} +{at - state.base_step}" for n, at in training]
    done = sum(at - state.base_step for _, at in training)
    total = len(training) * (target - state.base_step)
    label = f"of {len(state.variants)} variants: {', '.join(parts)} "
    return ReadingProgress(label=label, done=done, total=total)


def side_lines(state: RaceState, price: Price | None = None) -> Iterator[str]:
    """Yield what training on several devices adds to the results; nothing without them.

    Args:
        state: the race, after its end.
        price: that of the run.
    """
    if state.repeated_gap is not None and state.kept is not None:
        one = state.variants[state.kept]
        steps = fmt.plural(one.step - state.base_step, "step")
        device = one.device
        if state.repeated_gap == 0:
            yield f"the run trained its {steps} again: every loss is that on {device}, bit by bit"
        else:
            yield (
                f"the run trained its {steps} again: losses and metric differ by up to "
                f"{state.repeated_gap:.2g} from those on {device}; other devices and other "
                "numbers of threads round differently"
            )
    if state.side_usage.seconds:
        used = used_words(state.side_usage, price)
        yield f"beside the run: {used}, which its meter and its budget do not count"


def gone_on_line(state: RaceState) -> str:
    """Return what the run does after a race, as one line."""
    doing = {"go": "continues training", "pause": "is paused", "stop": "was stopped"}[state.then]
    if state.kept is None:
        return f"the run {doing} from step {state.base_step}, with its settings before the race"
    one = state.variants[state.kept]
    return f"the run {doing} with {state.plan[state.kept].label}, from step {one.step}"


def page_lines(
    race: RaceState | None,
    state: AppState,
    conducted: bool,
    step_s: float | None,
    said: Sequence[str],
    *,
    key: str = "",
) -> Iterator[str]:
    """Yield a race as the app shows it: progress, table and verdict, or why there is none.

    Args:
        race: the race; None before it has begun, and without one.
        state: the state of the run.
        conducted: whether a process conducts it now.
        step_s: seconds of a step; None before the first one.
        said: the last lines of the process that conducted it.
        key: the key that resumes an interrupted race or cancels it; empty if only commands do.
    """
    errors = [line for line in said if line.startswith(_ERROR)]
    if race is None or not race.variants:
        nothing = errors or ["no race of this run yet"]
        yield from ["the race begins …"] if conducted else nothing
        return
    count = fmt.plural(len(race.variants), "variant")
    yield (
        f"race {' '.join(race.words)} from step {race.base_step}: {count}, compared by {race.by}"
    )
    if race.ended and not conducted:
        yield "this race has ended; no race is running"
    yield from [] if race.ended else _present(race, state.run, conducted, step_s)
    yield ""
    yield from table_lines(race)
    yield ""
    if race.ended:
        yield from verdict_lines(race)
        yield gone_on_line(race)
        yield from side_lines(race)
    elif not conducted:
        ways = list(unfinished_lines(race, state.run_id))
        if key:
            ways[1:] = [f"{key} resumes it, or returns the run to its state before the race"]
        yield from errors or ways


def _present_beside(race: RaceState) -> Iterator[str]:
    """Yield what is left of a race on several devices, besides the variants that train now."""
    longest = race.rounds[-1].steps
    again = f"{fmt.plural(longest, 'step')} of the best variant in the run"
    if race.running is not None:
        yield f"now: the run trains the steps of {race.plan[race.running].label} again"
        return
    if not any(one.rounds or one.at is not None for one in race.variants):
        yield "now: an engine starts on each device"
    done = sum(max(one.at or 0, one.step) - race.base_step for one in race.variants)
    left = max(0, steps_of(race.rounds) - done)
    yield f"left: at most {fmt.plural(left, 'step')} on the devices, then {again}"


def _present(race: RaceState, run: RunView, conducted: bool, step_s: float | None) -> Iterator[str]:
    """Yield which variants train, how far they are, and what is left.

    The race and the run are read separately, so one can be ahead of the other, for long without a
    connection. A step on another timeline than that of the present variant says nothing about it.
    """
    for n, variant in enumerate(race.variants):
        if conducted and variant.at is not None:
            target = race.rounds[min(variant.rounds, len(race.rounds) - 1)].steps
            yield (
                f"now: variant {n + 1}, {race.plan[n].label}, on {variant.device}: step "
                f"{variant.at - race.base_step} of {target}"
            )
    if not conducted:
        return
    if race.devices:
        yield from _present_beside(race)
        return
    if race.running is None:
        return
    one = race.variants[race.running]
    begun = max(one.step, race.base_step)
    begins = len(one.timelines) <= one.rounds or one.timelines[-1] != run.timeline
    trained = 0 if begins else max(0, run.step - begun)
    target = race.base_step + race.rounds[min(one.rounds, len(race.rounds) - 1)].steps
    steps = max(trained, target - begun)
    part = f"step {trained} of {steps}" if trained else f"begins {fmt.plural(steps, 'step')}"
    part += " in this round"
    yield f"now: variant {race.running + 1}, {race.plan[race.running].label}: {part}"
    done = sum(max(0, v.step - race.base_step) for v in race.variants) + trained
    left = max(0, steps_of(race.rounds) - done)
    took = "" if step_s is None else f", about {fmt.duration(left * step_s)} and evaluations"
    yield f"left: at most {fmt.plural(left, 'step')}{took}"
