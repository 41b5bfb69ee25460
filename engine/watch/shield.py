"""Shield: an error of fttui itself ends the watching and never the training of the user."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Shield:
    """Runs our own code inside the loop of somebody else."""

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        self._on_error = on_error
        self.broken = False
        """Whether watching has ended because of an error."""

    def run(self, action: Callable[[], T], otherwise: T) -> T:
        """Return the result of an action, or `otherwise` after an error, now or earlier."""
        if self.broken:
            return otherwise
        try:
            return action()
        except Exception as error:  # noqa: BLE001 -- no error of ours may end the user's training
            self.broken = True
            self._on_error(error)
            return otherwise
