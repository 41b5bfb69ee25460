"""Amounts that a run uses, their prices, and a budget, as the journal holds them."""

from __future__ import annotations

import msgspec


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What the processes of a run have used since it began, over all of its starts.

    Work that a rollback has undone, pauses and evaluations count. The time between two starts, in
    which no process runs, does not.
    """

    seconds: float = 0.0
    """Wall time of the training processes."""
    device_s: float = 0.0
    """The same, added up over all ranks."""
    energy_j: float | None = None
    """Energy of the devices of all ranks in joules; None if no power could be read."""
    unmetered_s: float = 0.0
    """The part of `device_s` in which no power could be read, so that its energy is not known."""

    def plus(self, other: Usage) -> Usage:
        """Return the sum of both."""
        known = [part.energy_j for part in (self, other) if part.energy_j is not None]
        return Usage(
            seconds=self.seconds + other.seconds,
            device_s=self.device_s + other.device_s,
            energy_j=sum(known) if known else None,
            unmetered_s=self.unmetered_s + other.unmetered_s,
        )

    def since(self, earlier: Usage) -> Usage:
        """Return what was used after `earlier`; nothing is below 0."""
        energy = self.energy_j
        if energy is not None:
            energy = max(0.0, energy - (earlier.energy_j or 0.0))
        return Usage(
            seconds=max(0.0, self.seconds - earlier.seconds),
            device_s=max(0.0, self.device_s - earlier.device_s),
            energy_j=energy,
            unmetered_s=max(0.0, self.unmetered_s - earlier.unmetered_s),
        )

    def scaled(self, factor: float) -> Usage:
        """Return the usage times a factor."""
        return Usage(
            seconds=factor * self.seconds,
            device_s=factor * self.device_s,
            energy_j=None if self.energy_j is None else factor * self.energy_j,
            unmetered_s=factor * self.unmetered_s,
        )


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """The prices of a run; both parts are added if both are given."""

    hour: float | None = None
    """Price of an hour of one device; each rank counts as one."""
    kwh: float | None = None
    """Price of a kilowatt hour."""
    currency: str = ""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """The most that a run may use; None means no limit."""

    hours: float | None = None
    """Hours of wall time in which the training processes run."""
    kwh: float | None = None
    money: float | None = None

    @property
    def limited(self) -> bool:
        """Whether there is any limit."""
        return any(limit is not None for limit in (self.hours, self.kwh, self.money))
