"""`sweep`: train many runs of a configuration with settings from a search space."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, get_args

import msgspec

from fttui.engine.errors import ConfigError, FttuiError, TrainingFailed
from fttui.engine.protocol.data.messages import ReadingProgress
from fttui.engine.run.records.record_feed import read_whole
from fttui.engine.run.run_dir import RunDirectory, require_runs_folder, runs_root

from ...connection.race.devices import parse_devices, require_present, threads_of
from ...text import format as fmt
from ...view_model.race.race_state import LOSS
from ...view_model.sweep.search_space import FORM, Axis, label, parse_space
from ...view_model.sweep.sweep_plan import Pruner, Sampler, SweepPlan, TrialResult, best_of
from ...view_model.sweep.trial_record import TrialRecord
from ..data_check.process import ProgressLine
from ..options import Commands, add_resume, add_runs_dir, say, say_line
from ..preflight.extras import require_package
from ..preflight.training_packages import require_training_packages
from .devices import OnDevice
from .prepare import make_plan, measured, require_valid, time_limit_s, trials_of, whole_only
from .sweep_folder import SweepFolder, find_sweep, new_sweep_folder
from .sweep_text import (
    broken_line,
    cost_line,
    plan_lines,
    rest_line,
    result_lines,
    table_lines,
    trial_line,
)

if TYPE_CHECKING:
    from .conduct import SweepTelling, TrialLoop, TrialStarter
    from .study import OpenTrial, Study


def add_commands(commands: Commands) -> None:
    """Register the subcommand `sweep` of `fttui`."""
    parser = commands.add_parser(
        "sweep",
        help="train many runs with settings from a search space, and find the best",
        usage="fttui sweep [OPTIONS] CONFIG KEY=V,… KEY=LOW..HIGH[:log|:STEP]\n"
        "       fttui sweep SWEEP [--resume]",
    )
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="CONFIG KEY=VALUES",
        help=f"a YAML file and the keys that vary: {FORM}; or the name of a sweep to show",
    )
    parser.add_argument("--trials", type=int, metavar="N", help="number of runs (default: 20)")
    parser.add_argument(
        "--steps", type=int, metavar="N", help="steps per trial (default: train.steps)"
    )
    parser.add_argument(
        "--by",
        metavar="METRIC",
        help="the metric that ranks the trials: eval.loss or another evaluation metric, or loss, "
        "the training loss (default: eval.loss, or loss without evaluation data)",
    )
    parser.add_argument(
        "--sampler", choices=get_args(Sampler), help="how settings are chosen (default: tpe)"
    )
    parser.add_argument(
        "--pruner",
        choices=get_args(Pruner),
        help="how bad trials are ended early (default: median)",
    )
    parser.add_argument(
        "--time-limit", metavar="T", help="stop after this time, such as 90m or 2h30m"
    )
    parser.add_argument(
        "--devices",
        metavar="LIST",
        help="GPUs that train trials side by side, one trial on each, such as 0,1; cpu is a trial "
        "on the processor (default: one trial after another)",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="seed of the sampler (default: 0)")
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="K=V",
        help="set a key for all trials",
    )
    add_resume(parser, "resume an interrupted sweep, or train more trials")
    parser.add_argument("--yes", action="store_true", help="start without asking")
    parser.add_argument("--force", action="store_true", help="start even if a run does not fit")
    add_runs_dir(parser)
    parser.set_defaults(handler=_sweep)


def _sweep(options: argparse.Namespace) -> int:
    limit_s = None if options.time_limit is None else time_limit_s(options.time_limit)
    first = options.settings[0] if options.settings else None
    new = first is not None and "=" not in first and Path(first).suffix in (".yaml", ".yml")
    _require_used(options, new)
    root = runs_root(options.runs_dir)
    require_runs_folder(root, writing=new)
    if new or options.resume:
        require_training_packages("fttui sweep")
    require_package("optuna", "fttui sweep", extra="sweep")
    if new:
        return _begin(root, Path(str(first)), options, limit_s)
    if first is not None and ("=" in first or options.settings[1:]):
        raise ConfigError(f"expected a YAML file before the settings, such as: my.yaml {FORM}")
    folder = find_sweep(root, first)
    plan = folder.plan()
    space = parse_space(plan.words, whole_only)
    if options.resume:
        return _go_on(root, folder, plan, space, options, limit_s)
    return _show(root, folder, plan, space)


def _require_used(options: argparse.Namespace, new: bool) -> None:
    """Refuse options that would not be used.

    Raises:
        ConfigError: results are only shown and an option is about training, or a new
            sweep is to be resumed.
    """
    if new and options.resume:
        raise ConfigError(
            "--resume takes the name of a sweep, but a YAML file starts a new one; leave one of "
            "them out"
        )
    if new or options.resume:
        return
    given = {"--trials": options.trials, "--time-limit": options.time_limit,
             "--devices": options.devices,
             "--yes": options.yes or None, "--force": options.force or None,
             **_fixed(options)}  # fmt: skip
    if names := [name for name, value in given.items() if value is not None]:
        raise ConfigError(
            f"{names[0]} has no effect without training; add --resume to train more trials, or "
            "leave it out"
        )


def _fixed(options: argparse.Namespace) -> dict[str, object]:
    """Return the options that cannot change in a resumed sweep; None for those not given."""
    return {"--steps": options.steps, "--by": options.by, "--sampler": options.sampler,
            "--pruner": options.pruner, "--seed": options.seed,
            "--set": options.overrides or None}  # fmt: skip


def _begin(root: Path, path: Path, options: argparse.Namespace, limit_s: float | None) -> int:
    """Check configuration, space and cost of a new sweep, and train its trials."""
    from fttui.engine.config.checks.budget import price_of
    from fttui.engine.config.load import load_config

    words = options.settings[1:]
    config = load_config(path, options.overrides).config
    space = parse_space(words, whole_only)
    require_valid(path, space, options.overrides)
    plan = make_plan(path, config, words, space, options)
    every_set = plan.by != LOSS and plan.every != config.eval.every
    more = [f"eval.every={plan.every}", "eval.per_epoch=null"] if every_set else []
    base = load_config(path, [*options.overrides, *more, "hub.idle_s=30"])
    count, devices = trials_of(plan, space), parse_devices(options.devices, config.train.devices)
    require_present(devices)
    for line in plan_lines(plan, space, count, every_set):
        say_line(line)
    if options.by is None and plan.by == LOSS:
        say_line(f"note: compared by the training loss, because {path} has no evaluation data")
    times, source = measured(root, path)
    at_once = max(1, min(len(devices), count))
    price = price_of(config)
    say_line(cost_line(plan, count, times, config.checkpoint.keep, source, price, at_once=at_once))
    if not options.yes and not _confirmed():
        say("nothing was started")
        return 0
    _require_data(base.resolved)
    own = load_config(path, options.overrides).resolved
    folder = new_sweep_folder(root, plan.name)
    try:
        folder.store(plan, base.resolved, own)
        say(f"sweep {folder.id} in {folder.path}")
        return _train(root, folder, plan, space, options, limit_s)
    except BaseException:  # also Ctrl-C
        if not _has_trials(folder, plan, space):
            folder.discard()
            say(f"no trial has begun, so {folder.path} is removed again")
        raise


def _has_trials(folder: SweepFolder, plan: SweepPlan, space: tuple[Axis, ...]) -> bool:
    """Whether a trial of a sweep has a run or a result; also if this cannot be read."""
    from .study import Study

    if not folder.study.exists():
        return False
    try:
        return any(one.run or one.state != "open" for one in Study(folder, plan, space).results())
    except (FttuiError, OSError):
        return True


def _require_data(resolved: str) -> None:
    """Check the data once for all trials.

    Raises:
        DataError: the data cannot be used.
    """
    from ..check import look_into_data

    look_into_data(resolved, say=say)


def _confirmed() -> bool:
    """Ask whether to begin.

    Raises:
        ConfigError: nobody can be asked.
    """
    if not sys.stdin.isatty():
        raise ConfigError("a sweep trains many runs; to start it without asking, add --yes")
    return input("begin? [y/N] ").strip().lower() in ("y", "yes")


def _go_on(
    root: Path,
    folder: SweepFolder,
    plan: SweepPlan,
    space: tuple[Axis, ...],
    options: argparse.Namespace,
    limit_s: float | None,
) -> int:
    """Resume a sweep, perhaps with another number of trials.

    Raises:
        ConfigError: an option would change what its trials are compared by, or the number of
            trials is not valid.
        FttuiError: another process trains its trials.
    """
    if given := [name for name, value in _fixed(options).items() if value is not None]:
        raise ConfigError(
            f"{given[0]} cannot change in an existing sweep; start a new sweep, or leave it out"
        )
    if options.trials is not None and options.trials < 1:
        raise ConfigError(f"--trials must be ≥ 1, got {options.trials}")
    if options.trials is not None:
        plan = msgspec.structs.replace(plan, trials=options.trials)
    return _train(root, folder, plan, space, options, limit_s)


def _show(root: Path, folder: SweepFolder, plan: SweepPlan, space: tuple[Axis, ...]) -> int:
    """Print the results of a sweep so far."""
    from .study import Study

    trials = _with_losses(root, Study(folder, plan, space).results())
    _say_results(folder, plan, space, trials)
    if sum(not one.same_as and one.state != "open" for one in trials) < trials_of(plan, space):
        say(f"resume with: fttui sweep {quote(folder.id)} --resume")
    return 0


def _say_results(
    folder: SweepFolder, plan: SweepPlan, space: tuple[Axis, ...], trials: list[TrialResult]
) -> None:
    for line in table_lines(plan, space, trials):
        say(line)
    for line in result_lines(plan, space, trials, str(folder.best)):
        say_line(line)


def _train(
    root: Path,
    folder: SweepFolder,
    plan: SweepPlan,
    space: tuple[Axis, ...],
    options: argparse.Namespace,
    limit_s: float | None,
) -> int:
    """Train the trials that are left, and print what was found."""
    from .conduct import TrialLoop
    from .study import Study
    from .trial_run import TrialRuns

    with folder.locked():
        if dropped := folder.drop_cut_line():
            say(f"note: the last {dropped:,} bytes of {folder.study} were cut off and are dropped")
        folder.store_plan(plan)  # only now, because another process may have held the lock
        study = Study(folder, plan, space)
        runs = TrialRuns(root, folder, options)
        devices = _devices(folder, options)
        threads = threads_of(devices, os.cpu_count() or 1) if devices else None
        starters: list[TrialStarter] = [OnDevice(runs, one, threads) for one in devices]
        starters = starters or [runs]
        telling = _telling(folder, plan, space, study, at_once=len(starters))
        sweep = TrialLoop(plan, space, study, starters, root, telling)
        deadline = None if limit_s is None else time.monotonic() + limit_s
        try:
            why = sweep.run(deadline)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                _interrupted(sweep)
            if _has_trials(folder, plan, space):
                say(f"resume with: fttui sweep {quote(folder.id)} --resume")
            raise
        trials = _with_losses(root, study.results())
    _say_results(folder, plan, space, trials)
    if why:
        say(f"ended early: {why}")
        say(f"resume with: fttui sweep {quote(folder.id)} --resume")
    if best_of(plan.by, trials) is None:
        raise TrainingFailed(f"{folder.id}: no trial has a result")
    return 0


def _devices(folder: SweepFolder, options: argparse.Namespace) -> tuple[str, ...]:
    """Return the devices that train trials side by side; empty without --devices.

    Raises:
        ConfigError: they are not valid, or not there.
    """
    from fttui.engine.config.load import load_config

    found = parse_devices(options.devices, load_config(folder.base).config.train.devices)
    require_present(found)
    return found


def _interrupted(sweep: TrialLoop) -> None:
    """Let the trials that train save and end."""
    from .trial_run import interrupt, wait_for_end

    say("")
    if runs := sweep.interrupted():
        names, it = ", ".join(run.id for run in runs), "it" if len(runs) == 1 else "them"
        say_line(f"saving and stopping {names}; press Ctrl-C again to let {it} continue training")
        with suppress(KeyboardInterrupt):
            for run in runs:
                interrupt(run)
            for run in runs:
                wait_for_end(run)


def _telling(
    folder: SweepFolder, plan: SweepPlan, space: tuple[Axis, ...], study: Study, *, at_once: int
) -> SweepTelling:
    """Return the functions that print progress, and each trial when it has ended."""
    from .conduct import SweepTelling

    line = ProgressLine(sys.stdout)
    total = trials_of(plan, space)
    steps: dict[int, int] = {}
    """The last step of each trial that trains now."""

    def progress(trial: OpenTrial, found: TrialRecord) -> None:
        steps[trial.number] = found.step
        newest = found.losses.get(found.step)
        loss = "" if newest is None else f", loss {fmt.number(newest)}"
        text = f"trial {trial.number} of {total}: {label(space, trial.values)}{loss}"
        if len(steps) > 1:
            each = ", ".join(f"{number} at step {step}" for number, step in sorted(steps.items()))
            text = f"trials {each}, of {total}"
        trained = sum(steps.values())
        line.show(ReadingProgress(label=text, done=trained, total=plan.steps * len(steps)))

    def finished(one: TrialResult, training: int) -> None:
        line.clear()
        steps.pop(one.number, None)
        trials = study.results()
        best = best_of(plan.by, trials)
        is_best = best is not None and best.number == one.number
        say(trial_line(plan, space, one, is_best))
        if is_best:
            folder.store_best(best_text(folder, plan, space, one))
        ended = [t for t in trials if t.state != "open"]
        if len(ended) == 1 and one.state == "complete" and total > 1:
            say(rest_line(total - 1 - training, training, at_once, one.seconds))

    def broke(trial: OpenTrial | None, error: Exception, training: Sequence[int]) -> None:
        line.clear()
        if trial is not None:
            steps.pop(trial.number, None)
        which = None if trial is None else (trial.number, trial.values)
        say_line(broken_line(space, which, error, training))

    return SweepTelling(progress, finished, broke)


def best_text(
    folder: SweepFolder, plan: SweepPlan, space: tuple[Axis, ...], best: TrialResult
) -> str:
    """Return the configuration that the user gave, with the best settings, as YAML.

    Steps and evaluations are those of the user's configuration, not those of a trial.
    """
    from fttui.engine.config.load import dump_config, load_config

    from .conduct import as_overrides

    config = load_config(folder.own, as_overrides(best.values)).config
    first = f"# Best of sweep {folder.id}: trial {best.number} of run {best.run},"
    found = f"# {label(space, best.values)}: {plan.by} {best.score:.5g} after {best.step} steps."
    return f"{first}\n{found}\n{dump_config(config)}"


def _with_losses(root: Path, trials: list[TrialResult]) -> list[TrialResult]:
    """Return the trials with the losses of their runs, as far as these can be read."""
    found = []
    for one in trials:
        run = RunDirectory(root / one.run)
        if not one.run or one.same_as or not run.journal.exists():
            found.append(one)
            continue
        record = TrialRecord(LOSS, 1)
        for entry in read_whole(run)[0]:
            record.take(entry)
        found.append(replace(one, losses=record.losses, step=max(one.step, record.step)))
    return found
