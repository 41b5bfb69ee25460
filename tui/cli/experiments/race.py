"""`race`: compare settings from one exact checkpoint of a run, and continue with the best."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from fttui.engine.errors import CheckpointError, CommandRejected, ConfigError, FttuiError
from fttui.engine.protocol.commands import Pause
from fttui.engine.run.processes.marks import read_engine
from fttui.engine.run.run_dir import RunDirectory, runs_root
from fttui.engine.run.run_index import find_run, known_ends

from ...connection.race.planning import plan_race, require_sound
from ...connection.race.race_file import (
    changed_at,
    conducted_by,
    interrupt_race,
    race_lock,
    read_race,
    store_race,
)
from ...connection.race.race_process import RACE_LOG, last_words, start_race
from ...connection.race.race_source import follow_race
from ...connection.race.side_folder import remove_side_runs
from ...dialogs.race_text import (
    gone_on_line,
    place_line,
    planned_lines,
    progress_of,
    side_lines,
    table_lines,
    unfinished_lines,
    verdict_lines,
)
from ...view_model.race.race_state import RaceState
from ...view_model.race.request import AFTER, STEPS, RaceRequest
from ..cluster.place import Cluster
from ..control import require_engine
from ..data_check.process import ProgressLine
from ..options import (
    Commands,
    add_accept_changed,
    add_resume,
    add_runs_dir,
    add_trust_code,
    name_and_step,
    say,
    say_line,
)
from ..preflight.training_packages import require_training_packages

if TYPE_CHECKING:
    from .conduct import Race
    from .run_driver import RunDriver, TrainedSteps

_ENGINE_STARTS_IN_S = 180.0
_BEGINS_IN_S, _LOOK_S = 20.0, 0.1
"""Seconds in which a detached race has begun, and between two looks whether it has."""


def add_commands(commands: Commands) -> None:
    """Register the subcommand `race` of `fttui`."""
    parser = commands.add_parser(
        "race",
        help="compare settings from one checkpoint of a run, and continue with the best",
        usage="fttui race [OPTIONS] RUN[@STEP] lr=V,… clip=V,…",
    )
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="RUN[@STEP] SETTING=V,…",
        help="the run, live or ended, and the values to try: lr=1e-4,x0.5,now clip=0.5,p90,off",
    )
    parser.add_argument(
        "--steps", type=int, default=STEPS, metavar="N", help="steps per variant (default: 100)"
    )
    parser.add_argument(
        "--by",
        metavar="METRIC",
        help="the metric that ranks the variants: eval.loss or another evaluation metric, or "
        "loss, the training loss (default: eval.loss, or loss without evaluation data)",
    )
    parser.add_argument(
        "--no-halving", action="store_true", help="train every variant for all --steps"
    )
    parser.add_argument(
        "--keep",
        metavar="WHICH",
        help="variant that the run continues with: best (default; with --resume as chosen before), "
        "its number, or none",
    )
    parser.add_argument(
        "--then",
        choices=AFTER,
        help="what the run does afterwards; default: go, or pause if it was paused before; with "
        "--resume as chosen before",
    )
    parser.add_argument(
        "--devices",
        metavar="LIST",
        help="GPUs that train variants side by side, one variant on each, such as 0,1; cpu is a "
        "variant on the processor (default: one after another in the engine of the run)",
    )
    parser.add_argument("--yes", action="store_true", help="start without asking")
    add_resume(parser, "resume an interrupted race")
    parser.add_argument(
        "--cancel",
        action="store_true",
        help="end an interrupted race and return the run to its state and settings before it",
    )
    _add_detached(parser)
    parser.add_argument("--take", action="store_true", help="take control from whoever has it")
    add_runs_dir(parser)
    add_accept_changed(parser)
    add_trust_code(parser)
    parser.set_defaults(handler=_race)


def _add_detached(parser: argparse.ArgumentParser) -> None:
    """Add the options for a race that another process conducts."""
    parser.add_argument(
        "--detach",
        action="store_true",
        help="with --yes: run it in a process of its own, with its output in logs/race.log",
    )
    parser.add_argument(
        "--follow",
        action="store_true",
        help="print the state of the newest race as JSON lines until it ends",
    )
    parser.add_argument(
        "--interrupt", action="store_true", help="interrupt the race; it can be resumed"
    )


def _race(options: argparse.Namespace) -> int:
    name, settings = _split(options.settings)
    wanted, step = name_and_step(name) if name else (None, None)
    run = find_run(runs_root(options.runs_dir), wanted)
    if options.follow or options.interrupt or options.detach:
        return _beside(run, step, settings, options)
    written, known = changed_at(run), read_race(run)
    unfinished = known is not None and not known.ended
    if options.resume or options.cancel:
        if options.devices:
            raise ConfigError("--devices cannot change in a race that has begun; leave it out")
        if known is None or not unfinished:
            raise ConfigError(f"{run.id} has no race that was interrupted")
        return _finish(run, known, written, options)
    if conducted_by(run) is not None:
        raise FttuiError(f"another process is running a race of {run.id}; wait until it ends")
    if known is not None and unfinished:
        raise FttuiError("\n".join(unfinished_lines(known, run.id)))
    if not settings:
        return _show(run, known)
    return _begin(run, step, settings, written, options)


def _beside(
    run: RunDirectory, step: str | None, settings: list[str], options: argparse.Namespace
) -> int:
    """Follow or interrupt a race that another process conducts, or start such a process.

    Raises:
        FttuiError: there is no race to interrupt, or nobody has confirmed the race to start.
    """
    if options.interrupt:
        if not interrupt_race(run):
            raise FttuiError(f"no race of {run.id} is running")
        return 0
    if options.follow:
        for line in follow_race(run):
            say(line)
        return 0
    _start_detached(run, step, settings, options)
    return 0


def _start_detached(
    run: RunDirectory, step: str | None, settings: list[str], options: argparse.Namespace
) -> None:
    """Start a process that runs a race, and wait until it has begun.

    Raises:
        FttuiError: nobody has confirmed the race, another one is running or unfinished, or the
            process has ended with an error.
    """
    if not options.yes:
        raise ConfigError("got --detach without --yes; a detached race can ask nobody, add --yes")
    if not (settings or options.resume or options.cancel):
        raise ConfigError(f"no settings to try on {run.id}; for example: lr=1e-4,2e-4")
    process = start_race(run, step, _detached_arguments(step, settings, options))
    last = time.monotonic() + _BEGINS_IN_S
    while process.poll() is None and conducted_by(run) is None and time.monotonic() < last:
        time.sleep(_LOOK_S)
    if process.poll() is None and conducted_by(run) is None:
        say(f"the race has not begun within {_BEGINS_IN_S:g} s; look at {run.path}/{RACE_LOG}")
    elif process.poll() is None:
        say(f"the race runs in a process of its own; fttui race {run.id} --follow prints its state")
    if process.poll():
        said = "\n".join(last_words(run)).removeprefix("fttui: ")
        raise FttuiError(said or f"the race ended with exit code {process.returncode}")


def _detached_arguments(
    step: str | None, settings: list[str], options: argparse.Namespace
) -> list[str]:
    """Return the arguments, after the run, of a process that runs the same race."""
    given = [f"--{name}" for name in ("resume", "cancel", "take") if getattr(options, name)]
    given += [f"--accept-changed={options.accept_changed}"] if options.accept_changed else []
    given += [f"--trust-code={options.trust_code}"] if options.trust_code else []
    if not (options.resume or options.cancel):
        return [*_request(step, settings, options).arguments, "--yes", *given]
    chosen = {"--keep": options.keep, "--then": options.then}
    return [*given, *(word for name, value in chosen.items() if value for word in (name, value))]


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
    _say_results(run, known)
    return 0


def _say_results(run: RunDirectory, state: RaceState, *after: str) -> None:
    """Print table and verdict of a race, then further lines, and what training beside it adds."""
    for row in table_lines(state):
        say(row)
    price = known_ends(run).tally.price
    for line in (*verdict_lines(state), *after, *side_lines(state, price)):
        say_line(line)


def _begin(
    run: RunDirectory,
    step: str | None,
    settings: list[str],
    written: int | None,
    options: argparse.Namespace,
) -> int:
    planned = plan_race(run, _request(step, settings, options))
    state = planned.state
    for line in planned_lines(planned):
        say_line(line)
    if not options.yes and not _confirmed():
        say("nothing was changed")
        return 0
    with race_lock(run):
        _require_unchanged(run, written)
        remove_side_runs(run)
        driver = _driver(run, planned.checkpoint or "last", options)
        race = _conductor(run, state, driver)
        try:
            race.prepare(planned.checkpoint)
        except CommandRejected as refused:
            raise CommandRejected(f"{refused}; the race did not begin") from None
        return _conduct(run, state, race)


def _request(step: str | None, settings: list[str], options: argparse.Namespace) -> RaceRequest:
    return RaceRequest(
        words=tuple(settings),
        checkpoint=step,
        steps=options.steps,
        by=options.by,
        halving=not options.no_halving,
        keep=options.keep or "best",
        then=options.then,
        devices=options.devices,
    )


def _confirmed() -> bool:
    """Ask whether to begin.

    Raises:
        ConfigError: nobody can be asked.
    """
    if not sys.stdin.isatty():
        raise ConfigError("a race changes the run; to start it without asking, add --yes")
    return input("begin? [y/N] ").strip().lower() in ("y", "yes")


def _driver(run: RunDirectory, checkpoint: str, options: argparse.Namespace) -> RunDriver:
    """Return the driver of the run; an ended run is first resumed, paused.

    Raises:
        FttuiError: it cannot be resumed, or belongs to another user or machine.
    """
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
    if state.devices:
        from .side_by_side import race_on_devices

        require_training_packages("fttui race")
        return race_on_devices(run, state, driver, finished)
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


def _conduct(run: RunDirectory, state: RaceState, race: Race) -> int:
    """Train the variants, print table and verdict, and let the run continue."""
    if state.devices and any(map(state.waiting, range(len(state.rounds)))):
        say_line("an engine starts on each device; the variants train once the model is loaded")
    try:
        race.run()
        kept = _kept(state)
        race.go_on(kept)
        remove_side_runs(run)
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
    _say_results(run, state, gone_on_line(state))
    return 0


def _kept(state: RaceState) -> int | None:
    """Return the index of the variant that the run continues with; None to return to the start.

    Raises:
        CheckpointError: the wanted variant has no checkpoint.
    """
    if state.keep == "none":
        return None
    if state.keep == "best":
        return state.best
    wanted = int(state.keep) - 1
    if not state.variants[wanted].checkpoint:
        raise CheckpointError(f"variant {state.keep} has no checkpoint to continue from")
    return wanted


def _require_unchanged(run: RunDirectory, written: int | None) -> None:
    """Check, with the lock held, that no other process has begun or ended a race meanwhile.

    Raises:
        FttuiError: one has.
    """
    if changed_at(run) != written:
        raise FttuiError(
            f"another process has changed the race of {run.id} meanwhile; look at it with: "
            f"fttui race {run.id}"
        )


def _finish(
    run: RunDirectory, state: RaceState, written: int | None, options: argparse.Namespace
) -> int:
    """Resume an interrupted race, or return the run to its state before it."""
    state.keep = options.keep or state.keep
    state.then = options.then or state.then
    require_sound(state, state.keep)
    with race_lock(run):
        _require_unchanged(run, written)
        return _take_up(run, state, options)


def _take_up(run: RunDirectory, state: RaceState, options: argparse.Namespace) -> int:
    driver = _driver(run, state.base, options)
    race = _conductor(run, state, driver)
    with suppress(CommandRejected):  # a halted run cannot be paused, and need not be
        driver.send(Pause(), "an interrupted race")
    if options.resume:
        return _conduct(run, state, race)
    race.go_on(None)
    remove_side_runs(run)
    say(gone_on_line(state))
    return 0
