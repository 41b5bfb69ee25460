"""`race`: try settings on a run from one exact checkpoint, and go on with the best."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from fttui.engine.errors import CheckpointError, CommandRejected, ConfigError, FttuiError
from fttui.engine.protocol.commands import Pause
from fttui.engine.protocol.events import EvalFinished, RunStarted
from fttui.engine.protocol.states import RunState
from fttui.engine.run.checkpoint_store import CheckpointStore
from fttui.engine.run.processes.marks import read_engine
from fttui.engine.run.run_dir import RunDirectory, runs_root
from fttui.engine.run.run_index import find_run, known_ends, learning_rate, read_ends, summarize

from ...view_model.race.race_state import EVAL, LOSS, RaceState
from ...view_model.race.rounds import cost_of
from ..cluster.place import Cluster
from ..control import require_engine
from ..data_check.process import ProgressLine
from ..options import Commands, add_accept_changed, add_runs_dir, add_trust_code, name_and_step, say
from .measured import measured_times
from .race_file import read_race, store_race
from .race_text import (
    budget_line,
    cost_line,
    place_line,
    plan_lines,
    progress_of,
    table_lines,
    unfinished_lines,
    verdict_lines,
)

if TYPE_CHECKING:
    from .conduct import Race
    from .run_driver import RunDriver, TrainedSteps

_ENGINE_STARTS_IN_S = 180.0


def add_commands(commands: Commands) -> None:
    """Register the subcommand `race` of `fttui`."""
    parser = commands.add_parser(
        "race",
        help="try settings on a run from one checkpoint, and go on with the best",
        usage="fttui race [OPTIONS] RUN[@STEP] lr=V,… clip=V,…",
    )
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="RUN[@STEP] SETTING=V,…",
        help="the run, live or ended, and the values to try: lr=1e-4,x0.5,now clip=0.5,p90,off",
    )
    parser.add_argument(
        "--steps", type=int, default=100, metavar="N", help="steps of a variant (default: 100)"
    )
    parser.add_argument(
        "--by",
        metavar="METRIC",
        help="the metric that decides: eval.loss or another one of the evaluation, or loss, the "
        "training loss (default: eval.loss, or loss without evaluation data)",
    )
    parser.add_argument(
        "--no-halving", action="store_true", help="train every variant for all --steps"
    )
    parser.add_argument(
        "--keep",
        default="best",
        metavar="WHICH",
        help="what the run goes on with: best (default), the number of a variant, or none",
    )
    parser.add_argument(
        "--then",
        choices=("go", "pause", "stop"),
        help="what the run does afterwards; default: go, or pause if it was paused before",
    )
    parser.add_argument("--yes", action="store_true", help="begin without a question")
    parser.add_argument("--go-on", action="store_true", help="go on with an interrupted race")
    parser.add_argument(
        "--cancel",
        action="store_true",
        help="end an interrupted race: back to its start, with the settings before it",
    )
    parser.add_argument("--take", action="store_true", help="take control from whoever has it")
    add_runs_dir(parser)
    add_accept_changed(parser)
    add_trust_code(parser)
    parser.set_defaults(handler=_race)


def _race(options: argparse.Namespace) -> int:
    name, settings = _split(options.settings)
    wanted, step = name_and_step(name) if name else (None, None)
    run = find_run(runs_root(options.runs_dir), wanted)
    known = read_race(run)
    unfinished = known is not None and not known.ended
    if options.go_on or options.cancel:
        if known is None or not unfinished:
            raise ConfigError(f"{run.id} has no race that was interrupted")
        return _finish(run, known, options)
    if known is not None and unfinished:
        raise FttuiError("\n".join(unfinished_lines(known, run.id)))
    if not settings:
        return _show(run, known)
    return _begin(run, step, settings, options)


def _split(words: list[str]) -> tuple[str | None, list[str]]:
    """Return the name of the run, None without one, and the settings."""
    named = bool(words) and "=" not in words[0]
    if named and ":" in words[0]:
        raise ConfigError(f"got {words[0]}; a race is started on the machine of its run")
    return (words[0], words[1:]) if named else (None, words)


def _show(run: RunDirectory, known: RaceState | None) -> int:
    """Print the results of the newest race.

    Raises:
        ConfigError: there was none.
    """
    if known is None:
        raise ConfigError(
            f"no settings to try on {run.id}; for example: fttui race {run.id} lr=1e-4,2e-4"
        )
    for line in (*table_lines(known), *verdict_lines(known)):
        say(line)
    return 0


def _begin(
    run: RunDirectory, step: str | None, settings: list[str], options: argparse.Namespace
) -> int:
    by, why = (options.by, "") if options.by else _default_metric(run)
    state = RaceState(words=settings, steps=options.steps, by=by, halving=not options.no_halving)
    _require_sound(state, options)
    _require_metric(run, state.by)
    before = summarize(run)
    held = before.state is RunState.PAUSED
    state.then = options.then or ("pause" if held else "go")
    checkpoint, start = _start(run, step, before.state)
    _require_room(run, start if start is not None else before.step, state)
    where = f"step {start}" if start is not None else f"the present step (now {before.step})"
    for line in plan_lines(state, run.id, learning_rate(run), where, options.keep):
        say(line)
    if why:
        say(why)
    cost = cost_of(
        state.rounds,
        measured_times(run, starts=before.state.ended),
        evaluates=state.by != LOSS,
    )
    known = known_ends(run)
    say(cost_line(cost, known.tally.price))
    if caution := budget_line(cost, known.used, known.tally):
        say(caution)
    if _stops_early(run):
        say(
            "caution: train.early_stop counts the evaluations of the race and may end the run in it"
        )
    if not options.yes and not _confirmed():
        say("nothing was changed")
        return 0
    driver = _driver(run, checkpoint or "last", options)
    race = _conductor(run, state, driver)
    try:
        race.prepare(checkpoint)
    except CommandRejected as refused:
        raise CommandRejected(f"{refused}; the race did not begin") from None
    return _conduct(run, state, race, options)


def _require_sound(state: RaceState, options: argparse.Namespace) -> None:
    """Check the numbers and names of the command line.

    Raises:
        ConfigError: one of them is not valid.
    """
    count = len(state.plan)
    if options.steps < 1:
        raise ConfigError(f"--steps must be a whole number ≥ 1, got {options.steps}")
    if state.by != LOSS and not state.by.startswith(EVAL):
        raise ConfigError(f"--by must be loss or eval.NAME, such as eval.loss; got {state.by}")
    keep = options.keep
    if keep not in ("best", "none") and not (keep.isdecimal() and 1 <= int(keep) <= count):
        raise ConfigError(f"--keep must be best, none, or a variant from 1 to {count}; got {keep}")


def _default_metric(run: RunDirectory) -> tuple[str, str]:
    """Return the metric without `--by`, and why it is the training loss; empty if it is not.

    It is the evaluation loss, unless no evaluation data are known.
    """
    evaluates = _can_evaluate(run)
    if evaluates or _evaluated(run):
        return f"{EVAL}loss", ""
    unknown = f"the configuration of {run.id} does not tell whether it has evaluation data"
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
    """Check that evaluations of a run have a metric, as far as its configuration and journal tell.

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


def _start(run: RunDirectory, step: str | None, state: RunState) -> tuple[str | None, int | None]:
    """Return the checkpoint to start from and its step; None and None for the present state.

    Raises:
        CheckpointError: there is no such checkpoint.
    """
    if step is None and not state.ended:
        return None, None
    manifest = CheckpointStore(run).find(step or "last")
    return manifest.name, manifest.step


def _require_room(run: RunDirectory, start: int, state: RaceState) -> None:
    """Check that the run has more steps left than a variant trains.

    Raises:
        ConfigError: it has not.
    """
    started = [r.event for r in read_ends(run.journal) if isinstance(r.event, RunStarted)]
    total = max((event.total_steps for event in started), default=0)
    left = total - start
    if total and state.steps >= left:
        raise ConfigError(
            f"{run.id} has {max(0, left)} steps left after step {start} of {total}, and each "
            f"variant would train {state.steps}; give fewer --steps, or {_earlier(run, total)}"
        )


def _earlier(run: RunDirectory, total: int) -> str:
    """Return how to start a race from an earlier checkpoint, with the steps that there are."""
    steps = sorted({manifest.step for manifest in CheckpointStore(run).all()} - {total})
    listed = ", ".join(map(str, steps)) or "none"
    return f"start from an earlier checkpoint with {run.id}@STEP (there are: {listed})"


def _confirmed() -> bool:
    """Ask whether to begin.

    Raises:
        ConfigError: nobody can be asked.
    """
    if not sys.stdin.isatty():
        raise ConfigError("a race changes the run; to begin it without a question, add --yes")
    return input("begin? [y/N] ").strip().lower() in ("y", "yes")


def _driver(run: RunDirectory, checkpoint: str, options: argparse.Namespace) -> RunDriver:
    """Return what drives the run; an ended run is resumed first, paused.

    Raises:
        FttuiError: it cannot be resumed, or belongs to another user or machine.
    """
    from ..preflight.training_packages import require_training_packages
    from ..run import resumed
    from .run_driver import RunDriver

    if (engine := read_engine(run)) is not None and engine.alive:
        require_engine(run)
        return RunDriver(run, take=options.take)
    require_training_packages("fttui race")
    say(f"resuming {run.id}, paused")
    as_run = argparse.Namespace(
        resume=f"{run.path}@{checkpoint}",
        config=None,
        overrides=[],
        name=None,
        max_steps=None,
        devices=None,
        runs_dir=options.runs_dir,
        accept_changed=options.accept_changed,
        trust_code=options.trust_code,
    )
    started = resumed(as_run, Cluster(), paused=True)
    started.wait_until_served(_ENGINE_STARTS_IN_S)
    driver = RunDriver(run, take=options.take, offset=started.journal_offset)
    driver.wait_until_ready()
    return driver


def _conductor(run: RunDirectory, state: RaceState, driver: RunDriver) -> Race:
    from .conduct import Race, Telling

    progress, finished = _tellers(state)
    return Race(state, driver, Telling(lambda: store_race(run, state), progress, finished))


def _tellers(
    state: RaceState,
) -> tuple[Callable[[int, TrainedSteps, int], None], Callable[[int], None]]:
    """Return the functions that print progress, and the result of a variant after a round."""
    line = ProgressLine(sys.stdout)

    def progress(index: int, found: TrainedSteps, target: int) -> None:
        line.show(progress_of(state, index, found.step, target, found.losses.get(found.step)))

    def finished(index: int) -> None:
        line.clear()
        one = state.variants[index]
        result = (
            one.failed or f"{state.by} {one.score if one.score is None else f'{one.score:.4f}'}"
        )
        trained = one.step - state.base_step
        say(f"variant {index + 1}: {state.plan[index].label}, {trained} steps: {result}")

    return progress, finished


def _conduct(run: RunDirectory, state: RaceState, race: Race, options: argparse.Namespace) -> int:
    """Train the variants, print table and verdict, and put the run on its way again."""
    try:
        race.run()
        kept = _kept(state, options)
        race.go_on(kept)
    except KeyboardInterrupt:
        with suppress(FttuiError, KeyboardInterrupt):
            race.hold()
        say("")
        for line in unfinished_lines(state, run.id):
            say(line)
        raise
    except FttuiError as error:
        where = place_line(state)
        lines = "\n".join(unfinished_lines(state, run.id))
        error.args = (f"{error} {where} of a race\n{lines}",)
        raise
    for line in (*table_lines(state), *verdict_lines(state), _gone_on(state)):
        say(line)
    return 0


def _kept(state: RaceState, options: argparse.Namespace) -> int | None:
    """Return the index of the variant that the run goes on with; None to go back.

    Raises:
        CheckpointError: the wanted variant has no checkpoint.
    """
    if options.keep == "none":
        return None
    if options.keep == "best":
        return state.best
    wanted = int(options.keep) - 1
    if not state.variants[wanted].checkpoint:
        raise CheckpointError(f"variant {options.keep} has no checkpoint to go on from")
    return wanted


def _gone_on(state: RaceState) -> str:
    doing = {"go": "trains on", "pause": "is paused", "stop": "was stopped"}[state.then]
    if state.kept is None:
        return f"the run {doing} from step {state.base_step}, with its settings before the race"
    one = state.variants[state.kept]
    return f"the run {doing} with {state.plan[state.kept].label}, from step {one.step}"


def _finish(run: RunDirectory, state: RaceState, options: argparse.Namespace) -> int:
    """Go on with an interrupted race, or put the run back to before it."""
    _require_sound(state, argparse.Namespace(steps=state.steps, keep=options.keep))
    state.then = options.then or state.then
    driver = _driver(run, state.base, options)
    race = _conductor(run, state, driver)
    with suppress(CommandRejected):  # a halted run cannot be paused, and need not be
        driver.send(Pause(), "an interrupted race")
    if options.go_on:
        return _conduct(run, state, race, options)
    race.go_on(None)
    say(_gone_on(state))
    return 0
