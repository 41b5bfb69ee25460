"""Plan a race from the files of its run: metric, start, room and cost."""

from __future__ import annotations

from contextlib import suppress

from fttui.engine.errors import ConfigError, FttuiError
from fttui.engine.protocol.events import EvalFinished, RunStarted
from fttui.engine.protocol.states import RunState
from fttui.engine.run.checkpoint_store import CheckpointStore, Manifest
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.run.run_index import known_ends, learning_rate, read_ends, summarize

from ...view_model.race.race_state import CPU, EVAL, LOSS, RaceState
from ...view_model.race.request import PlannedRace, RaceRequest
from ...view_model.race.rounds import Cost, MeasuredTimes, cost_of, cost_side_by_side
from .devices import parse_devices, require_present
from .measured import measured_times, rate_at

_STOPS_EARLY = (
    "caution: train.early_stop counts the evaluations of the race and may end the run in it"
)


def plan_race(run: RunDirectory, wanted: RaceRequest) -> PlannedRace:
    """Return the plan of a race on a run, live or ended.

    Raises:
        ConfigError: a number, a name or a setting is not valid, the run cannot have the metric, or
            has too few steps left.
        CheckpointError: there is no such checkpoint.
    """
    by, why = (wanted.by, "") if wanted.by else _default_metric(run)
    state = RaceState(words=list(wanted.words), steps=wanted.steps, by=by, halving=wanted.halving,
                      keep=wanted.keep)  # fmt: skip
    state.devices = _devices(run, wanted.devices)
    require_sound(state, wanted.keep)
    _require_metric(run, by)
    before = summarize(run)
    held = before.state is RunState.PAUSED
    state.then = wanted.then or ("pause" if held else "go")
    checkpoint = _start(run, wanted.checkpoint, before.state)
    start = checkpoint.step if checkpoint else None
    _require_room(run, start if start is not None else before.step, state)
    times = measured_times(run, starts=before.state.ended or bool(state.devices))
    known = known_ends(run)
    notes = [why] if why else []
    notes += [_STOPS_EARLY] if _stops_early(run) else []
    return PlannedRace(
        state=state,
        run=run.id,
        checkpoint=checkpoint.name if checkpoint else None,
        start=f"step {start}" if start is not None else f"the present step (now {before.step})",
        rate=rate_at(run, checkpoint) if checkpoint else learning_rate(run),
        keep=wanted.keep,
        cost=_cost(state, times, started=before.state.ended),
        used=known.used,
        tally=known.tally,
        notes=tuple(notes),
    )


def _devices(run: RunDirectory, text: str | None) -> list[str]:
    """Return the devices in words such as `0,1`; empty without words.

    Raises:
        ConfigError: they are not valid or not there, or the run cannot train elsewhere.
    """
    from fttui.engine.config.load import read_resolved

    if text is None:
        return []
    require_present(found := parse_devices(text, 1, "variant"))
    if run.identity().script:
        raise ConfigError(
            f"--devices {text}: {run.id} is the run of a script, which only that script can train; "
            "leave out --devices, so that the variants train one after another"
        )
    train = read_resolved(run.config).train
    parse_devices(text, train.devices * train.nodes, "variant")
    return list(found)


def _cost(state: RaceState, times: MeasuredTimes, *, started: bool) -> Cost:
    """Return the cost; `started` is whether the engine of the run has to be started, too."""
    evaluates = state.by != LOSS
    if not state.devices:
        return cost_of(state.rounds, times, evaluates=evaluates)
    gpus = [one for one in state.devices if one != CPU]
    at_once = len(gpus) + (len(gpus) < len(state.devices))
    return cost_side_by_side(
        state.rounds, times, len(state.devices), at_once, evaluates=evaluates, started=started
    )


def require_sound(state: RaceState, keep: str) -> None:
    """Check the numbers and names of a race.

    Raises:
        ConfigError: one of them is not valid.
    """
    count = len(state.plan)
    if state.steps < 1:
        raise ConfigError(f"--steps must be a whole number ≥ 1, got {state.steps}")
    if state.by != LOSS and not state.by.startswith(EVAL):
        raise ConfigError(f"--by must be loss or eval.NAME, such as eval.loss; got {state.by}")
    if keep not in ("best", "none") and not (keep.isdecimal() and 1 <= int(keep) <= count):
        raise ConfigError(f"--keep must be best, none, or a variant from 1 to {count}; got {keep}")


def _default_metric(run: RunDirectory) -> tuple[str, str]:
    """Return the metric without `--by`, and why it is the training loss; empty if it is not.

    It is the evaluation loss, unless no evaluation data are known.
    """
    evaluates = _can_evaluate(run)
    if evaluates or _evaluated(run):
        return f"{EVAL}loss", ""
    unknown = f"the configuration of {run.id} does not say whether it has evaluation data"
    why = f"{run.id} has no evaluation data" if evaluates is False else unknown
    return LOSS, f"note: compared by the training loss, because {why}; choose another with --by"


def _can_evaluate(run: RunDirectory) -> bool | None:
    """Whether a run has evaluation data; None if its configuration cannot be read."""
    from fttui.engine.config.load import read_resolved

    with suppress(FttuiError):
        data = read_resolved(run.config).data
        return bool(data.eval or data.eval_fraction)
    return None


def _require_metric(run: RunDirectory, by: str) -> None:
    """Check that evaluations of a run have a metric, as far as its configuration and journal show.

    Raises:
        ConfigError: they do not have it.
    """
    if by == LOSS:
        return
    names = _evaluated(run)
    # The configuration of a script's run does not say whether the script has evaluation data.
    if not names and _can_evaluate(run) is False and not run.identity().script:
        raise ConfigError(
            f"--by {by}: {run.id} has no evaluation data; compare the training loss: --by {LOSS}"
        )
    if names and by.removeprefix(EVAL) not in names:
        known = ", ".join(f"{EVAL}{name}" for name in sorted(names))
        raise ConfigError(f"--by {by}: the evaluations of {run.id} have {known}; name one of them")


def _evaluated(run: RunDirectory) -> set[str]:
    """Return the metrics of the evaluations that the ends of a run's journal have."""
    events = (record.event for record in read_ends(run.journal))
    return {name for e in events if isinstance(e, EvalFinished) for name in e.metrics}


def _stops_early(run: RunDirectory) -> bool:
    """Whether the configuration of a run has early stopping."""
    from fttui.engine.config.load import read_resolved

    with suppress(FttuiError):
        return read_resolved(run.config).train.early_stop is not None
    return False


def _start(run: RunDirectory, step: str | None, state: RunState) -> Manifest | None:
    """Return the checkpoint to start from; None for the present state.

    Raises:
        CheckpointError: there is no such checkpoint.
    """
    if step is None and not state.ended:
        return None
    return CheckpointStore(run).find(step or "last")


def _require_room(run: RunDirectory, start: int, state: RaceState) -> None:
    """Check that the run has more steps left than a variant trains.

    Raises:
        ConfigError: it has not.
    """
    started = [r.event for r in read_ends(run.journal) if isinstance(r.event, RunStarted)]
    total = max((event.total_steps for event in started), default=0)
    left = total - start
    if total and state.steps >= left:
        fewer = f"give --steps {left - 1} or fewer, or " if left > 1 else ""
        raise ConfigError(
            f"{run.id} has {max(0, left)} steps left after step {start} of {total}; a race needs "
            f"more steps than the {state.steps} of a variant, because a run ends with its last "
            f"step; {fewer}{_earlier(run, total)}"
        )


def _earlier(run: RunDirectory, total: int) -> str:
    """Return how to start a race from an earlier checkpoint, with the steps that there are."""
    steps = sorted({manifest.step for manifest in CheckpointStore(run).all()} - {total})
    listed = ", ".join(map(str, steps)) or "none"
    return f"start from an earlier checkpoint with {run.id}@STEP (there are: {listed})"
