"""Learning rate range test: follows the losses of a sweep and ends the run."""

from __future__ import annotations

import math
from collections.abc import Callable

from ...core.lr_range import LrRange, Sweep
from ...protocol.commands import Stop
from ...protocol.events import AnyEvent, LrRangeTested, StepFinished
from ..event_log import EventLog


class LrRangeTest:
    """Follows the losses of a learning rate sweep and ends the run when the sweep is complete.

    The trainer follows `LrRange.factor` instead of the schedule. The result is journaled with the
    last step.
    """

    def __init__(
        self,
        wanted: LrRange,
        event_log: EventLog,
        demand: Callable[[Stop, str, str], None],
    ) -> None:
        self._wanted = wanted
        self._event_log = event_log
        self._demand = demand
        self._sweep = Sweep()
        self._ending = False
        event_log.listen(self._follow)

    def _follow(self, event: AnyEvent) -> None:
        if not isinstance(event, StepFinished) or self._ending:
            return
        # A refused update counts as divergence: it leaves the weights unchanged, and several of
        # them would halt the run. A step that has nothing to learn has no loss.
        if not event.without_targets:
            self._sweep.add(event.lr, math.nan if event.skipped else event.loss_or_nan)
        if self._sweep.diverged or self._event_log.step >= self._wanted.steps:
            self._ending = True
            self._publish()
            reason = (
                "the loss diverged"
                if self._sweep.diverged
                else "the highest learning rate is reached"
            )
            self._demand(Stop(save=False), "lr-find", reason)

    def _publish(self) -> None:
        sweep = self._sweep
        self._event_log.record(
            LrRangeTested(
                rates=sweep.rates,
                losses=sweep.losses,
                smoothed=sweep.smoothed,
                diverged=sweep.diverged,
                steepest=sweep.steepest,
                below_lowest=sweep.below_lowest,
            )
        )


def begin_range_test(
    wanted: LrRange | None, event_log: EventLog, demand: Callable[[Stop, str, str], None]
) -> None:
    """Follow the losses of a sweep; nothing is done for a run that is not one."""
    if wanted is not None:
        LrRangeTest(wanted, event_log, demand)
