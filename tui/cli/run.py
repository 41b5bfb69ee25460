"""`run`: start a run or resume one, and show it in the app or as lines."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from fttui.engine.errors import ConfigError, FttuiError
from fttui.engine.run.run_dir import require_runs_folder, resume_command, runs_root
from fttui.engine.run.run_index import find_run, known_ends

from ..connection.nodes import JOIN_S
from ..text.format import plural
from .attach import open_app, require_terminal
from .check import look_into_data
from .cluster.place import Cluster, add_nodes, cluster_of, require_launch
from .options import (
    Commands,
    add_accept_changed,
    add_runs_dir,
    add_trust_code,
    name_and_step,
    say,
    say_line,
    say_wrapped,
)
from .preflight.extras import require_package, require_trackers
from .preflight.plan import divided_by_length, fitted
from .preflight.start_adapter import with_start_adapter
from .preflight.training_packages import require_training_packages

if TYPE_CHECKING:
    from fttui.engine.config.load import LoadedConfig
    from fttui.engine.config.schema import RunConfig
    from fttui.engine.run.run_dir import RunDirectory

    from ..connection.engine_process import StartedEngine
    from ..connection.nodes import NodeLaunch

_ENGINE_STARTS_IN_S = 180.0


def add_commands(commands: Commands) -> None:
    """Register the subcommand `run` of `fttui`."""
    run = commands.add_parser("run", help="start a run; watch and control it in the app")
    run.add_argument("config", metavar="CONFIG", nargs="?", type=Path, help="a YAML file")
    run.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="K=V",
        help="override a key of the configuration, such as train.lr=1e-4",
    )
    run.add_argument(
        "--replay",
        metavar="RECIPE",
        type=Path,
        help="repeat a run from a file that fttui recipe wrote",
    )
    run.add_argument(
        "--headless", action="store_true", help="print lines instead of opening the app"
    )
    add_runs_dir(run)
    run.add_argument("--name", metavar="N", help="name of the run")
    run.add_argument("--max-steps", metavar="N", help="number of optimizer steps (train.steps)")
    run.add_argument("--devices", metavar="N", help="number of devices (train.devices)")
    add_nodes(run)
    run.add_argument(
        "--force", action="store_true", help="start even if the run does not fit by the estimate"
    )
    run.add_argument(
        "--resume",
        metavar="RUN[@STEP]",
        help="resume a run from its last checkpoint, or from the one at STEP",
    )
    add_accept_changed(run)
    add_trust_code(run)
    run.set_defaults(handler=_run)


def _run(options: argparse.Namespace) -> int:
    if options.replay is not None:
        options.config = _recipe(options)
    require_training_packages("fttui run")
    cluster = cluster_of(options, say)
    options.headless = options.headless or cluster.launcher is not None
    return cluster.within(lambda: _run_here(options, cluster), say)


def _run_here(options: argparse.Namespace, cluster: Cluster) -> int:
    if cluster.launch and not cluster.leads:
        return _run_node(options, cluster, cluster.launch)
    if not options.headless:
        require_terminal("without one, use --headless")
    engine = _engine(options, cluster)
    if options.headless:
        from .headless import follow

        say(f"run {engine.run.id} in {engine.run.path}")
        return follow(engine, say)
    say(f"starting {engine.run.id} …")
    try:
        engine.wait_until_served(_ENGINE_STARTS_IN_S + (JOIN_S if cluster.launch else 0))
    except KeyboardInterrupt:
        say(f"training continues; attach with: fttui attach {quote(engine.run.id)}")
        say(f"stop it with: fttui ctl {quote(engine.run.id)} stop")
        raise
    return open_app(engine.run)


def _recipe(options: argparse.Namespace) -> Path:
    """Return the recipe that the command line names, as the configuration of the run.

    Raises:
        ConfigError: it is not a recipe, or something else is to be started, too.
    """
    from fttui.engine.config.load import load_config

    if options.config or options.resume:
        raise ConfigError("--replay RECIPE starts a new run; leave out CONFIG and --resume")
    recipe: Path = options.replay
    config = load_config(recipe, options.overrides).config
    if config.policy.autopilot != "off":
        raise ConfigError(
            f"{recipe}: policy.autopilot is {config.policy.autopilot}, expected off, so that "
            "nothing else intervenes; write a recipe with: fttui recipe RUN, or start this file "
            f"with: fttui run {quote(str(recipe))}"
        )
    say(f"repeating a run with {plural(len(config.interventions), 'intervention')}")
    return recipe


def _engine(options: argparse.Namespace, cluster: Cluster) -> StartedEngine:
    """Start a new run, or resume the one that is named or that the job trained before."""
    before = None if options.resume else cluster.run_to_go_on(runs_root(options.runs_dir))
    if before is not None:
        say(f"the job was started before; resuming {before.id}")
        options.resume, options.config = str(before.path), None
    return resumed(options, cluster) if options.resume else _started(options, cluster)


def _run_node(options: argparse.Namespace, cluster: Cluster, launch: NodeLaunch) -> int:
    """Start and wait for the ranks of a node other than that of rank 0.

    Raises:
        ConfigError: a run is to be resumed, whose folder is on the node of rank 0.
    """
    from fttui.engine.config.load import read_resolved

    from .cluster.node import follow_node, nodes_root

    if options.resume:
        raise ConfigError(
            "got --resume on a node whose rank is not 0; the run is on node 0: give --resume "
            "there, and start the other nodes with the configuration"
        )
    engine = _started(options, cluster, nodes_root(runs_root(options.runs_dir)))
    return follow_node(engine, launch, read_resolved(engine.run.config).train.devices, say)


def _started(
    options: argparse.Namespace, cluster: Cluster, folder: Path | None = None
) -> StartedEngine:
    """Check the configuration and start a new run.

    Args:
        options: the command line.
        cluster: the place of this node among several.
        folder: where the run folder is made; None for the folder with the runs.
    """
    from fttui.engine.run.identity.trusted_code import record_consent

    from ..connection.engine_process import EngineAhead, new_run, start_engine

    if options.config is None:
        raise ConfigError(
            "no configuration given; use: fttui run CONFIG, or: fttui run --resume RUN"
        )
    if options.accept_changed:
        raise ConfigError(
            "--accept-changed needs --resume RUN; a new run has no checkpoint to differ from"
        )
    root = runs_root(options.runs_dir)
    require_runs_folder(root, writing=True)
    overrides = _overrides(options, cluster)
    with EngineAhead() as ahead:
        loaded = preflight(
            options.config,
            overrides,
            force=options.force,
            say=say_wrapped,
            runs_dir=options.runs_dir,
            plain=options.headless,
            before_data=lambda config: ahead.begin(config, cluster.launch),
        )
        train = loaded.config.train
        require_launch(train.nodes, cluster.launch)
        record_consent(loaded.config)
        run = new_run(folder or root, options.config, loaded, overrides, cluster.job)
        return start_engine(
            run,
            train.devices,
            restarts=train.restarts,
            options=cluster.engine_options,
            launch=cluster.launch,
            ahead=ahead,
        )


def resumed(
    options: argparse.Namespace, cluster: Cluster, *, paused: bool = False
) -> StartedEngine:
    """Check that the run `options.resume` can be resumed, and start its engine, maybe paused.

    Raises:
        FttuiError: it cannot be resumed; the text says why.
    """
    from fttui.engine.config.checks.budget import require_budget_left
    from fttui.engine.config.earlier import read_as_before
    from fttui.engine.config.load import data_keys, parse_resolved, read_config, with_config
    from fttui.engine.config.memory.planning import with_earlier_decisions
    from fttui.engine.run.identity.content import parse_accepted
    from fttui.engine.run.identity.trusted_code import record_consent, require_consent

    from ..connection.engine_process import (
        EngineAhead,
        checkpoint_to_resume,
        replace_config,
        start_engine,
        start_lock,
    )

    accept = parse_accepted(options.accept_changed)
    name, step = name_and_step(options.resume)
    run = find_run(runs_root(options.runs_dir), name)
    if not paused:
        tell_of_race(run)
    with start_lock(run), EngineAhead() as ahead:
        checkpoint = checkpoint_to_resume(run, step)
        path = options.config or run.config
        loaded = load_checked(path, _overrides(options, cluster))
        loaded = with_start_adapter(loaded, options.runs_dir, str(path), say)
        resolved = read_config(run.config)
        loaded = with_earlier_decisions(loaded, parse_resolved(resolved, str(run.config)))
        loaded = with_config(loaded, read_as_before(loaded.config, data_keys(resolved)))
        if options.config:
            record_consent(loaded.config)
        require_consent(
            loaded.config, options.trust_code, f"fttui run --resume {quote(options.resume)}"
        )
        require_budget_left(loaded.config, known_ends(run).used, resume_command(run.id))
        train = loaded.config.train
        require_launch(train.nodes, cluster.launch)
        ahead.begin(loaded.config, cluster.launch)
        _require_same_content(run, checkpoint, loaded.config, options.resume, accept)
        replace_config(run, loaded)
        engine = start_engine(
            run,
            train.devices,
            checkpoint,
            restarts=train.restarts,
            options=[*_engine_options(accept, paused=paused), *cluster.engine_options],
            launch=cluster.launch,
            ahead=ahead,
        )
        engine.wait_until_marked(_ENGINE_STARTS_IN_S)
    return engine


def _engine_options(accept: frozenset[str], *, paused: bool) -> list[str]:
    """Return the options of the engine of a resumed run."""
    accepted = ["--accept-changed", ",".join(sorted(accept))] if accept else []
    return [*accepted, *(["--paused"] if paused else [])]


def tell_of_race(run: RunDirectory) -> None:
    """Print that a race of the run was interrupted, and in which variant; nothing without one."""
    from ..connection.race.race_file import read_race
    from ..dialogs.race_text import unfinished_lines

    try:
        state = read_race(run)
    except FttuiError as error:
        say(f"note: {error}")
        return
    if state is not None and not state.ended:
        for line in unfinished_lines(state, run.id):
            say(f"note: {line}")


def _require_same_content(
    run: RunDirectory,
    checkpoint: str | None,
    config: RunConfig,
    resumed: str,
    accept: frozenset[str],
) -> None:
    """Refuse to resume with another model, tokenizer, template, data or start adapter.

    The comparison with the checkpoint is made before anything in the run folder is changed.

    Raises:
        ContentChanged: One of them differs, and `accept` does not allow it.
    """
    from fttui.engine.run.checkpoint_store import CheckpointStore
    from fttui.engine.run.identity.comparison import (
        compare_with_checkpoint,
        compare_with_start,
        content_identity,
    )
    from fttui.engine.run.identity.hash_cache import HashCache

    command = f"fttui run --resume {quote(resumed)}"
    say("comparing model, tokenizer, chat template, data and start adapter with those of the run")
    found = content_identity(config, HashCache())
    if checkpoint is None:
        compare_with_start(run, found, accept, command)
        return
    manifest = CheckpointStore(run).find(checkpoint)
    compare_with_checkpoint(run, manifest, found, accept, command)


def _overrides(options: argparse.Namespace, cluster: Cluster) -> list[str]:
    """Return the overrides of `--set` and of the options that set one key."""
    short = {
        "name": options.name,
        "train.steps": options.max_steps,
        "train.devices": options.devices or cluster.devices,
        "train.nodes": cluster.nodes,
    }
    named = [f"{key}={value}" for key, value in short.items() if value is not None]
    return [*options.overrides, *named]


def preflight(
    path: Path,
    overrides: list[str],
    *,
    force: bool,
    say: Callable[[str], None],
    runs_dir: str | None = None,
    plain: bool = False,
    before_data: Callable[[RunConfig], None] = lambda config: None,
) -> LoadedConfig:
    """Check all that can be checked before an engine starts; return the loaded configuration.

    Args:
        path: The configuration.
        overrides: Keys to override, as K=V.
        force: Start even if the memory estimate exceeds what is available.
        say: Prints the estimate, the decisions and the results about the data.
        runs_dir: Folder with the runs that `adapter.start` may name; None for the default one.
        plain: Whether progress rewrites no line of the terminal.
        before_data: Called once the configuration is accepted, before the data are read.

    Raises:
        FttuiError: The configuration is not valid, the run does not fit in memory, or its data
            cannot be used.
    """
    from fttui.engine.config.memory.hardware import probe_hardware

    loaded = with_start_adapter(load_checked(path, overrides), runs_dir, str(path), say)
    found = fitted(loaded, force=force, say=say)
    before_data(found.config)
    lengths = look_into_data(found.resolved, say=say_line, plain=plain)
    if loaded.config.train.batch != "auto":
        return found
    divided = divided_by_length(loaded, probe_hardware(), lengths, force=force, say=say)
    return divided or found


def load_checked(path: Path, overrides: list[str]) -> LoadedConfig:
    """Load a configuration and check that its data exists and this machine can run it.

    Raises:
        ConfigError: The configuration is not valid, or one of the checks failed.
    """
    from fttui.engine.config.checks import check_hardware, check_sources, require
    from fttui.engine.config.load import load_config
    from fttui.engine.config.memory.hardware import probe_hardware

    loaded = load_config(path, overrides)
    require_trackers(loaded.config.trackers)
    if loaded.config.eval.benchmarks.tasks:
        require_package("lm_eval", "eval.benchmarks", extra="bench")
    here = check_hardware(loaded.config, probe_hardware())
    require([*check_sources(loaded.config), *here], loaded.places, str(path))
    return loaded
