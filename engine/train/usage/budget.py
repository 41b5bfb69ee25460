"""Run meter: measures the usage of a run, warns near the end of its budget, and stops it there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...config.checks.budget import limit_without_power, no_power, way_on
from ...config.schema import RunConfig
from ...errors import ConfigError
from ...protocol.events import UsageMeasured
from ...protocol.usage.amounts import Budget, Price, Usage
from ...protocol.usage.cost import WARN_AT, spent_of
from ...run.run_dir import resume_command
from ..event_log import EventLog
from .meter import RankUse, UsageMeter

MEASURE_EVERY = 300
"""Looks at the queue between two measurements while training is held: 30 s at 0.1 s each."""


class RunMeter:
    """The usage meter of a run together with its budget; the same on every rank."""

    def __init__(
        self,
        meter: UsageMeter,
        event_log: EventLog,
        price: Price | None,
        budget: Budget | None,
        run_id: str,
        stop: Callable[[str], None],
    ) -> None:
        """Start without warnings.

        Args:
            meter: measures the usage.
            event_log: records it, and the warnings.
            price: prices; None without any.
            budget: limits; None without any.
            run_id: the id of the run, for the command that resumes it.
            stop: stops the run; it gets the reason, and is called again until the run ends.
        """
        self._meter = meter
        self._event_log = event_log
        self._price = price
        self._budget = budget
        self._run_id = run_id
        self._stop = stop
        self._warned: set[str] = set()
        self._looks = 0

    @property
    def own(self) -> RankUse:
        """What the process of this rank has used."""
        return self._meter.own

    def total(self, uses: Sequence[RankUse]) -> Usage:
        """Return the usage of the run so far, given that of the processes of its ranks."""
        return self._meter.total(uses)

    def measure(self) -> Usage:
        """Return what the run has used so far; all ranks call this together."""
        return self._meter.measure()

    def while_held(self) -> None:
        """Measure now and then while training is paused or halted; all ranks call it together."""
        self._looks += 1
        if self._looks % MEASURE_EVERY == 0:
            usage = self.measure()
            self._event_log.record(UsageMeasured(usage=usage))
            self.check(usage)

    def check(self, usage: Usage) -> None:
        """Warn once about each limit of which 90 % are used, and stop the run at the first limit.

        `usage` is the same on every rank.
        """
        for spent in spent_of(usage, self._price, self._budget):
            if spent.share >= 1:
                self._once(f"{spent.key} stop", f"the budget is used up: {spent.words} "
                    f"({spent.key}); the run saves a checkpoint and stops; "
                    f"{way_on(spent, resume_command(self._run_id))}")  # fmt: skip
                self._stop(f"{spent.key} is used up: {spent.words}")
                return
            if spent.share >= WARN_AT:
                text = f"{100 * spent.share:.0f} % of the budget is used: {spent.words}"
                self._once(spent.key, f"{text} ({spent.key}); at 100 % the run saves and stops")

    def _once(self, key: str, text: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            self._event_log.log("warning", text)


def require_power(config: RunConfig, meter: UsageMeter) -> None:
    """Refuse a limit on energy if a rank cannot read the power; all ranks call this together.

    Raises:
        ConfigError: there is such a limit.
    """
    key = limit_without_power(config)
    if key is not None and not meter.all_read_power():
        problem = no_power(key, "the power of one of the run's GPUs cannot be read")
        raise ConfigError(f"{problem.key}: {problem.text}")
