"""Shield: an error of fttui itself ends the watching and never the training of the user."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from ..train.patches import UpdateHooks

T = TypeVar("T")


class Shield:
    """Runs our own code inside the loop of somebody else."""

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        self._on_error = on_error
        self.broken = False
        """Whether watching has ended because of an error."""

    def call(self, action: Callable[[], T], otherwise: T) -> T:
        """Return the result of an action, or `otherwise` after an error, now or earlier.

        At the first error `on_error` is called; an error of its own is only printed.
        """
        if self.broken:
            return otherwise
        try:
            return action()
        except Exception as error:  # noqa: BLE001 -- no error of ours may end the user's training
            self.broken = True
            self._report(error)
            return otherwise

    def _report(self, error: Exception) -> None:
        try:
            self._on_error(error)
        except Exception as second:  # noqa: BLE001 -- nor may one of reporting it
            sys.stderr.write(
                f"fttui: the end of the watching could not be recorded: {type(second).__name__}: "
                f"{second}\n"
            )


class ShieldedUpdates:
    """The step hooks that patches of backward pass and optimizer call, behind a shield."""

    def __init__(self, hooks: UpdateHooks, shield: Shield) -> None:
        self._hooks = hooks
        self._shield = shield

    def may_backward(self) -> bool:
        """Return whether the next backward pass may run; False if the step is being dropped."""
        return self._shield.call(self._hooks.may_backward, True)

    def may_update(self) -> bool:
        """Return False if the optimizer must not change the weights."""
        return self._shield.call(self._hooks.may_update, True)

    def gated(self) -> AbstractContextManager[None]:
        """Return a context in which the device itself can refuse the optimizer step.

        Once watching has ended, the context does nothing.
        """
        return self._shield.call(self._hooks.gated, nullcontext())
