"""`launch`: write a batch script for a run, submit it, and open the app when the job starts."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from shlex import join, quote

from fttui.engine.errors import ConfigError, FttuiError
from fttui.engine.run.files import write_atomically
from fttui.engine.run.run_dir import RunDirectory, require_runs_folder, runs_root
from fttui.engine.run.run_index import run_of_job

from ..options import Commands, add_runs_dir, say
from .slurm_place import is_job
from .slurm_script import SlurmRequest, batch_script, is_time

_POLL_S = 2.0
_PENDING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED")
_RUNNING = ("RUNNING", "COMPLETING")


def add_commands(commands: Commands) -> None:
    """Register the subcommand `launch` of `fttui`."""
    launch = commands.add_parser("launch", help="submit a run to the scheduler of a cluster")
    launch.add_argument("scheduler", choices=["slurm"], help="the scheduler")
    launch.add_argument("config", metavar="CONFIG", type=Path, help="a YAML file")
    launch.add_argument("--nodes", metavar="N", type=int, default=1, help="number of machines")
    launch.add_argument(
        "--gpus", metavar="N", type=int, default=1, help="GPUs per machine (train.devices)"
    )
    launch.add_argument("--time", metavar="T", help="time limit, such as 12:00:00 or 2-00:00:00")
    launch.add_argument("--partition", metavar="P", help="partition of the cluster")
    launch.add_argument("--account", metavar="A", help="account that the job is charged to")
    launch.add_argument(
        "--sbatch",
        dest="options",
        action="append",
        default=[],
        metavar="OPTION",
        help="another option of sbatch, such as --sbatch=--mem=64G; may be repeated",
    )
    launch.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="K=V",
        help="override a key of the configuration, such as train.lr=1e-4",
    )
    launch.add_argument(
        "--script", metavar="FILE", type=Path, help="where to write the script (fttui-NAME.sbatch)"
    )
    launch.add_argument("--dry-run", action="store_true", help="write the script, submit nothing")
    launch.add_argument(
        "--detach", action="store_true", help="submit, and do not wait for the job to start"
    )
    add_runs_dir(launch)
    launch.set_defaults(handler=_launch)


def _launch(options: argparse.Namespace) -> int:
    request = _request(options)
    script = options.script or Path(f"{request.name}.sbatch")
    try:
        write_atomically(script, batch_script(request).encode())
    except OSError as error:
        raise FttuiError(f"{script} cannot be written: {error.strerror or error}") from None
    say(f"wrote {script}")
    if options.dry_run:
        say(f"submit it with: sbatch {quote(str(script))}")
        return 0
    job = _submit(script)
    say(f"submitted job {job}; its output: {request.name}-{job}.log")
    if options.detach:
        return 0
    return _follow(job, runs_root(options.runs_dir))


def _request(options: argparse.Namespace) -> SlurmRequest:
    """Return what to ask SLURM for.

    Raises:
        ConfigError: the configuration or an option is not valid.
    """
    from fttui.engine.config.load import load_config

    if options.nodes < 1 or options.gpus < 0:
        raise ConfigError(
            f"got --nodes {options.nodes} --gpus {options.gpus}; expected at least one node, and "
            "no negative number of GPUs"
        )
    if options.time is not None and not is_time(options.time):
        raise ConfigError(
            f"got --time {options.time}; expected a time limit such as 90, 12:00:00 or 2-00:00:00"
        )
    root = runs_root(options.runs_dir).absolute()
    require_runs_folder(root, writing=True)
    devices = [] if options.gpus == 0 else [f"train.devices={options.gpus}"]
    overrides = [*devices, *options.overrides]
    loaded = load_config(options.config, overrides)
    command = [sys.executable, "-m", "fttui.tui", "run", str(options.config.absolute())]
    for item in overrides:
        command += ["--set", item]
    named = {"--partition": options.partition, "--account": options.account}
    return SlurmRequest(
        name=f"fttui-{re.sub(r'[^A-Za-z0-9._-]+', '-', loaded.config.name) or 'run'}",
        command=[*command, "--runs-dir", str(root)],
        nodes=options.nodes,
        gpus=options.gpus,
        time=options.time,
        options=[*(f"{key}={value}" for key, value in named.items() if value), *options.options],
    )


def _asked(command: Sequence[str]) -> str:
    """Run a command of SLURM and return its output.

    Raises:
        FttuiError: the command is missing or failed.
    """
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    except FileNotFoundError:
        raise FttuiError(
            f"{command[0]} was not found; run this on a login node of the cluster, or write the "
            "script with --dry-run"
        ) from None
    except subprocess.TimeoutExpired:
        raise FttuiError(f"`{join(command)}` did not answer within 120 s") from None
    if found.returncode:
        raise FttuiError(
            f"`{join(command)}` failed: {found.stderr.strip() or found.stdout.strip()}"
        )
    return found.stdout.strip()


def _submit(script: Path) -> int:
    return int(_asked(["sbatch", "--parsable", str(script)]).split(";")[0])


def _state(job: int) -> tuple[str, str]:
    """Return the state of a job and, while it waits, the reason.

    SLURM forgets a job some minutes after its end, and squeue then fails, so all jobs are listed.
    """
    listed = _asked(["squeue", "--noheader", "--me", "--format=%i %T %r"])
    lines = dict(line.strip().partition(" ")[::2] for line in listed.splitlines())
    line = lines.get(str(job), "")
    state, _, reason = line.partition(" ")
    return state or "ENDED", reason


def _follow(job: int, root: Path) -> int:
    """Wait until the job trains, and open the app on its run, on the node of rank 0.

    Raises:
        FttuiError: the job ended before it trained.
    """
    said = ""
    try:
        while True:
            state, reason = _state(job)
            text = f"job {job} {state.lower()}" + (f" ({reason})" if state in _PENDING else "")
            if text != said:
                say(text)
                said = text
            run = _run_of(job, root) if state in _RUNNING else None
            if run is not None:
                return _open(job, run)
            if state not in (*_PENDING, *_RUNNING):
                raise FttuiError(f"job {job} ended before its run began; see its output")
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        say(f"the job is not cancelled; cancel it with: scancel {job}")
        raise


def _run_of(job: int, root: Path) -> RunDirectory | None:
    """Return the run that a job has started, once its engine has written its mark."""
    run = run_of_job(root, lambda name: is_job(name, job))
    return run if run is not None and run.engine.exists() else None


def _open(job: int, run: RunDirectory) -> int:
    """Open the app on the node of rank 0 within the job, or say how, without a terminal."""
    # %B is the node on which the batch script runs, which is that of rank 0.
    host = _asked(["squeue", "--noheader", "--jobs", str(job), "--format=%B"])
    words = [sys.executable, "-m", "fttui.tui", "attach", str(run.path)]
    command = ["srun", f"--jobid={job}", "--overlap", "--nodes=1", "--ntasks=1", "--gres=none",
               f"--nodelist={host}", "--pty", *words]  # fmt: skip
    say(f"run {run.id} on {host}; open the app with: {join(command)}")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return 0
    return subprocess.run(command, check=False, env=os.environ.copy()).returncode
