"""Commands that the configuration plans for certain steps, as the recipe of a run does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...protocol.commands import AnyCommand, parse_command


class PlannedCommands:
    """Gives out each planned command once, at the boundary of its step.

    A checkpoint of a step has the commands of that step in it, so after a rollback or a resume only
    those of later steps are given out again.
    """

    def __init__(self, planned: Iterable[tuple[int, str]]) -> None:
        """Plan commands, each as the step after which it is due and its text."""
        self._waiting = [(step, parse_command(text)) for step, text in planned]
        self._passed = -1
        """The newest step whose commands were given out or are part of a restored checkpoint."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def restored(self, step: int) -> None:
        """Continue after a checkpoint of a step."""
        self._passed = step

    @property
    def left(self) -> list[int]:
        """The steps of the commands that were not due yet."""
        return [step for step, _ in self._waiting if step > self._passed]

    def due(self, step: int) -> Iterator[AnyCommand]:
        """Yield the commands that are due at the boundary of a step, in their order."""
        before, self._passed = self._passed, max(self._passed, step)
        yield from (command for at, command in self._waiting if before < at <= step)
