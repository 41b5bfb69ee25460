"""Usage meter: what this process uses, and the sum over all ranks and all starts of the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from ...protocol.usage.amounts import Usage
from ...telemetry.gpu import MeteredEnergy
from ..distributed.agreement import Agreement


class RankUse(NamedTuple):
    """What the process of one rank has used since it started."""

    seconds: float
    energy_j: float = 0.0
    metered_s: float = 0.0
    """Seconds for which the energy is known."""


class EnergySource(Protocol):
    """Measures the energy of a device."""

    @property
    def energy(self) -> MeteredEnergy:
        """The energy so far."""

    @property
    def reads_power(self) -> bool:
        """Whether the device reports its power."""


class UsageMeter:
    """Adds up what all ranks use; every rank gets the same sum."""

    def __init__(
        self,
        agreement: Agreement,
        before: Usage,
        began: float,
        energy: EnergySource | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start to measure.

        Args:
            agreement: agreement of the ranks.
            before: what earlier processes of the run have used, the same on all ranks.
            began: start of this process, in seconds of `clock`.
            energy: measures the device of this rank; None if nothing does.
            clock: returns monotonic seconds.
        """
        self._agreement = agreement
        self._before = before
        self._began = began
        self._energy = energy
        self._clock = clock

    @property
    def own(self) -> RankUse:
        """What the process of this rank has used."""
        used = self._energy.energy if self._energy else MeteredEnergy()
        return RankUse(self._clock() - self._began, *used)

    def total(self, uses: Sequence[RankUse]) -> Usage:
        """Return the usage of the run so far, given that of the processes of its ranks.

        The first of `uses` is that of rank 0; the others may be added up. The wall time is that of
        rank 0, so that all ranks have the same value.
        """
        device_s = sum(use.seconds for use in uses)
        metered_s = sum(use.metered_s for use in uses)
        energy = sum(use.energy_j for use in uses) if metered_s > 0 else None
        here = Usage(
            seconds=uses[0].seconds,
            device_s=device_s,
            energy_j=energy,
            unmetered_s=max(0.0, device_s - metered_s),
        )
        return self._before.plus(here)

    def measure(self) -> Usage:
        """Return what the run has used so far; all ranks call this together."""
        return self.total([RankUse(*row) for row in self._agreement.rows([*self.own])])

    def all_read_power(self) -> bool:
        """Return whether every rank can read the power of its device; a collective."""
        reads = self._energy is not None and self._energy.reads_power
        return all(row[0] > 0 for row in self._agreement.rows([float(reads)]))
