"""`bench`: measure benchmarks of lm-evaluation-harness on a checkpoint of a run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from shlex import quote

from fttui.engine.errors import ConfigError
from fttui.engine.run.checkpoint_store import CheckpointStore
from fttui.engine.run.folder.links import require_plain
from fttui.engine.run.identity.content import parse_accepted
from fttui.engine.run.run_dir import RunDirectory, require_runs_folder, runs_root
from fttui.engine.run.run_index import find_run

from ..options import (
    Commands,
    add_accept_changed,
    add_runs_dir,
    add_trust_code,
    at_least_one,
    name_and_step,
)
from ..outward.relay import relay_with_errors
from ..preflight.extras import require_package
from ..preflight.training_packages import require_training_packages

_DESCRIPTION = """\
Measure tasks of lm-evaluation-harness (pip install 'fttui[bench]') on a checkpoint. This runs in a
process of its own, also while the run is training; the results join the run at the step of the
checkpoint, as metrics bench.TASK.METRIC, and are shown as curves. With --base they also say what
the training has changed.

Tasks are those of the harness, whose data are downloaded from the Hugging Face Hub, and those that
a YAML file in --include-path defines, which may name local files. Such a file can name Python code,
which is executed. A task that is not found or cannot be downloaded is refused before anything is
measured.
"""


def add_commands(commands: Commands) -> None:
    """Register the subcommand `bench` of `fttui`."""
    bench = commands.add_parser(
        "bench",
        help="measure benchmarks on a checkpoint; the results become metrics of the run",
        description=_DESCRIPTION,
    )
    bench.add_argument(
        "run",
        metavar="RUN[@STEP]",
        nargs="?",
        help="default: the newest run, and its last checkpoint",
    )
    bench.add_argument(
        "--tasks",
        metavar="NAMES",
        required=True,
        help="tasks or groups of tasks, separated by commas, such as hellaswag,my_task",
    )
    bench.add_argument(
        "--include-path", metavar="DIR", type=Path, help="folder with definitions of further tasks"
    )
    bench.add_argument(
        "--base",
        action="store_true",
        help="also measure the base model, without the trained weights; later results under the "
        "same conditions are compared with it",
    )
    _add_conditions(bench)
    bench.add_argument(
        "--device",
        metavar="DEVICE",
        default="auto",
        help="cpu, cuda or cuda:N (default: the GPU with the most free memory if the model fits "
        "into it, else the CPU; while the run trains, only a GPU that no process uses)",
    )
    bench.add_argument(
        "--batch",
        metavar="N",
        type=at_least_one,
        help="sequences at once (default: eval.batch, else the micro-batch of training)",
    )
    add_accept_changed(bench)
    add_trust_code(bench)
    add_runs_dir(bench)
    bench.set_defaults(handler=_bench)


def _add_conditions(bench: argparse.ArgumentParser) -> None:
    """Add the options on which a result depends."""
    bench.add_argument(
        "--limit",
        metavar="N",
        type=at_least_one,
        help="measure the first N examples of each task only, for a quick look",
    )
    bench.add_argument(
        "--fewshot",
        metavar="N",
        type=_count,
        help="solved examples before each question (default: as the task says)",
    )
    bench.add_argument(
        "--chat-template",
        action="store_true",
        help="render the questions with the chat template, as a chat model expects them",
    )


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number from 0 on")
    return int(text)


def _bench(options: argparse.Namespace) -> int:
    runs = runs_root(options.runs_dir)
    require_runs_folder(runs)
    require_training_packages("fttui bench")
    require_package("lm_eval", "fttui bench", extra="bench")
    tasks = [task.strip() for task in options.tasks.split(",") if task.strip()]
    if not tasks:
        raise ConfigError("--tasks names no task; name one, such as --tasks hellaswag")
    name, step = name_and_step(options.run) if options.run else (None, None)
    run = find_run(runs, name)
    if run.identity().script:
        raise ConfigError(
            f"{run.id} is the run of a script, whose model only the script can build; measure the "
            "model that it saves with lm_eval itself"
        )
    checkpoint = CheckpointStore(run).find(step or "last").name
    require_plain(run.path)
    _require_consent(run, options)
    return relay_with_errors(_command(run, checkpoint, tasks, options))


def _command(
    run: RunDirectory, checkpoint: str, tasks: list[str], options: argparse.Namespace
) -> list[str]:
    """Return the command line of the process that measures."""
    command = [sys.executable, "-W", "ignore", "-m", "fttui.engine.bench", str(run.path)]
    command += [checkpoint, "--tasks", ",".join(dict.fromkeys(tasks)), "--device", options.device]
    for name in ("include_path", "limit", "fewshot", "batch"):
        if (value := getattr(options, name)) is not None:
            command += [f"--{name.replace('_', '-')}", str(value)]
    command += ["--base"] * options.base + ["--chat-template"] * options.chat_template
    if accept := parse_accepted(options.accept_changed):
        command += ["--accept-changed", ",".join(sorted(accept))]
    return command


def _require_consent(run: RunDirectory, options: argparse.Namespace) -> None:
    """Refuse code of the model that nobody has agreed to.

    Raises:
        FttuiError: the configuration names such code, or cannot be read.
    """
    # Deferred, so that commands that read no configuration start faster.
    from fttui.engine.config.load import read_resolved
    from fttui.engine.run.identity.trusted_code import require_consent

    command = f"fttui bench {quote(options.run or run.id)} --tasks {quote(options.tasks)}"
    require_consent(read_resolved(run.config), options.trust_code, command, evaluates=False)
