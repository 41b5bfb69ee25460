"""The batch script of a run under SLURM, for people to read and change."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote

SAVING_S = 120
"""Seconds before the time limit at which SLURM asks the run to save and stop."""
_TIME = re.compile(r"(\d+-)?\d+(:\d+){0,2}")


@dataclass(frozen=True)
class SlurmRequest:
    """What a run asks SLURM for."""

    name: str
    command: Sequence[str]
    """The `fttui run` of one node, without `--nodes`."""
    nodes: int
    gpus: int
    """GPUs per node; 0 asks for none."""
    time: str | None = None
    """Time limit as SLURM writes it; None for that of the partition."""
    options: Sequence[str] = ()
    """Further options of sbatch, such as `--partition=gpu`."""


def is_time(text: str) -> bool:
    """Whether a text is a time limit as SLURM writes it, such as 90, 12:00:00 or 2-00:00:00."""
    return _TIME.fullmatch(text) is not None


def batch_script(request: SlurmRequest) -> str:
    """Return the text of the batch script.

    At the time limit, or when the job is preempted, the run saves a checkpoint and stops. The job
    is then queued again, and the same run is resumed from that checkpoint.
    """
    words = " ".join(map(quote, request.command))
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH {option}" for option in _directives(request)),
            "",
            "# One task per node; it starts a process for each device of its node.",
            "# SLURM sends SIGUSR1 before the time limit. SIGTERM is then sent to the tasks, not",
            "# to srun, which would kill them after 30 s. The run saves and stops.",
            "stopped=no",
            "trap 'stopped=yes; again=yes; scancel --signal=TERM \"$SLURM_JOB_ID\"' TERM USR1",
            "srun --ntasks-per-node=1 --kill-on-bad-exit=1 \\",
            f"  {words} --nodes slurm --headless &",
            "step=$!",
            "# A signal ends wait early with its own status, so the step is waited for again.",
            "again=yes",
            'while [ "$again" = yes ]; do again=no; wait "$step"; code=$?; done',
            "",
            "# When SLURM starts the job again, it resumes the run that was stopped.",
            'if [ "$stopped" = yes ] && [ "$code" -eq 0 ]; then',
            '  scontrol requeue "$SLURM_JOB_ID"',
            "fi",
            'exit "$code"',
            "",
        ]
    )


def _directives(request: SlurmRequest) -> list[str]:
    return [
        f"--job-name={request.name}",
        f"--nodes={request.nodes}",
        "--ntasks-per-node=1",
        *([f"--gpus-per-node={request.gpus}"] if request.gpus else []),
        *([f"--time={request.time}"] if request.time else []),
        "--requeue",
        f"--signal=B:USR1@{SAVING_S}",
        "--open-mode=append",
        f"--output={request.name}-%j.log",
        *request.options,
    ]
