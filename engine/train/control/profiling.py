"""The interface of a step profiler, and `NoProfiler` for a trainer that cannot be profiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from .command_scheduler import Impossible


class Profiler(Protocol):
    """Profiles whole steps on request; `monitoring.profiler` implements it for PyTorch."""

    def ask(self, steps: int) -> None:
        """Profile this number of steps, from the next one on.

        Raises:
            Impossible: no profile can be taken.
        """

    def begin_step(self) -> None:
        """Take note that a step begins."""

    def end_step(self, tokens: int, *, counted: bool, conclude: Callable[[], None]) -> None:
        """Take note that a step has ended.

        Args:
            tokens: tokens of the step on this rank.
            counted: whether the step was not dropped.
            conclude: journals the step; to be called before a profile is recorded.
        """


class NoProfiler:
    """Refuses to take a profile."""

    def ask(self, steps: int) -> None:
        """Refuse the profile by raising `Impossible`."""
        raise Impossible("the trainer of this run cannot be profiled")

    def begin_step(self) -> None:
        """Do nothing."""

    def end_step(self, tokens: int, *, counted: bool, conclude: Callable[[], None]) -> None:
        """Do nothing."""
