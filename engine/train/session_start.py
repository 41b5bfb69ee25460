"""The inputs of a training session, known before the training stack is imported."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from pathlib import Path

from ..core.lr_range import LrRange
from ..protocol.usage.amounts import Usage
from ..run.identity.content import parse_accepted
from ..run.journal_summary import JournalSummary
from ..run.run_dir import RunDirectory
from .distributed.elastic import LaunchAttempt


@dataclass(frozen=True)
class SessionStart:
    """The state of a run when its engine process starts."""

    run: RunDirectory
    history: JournalSummary
    """What earlier processes of this run journaled."""
    resume: str | None = None
    """Checkpoint to resume from; None starts from the beginning."""
    control_seq: int = 0
    """Sequence number of the newest command at the start; 0 on every rank but 0."""
    attempt: LaunchAttempt = field(default_factory=LaunchAttempt)
    """Number of this start of the ranks by torchrun, and how many restarts are allowed."""
    profile_steps: int = 0
    """Number of steps of a run that is only profiled; 0 trains."""
    lr_range: LrRange | None = None
    """Learning rates of a run that only sweeps them; None trains."""
    accept_changed: frozenset[str] = frozenset()
    """Kinds of content that may differ from the content of the checkpoint."""
    paused: bool = False
    """Whether the run is paused before its first step."""
    used: Usage = field(default_factory=Usage)
    """What earlier processes of this run have used; other ranks than 0 learn it from rank 0."""
    began: float = field(default_factory=time.monotonic)
    """Start of this process in monotonic seconds."""
    stopped_code: int = 0
    """Exit code if a signal stops the run before its end."""

    loads_again: bool = False
    """Whether this process loads the run again, for smaller micro-batches; what it found at its
    start, such as commands of an earlier process, is journaled already."""

    @property
    def measures_only(self) -> bool:
        """Whether the run is only a measurement, without data to trackers and without messages."""
        return self.profile_steps > 0 or self.lr_range is not None


@dataclass(frozen=True)
class EngineArguments:
    """The arguments of the engine's command line, except the run folder; see `SessionStart`."""

    resume: str | None
    profile_steps: int
    lr_range: LrRange | None
    accept_changed: frozenset[str]
    paused: bool
    stopped_code: int
    parent: int = 0
    """Id of the process with which the engine ends; 0 if it outlives the one that started it."""


def read_arguments(
    arguments: list[str] | None, description: str | None
) -> tuple[Path, EngineArguments]:
    """Return the run folder and what else the engine's command line asks for.

    Args:
        arguments: the arguments of the command line; None takes those of this process.
        description: what the engine is, for its help text.
    """
    parser = argparse.ArgumentParser(prog="python -m fttui.engine", description=description)
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("--from", dest="resume", help="checkpoint to resume from, or `last`")
    parser.add_argument(
        "--profile",
        type=int,
        default=0,
        metavar="N",
        help="profile N steps after a warm-up, then end without saving",
    )
    sweep = ("LOW", "HIGH", "STEPS")
    parser.add_argument(
        "--lr-find", nargs=3, type=float, metavar=sweep, help="only run a learning rate range test"
    )
    parser.add_argument(
        "--accept-changed",
        type=parse_accepted,
        default=frozenset(),
        metavar="KINDS",
        help="kinds of content, such as data, that may have changed since the checkpoint",
    )
    parser.add_argument("--paused", action="store_true", help="pause before the first step")
    parser.add_argument(
        "--stopped-code",
        type=int,
        default=0,
        metavar="N",
        help="exit code if a signal stops the run before its end",
    )
    parser.add_argument(
        "--ends-with",
        dest="parent",
        type=int,
        default=0,
        metavar="PID",
        help="end at once when the process that started this one has ended",
    )
    options = parser.parse_args(arguments)
    lr_range = None
    if options.lr_find:
        low, high, steps = options.lr_find
        lr_range = LrRange(low, high, int(steps))
    return options.run, EngineArguments(
        options.resume,
        options.profile,
        lr_range,
        options.accept_changed,
        options.paused,
        options.stopped_code,
        options.parent,
    )
