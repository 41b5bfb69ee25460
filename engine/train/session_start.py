"""The inputs of a training session, known before the training stack is imported."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from ..core.lr_range import LrRange
from ..protocol.usage.amounts import Usage
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

    @property
    def measures_only(self) -> bool:
        """Whether the run is only a measurement, without data to trackers and without messages."""
        return self.profile_steps > 0 or self.lr_range is not None
