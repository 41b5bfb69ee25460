"""`launch`: write what a scheduler needs to start a run.

For SLURM it is a batch script, which is submitted, and the app opens when the job starts. For
SkyPilot it is a task file.
"""

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
    launch.add_argument(
        "scheduler", choices=["slurm", "skypilot"], help="skypilot: only write its task file"
    )
    launch.add_argument("config", metavar="CONFIG", type=Path, help="a YAML file")
    launch.add_argument("--nodes", metavar="N", type=int, default=1, help="number of machines")
    launch.add_argument(
        "--gpus", metavar="N", type=int, default=1, help="GPUs per machine (train.devices)"
    )
    launch.add_argument(
        "--time", metavar="T", help="slurm: time limit, such as 12:00:00 or 2-00:00:00"
    )
    launch.add_argument("--partition", metavar="P", help="slurm: partition of the cluster")
    launch.add_argument("--account", metavar="A", help="slurm: account that the job is charged to")
    launch.add_argument(
        "--sbatch",
        dest="options",
        action="append",
        default=[],
        metavar="OPTION",
        help="slurm: another option of sbatch, such as --sbatch=--mem=64G; may be repeated",
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
        "--script", metavar="FILE", type=Path, help="file to write (fttui-NAME.sbatch or .sky.yaml)"
    )
    launch.add_argument(
        "--accelerator", metavar="GPU", help="skypilot: name of the GPU, such as H100"
    )
    launch.add_argument("--bucket", metavar="B", help="skypilot: bucket that keeps the run folder")
    launch.add_argument(
        "--spot", action="store_true", help="skypilot: ask for machines that may be preempted"
    )
    launch.add_argument("--dry-run", action="store_true", help="write the script, submit nothing")
    launch.add_argument(
        "--detach", action="store_true", help="submit, and do not wait for the job to start"
    )
    add_runs_dir(launch)
    launch.set_defaults(handler=_launch)


def _launch(options: argparse.Namespace) -> int:
    _require_fitting(options)
    if options.scheduler == "skypilot":
        return _write_sky_task(options)
    request = _request(options)
    script = options.script or Path(f"{request.name}.sbatch")
    _write(script, batch_script(request))
    if options.dry_run:
        say(f"submit it with: sbatch {quote(str(script))}")
        return 0
    job = _submit(script)
    say(f"submitted job {job}; its output: {request.name}-{job}.log")
    if options.detach:
        return 0
    return _follow(job, runs_root(options.runs_dir))


def _write(file: Path, text: str) -> None:
    try:
        write_atomically(file, text.encode())
    except OSError as error:
        raise FttuiError(f"{file} cannot be written: {error.strerror or error}") from None
    say(f"wrote {file}")


def _require_fitting(options: argparse.Namespace) -> None:
    """Refuse options of another scheduler, and impossible numbers.

    Raises:
        ConfigError: an option is not valid here.
    """
    of_slurm = {
        "--time": options.time,
        "--partition": options.partition,
        "--account": options.account,
        "--sbatch": options.options,
        "--detach": options.detach,
    }
    of_sky = {
        "--accelerator": options.accelerator,
        "--bucket": options.bucket,
        "--spot": options.spot,
    }
    others = of_sky if options.scheduler == "slurm" else of_slurm
    wrong = next((name for name, value in others.items() if value), None)
    if wrong is not None:
        raise ConfigError(f"got {wrong}, which launch {options.scheduler} does not have")
    if options.nodes < 1 or options.gpus < 0:
        raise ConfigError(
            f"got --nodes {options.nodes} --gpus {options.gpus}; expected at least one node, and "
            "no negative number of GPUs"
        )


def _write_sky_task(options: argparse.Namespace) -> int:
    """Write the task file of SkyPilot, and print how to start it.

    Raises:
        ConfigError: the configuration or an option is not valid.
    """
    from importlib.metadata import version

    from fttui.engine.config.load import load_config

    from .sky_task import SkyRequest, paths_elsewhere, task_file

    if options.gpus and not options.accelerator:
        raise ConfigError(
            "launch skypilot needs --accelerator, such as H100 (`sky show-gpus` lists them), or "
            "--gpus 0"
        )
    here = Path.cwd()
    config = options.config.absolute()
    if not config.is_relative_to(here):
        raise ConfigError(
            f"{options.config} is not in the current folder, which SkyPilot copies to the nodes; "
            "change to a folder that has the configuration and the local data"
        )
    overrides = _with_devices(options)
    loaded = load_config(options.config, overrides)
    command = ["fttui", "run", str(config.relative_to(here))]
    for item in overrides:
        command += ["--set", item]
    request = SkyRequest(
        f"fttui-{_plain(loaded.config.name)}", command, options.nodes, options.gpus,
        options.accelerator or "", options.bucket or "", options.spot, version("fttui"),
    )  # fmt: skip
    task = options.script or Path(f"{request.name}.sky.yaml")
    _write(task, task_file(request))
    for path in paths_elsewhere(loaded.source, config.parent, here):
        say(f"note: {path} is only on this machine; move it into {here}, to the Hub or a bucket")
    say(f"start it with: sky launch {quote(str(task))}")
    if request.bucket:
        say(f"or, to resume after a preemption: sky jobs launch {quote(str(task))}")
    else:
        say("note: without --bucket the run folder is lost with the machine of node 0")
    return 0


def _with_devices(options: argparse.Namespace) -> list[str]:
    devices = [] if options.gpus == 0 else [f"train.devices={options.gpus}"]
    return [*devices, *options.overrides]


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name) or "run"


def _request(options: argparse.Namespace) -> SlurmRequest:
    """Return what to ask SLURM for.

    Raises:
        ConfigError: the configuration or an option is not valid.
    """
    from fttui.engine.config.load import load_config

    if options.time is not None and not is_time(options.time):
        raise ConfigError(
            f"got --time {options.time}; expected a time limit such as 90, 12:00:00 or 2-00:00:00"
        )
    root = runs_root(options.runs_dir).absolute()
    require_runs_folder(root, writing=True)
    overrides = _with_devices(options)
    loaded = load_config(options.config, overrides)
    command = [sys.executable, "-m", "fttui.tui", "run", str(options.config.absolute())]
    for item in overrides:
        command += ["--set", item]
    named = {"--partition": options.partition, "--account": options.account}
    return SlurmRequest(
        name=f"fttui-{_plain(loaded.config.name)}",
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
