"""Control state: the settings in force, the commands due, and what drops, pauses or ends training.

The scheduler fills it with commands, the executor and the step conclusion read and change it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ...core.schedules import PlannedSteps
from ...core.settings import clip_now
from ...protocol.commands import AnyCommand, Stop
from ...protocol.settings import Leash, RunSettings
from ...run.control_log import ControlEntry
from ..position import Position


class ControlState:
    """Settings, waiting commands, and whether training pauses or ends; the same on every rank."""

    def __init__(
        self,
        settings: RunSettings,
        position: Position,
        *,
        norm_percentile: Callable[[float], float | None],
        store: Callable[[RunSettings], None],
        why_not_kept_out: Callable[[Sequence[str]], str] = lambda ids: "",
        sources: Sequence[str] = (),
        planned: PlannedSteps | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._leash: Leash | None = None
        self.position = position
        self.norm_percentile = norm_percentile
        """Returns a percentile of the recent gradient norms; None before the first norm."""
        self.why_not_kept_out = why_not_kept_out
        """Returns why samples cannot all be kept out of the data; empty if they can."""
        self.sources = sources
        """Names of the sources of the training data."""
        self._planned = planned
        """The end of a schedule that can be replaced; None if the run has none."""
        self._store = store
        self._clock = clock
        self.due: deque[ControlEntry] = deque()
        """Commands that wait for a boundary, in the order in which they were accepted."""
        self.halted: str | None = None
        """Why training is halted until a command resumes it; None while it is not."""
        self.ending = False
        """Whether the run ends at this boundary."""
        self.ended_for = ""
        """Why the run was stopped; empty if it was not, or nobody gave a reason."""
        self.complete = False
        """Whether all planned steps were done before this process started."""
        self.dropped = False
        """Whether the step in progress is being dropped."""
        self._in_step = False

    @property
    def settings(self) -> RunSettings:
        """The settings in force."""
        return self._settings

    def change(self, settings: RunSettings) -> None:
        """Put settings in force and store them for the next process."""
        if settings != self._settings:
            self._settings = settings
            self._store(settings)

    @property
    def lr_schedule(self) -> float:
        """The schedule's learning rate for the next update, before the factor on it."""
        rest, step = self._settings.schedule, self.position.step
        if rest is None or self._planned is None or step < rest.start:
            return self.position.lr_schedule
        return self._planned.rate(rest, step)

    @property
    def total_steps(self) -> int:
        """Planned optimizer steps; 0 if they are not known."""
        return 0 if self._planned is None else self._planned.steps

    @property
    def clip(self) -> float | None:
        """Max gradient norm of the next update; None if clipping is off."""
        return clip_now(self._settings, self.norm_percentile)

    @property
    def leash(self) -> Leash | None:
        """The limits of the command that is carried out now; None unless an agent sent it."""
        return self._leash

    @contextmanager
    def within(self, leash: Leash | None) -> Iterator[None]:
        """Carry out a command within the limits of the agent that sent it; None if none did."""
        self._leash = leash
        try:
            yield
        finally:
            self._leash = None

    @property
    def held(self) -> bool:
        """Whether training is paused or halted."""
        return self._settings.paused or self.halted is not None

    @property
    def wanted_at_boundary(self) -> bool:
        """Whether a command or a halt has to be handled before the next step."""
        return bool(self.due) or self.halted is not None

    def demand(
        self, command: AnyCommand, issuer: str = "guard", reason: str = "", number: int = 0
    ) -> None:
        """Queue a command of the engine itself; every rank demands the same one.

        `number` distinguishes the commands of one issuer at one step.
        """
        self.due.append(
            ControlEntry(
                seq=0,
                time=self._clock(),
                id=f"{issuer}-{self.position.step}{f'.{number}' if number else ''}",
                command=command,
                issuer=issuer,
                reason=reason,
            )
        )

    def halt(self, reason: str) -> None:
        """Halt training at the next boundary."""
        self.halted = reason

    def lift_halt(self) -> None:
        """Let training continue after a halt."""
        self.halted = None

    def end_run(self, reason: str = "") -> None:
        """End the run at this boundary, for a reason that its last event gives."""
        self.ending, self.ended_for = True, reason

    def stop(self, issuer: str, reason: str) -> None:
        """Stop the run with a checkpoint at the next boundary, unless that is demanded already."""
        if not self.ending and not any(entry.issuer == issuer for entry in self.due):
            self.demand(Stop(), issuer, reason)

    def mark_complete(self) -> None:
        """Note that no planned step is left, so that none is trained."""
        self.complete = True

    @property
    def in_step(self) -> bool:
        """Whether a step is in progress, for which the data have been chosen."""
        return self._in_step

    def begin_step(self) -> None:
        """Note that a step is in progress."""
        self._in_step = True

    def drop_step(self) -> None:
        """Drop the step in progress; between two steps this does nothing."""
        self.dropped = self.dropped or self._in_step

    def end_step(self) -> bool:
        """Note that the step in progress has ended; return whether it was dropped."""
        dropped, self.dropped, self._in_step = self.dropped, False, False
        return dropped
