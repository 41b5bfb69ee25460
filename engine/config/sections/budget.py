"""The sections about prices and the budget of a run."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from .base import NonNegative, Positive, Section

Currency = Annotated[str, Meta(min_length=1, max_length=12)]


class PriceConfig(Section, frozen=True, kw_only=True):
    """What the run costs, for the meter and for `budget.money`; both prices are added if given."""

    hour: NonNegative | None = None
    """Price of an hour of one device; every process of the run counts as one device. For a machine
    that is rented as a whole, divide its price by the number of processes."""
    kwh: NonNegative | None = None
    """Price of a kilowatt hour of the GPUs. The power of other parts of the machine is not read; a
    higher price here can account for it."""
    currency: Currency | None = None
    """Word for the currency, such as `EUR`; needed with a price."""

    @property
    def given(self) -> bool:
        """Whether there is a price."""
        return self.hour is not None or self.kwh is not None


class BudgetConfig(Section, frozen=True, kw_only=True):
    """The most that the run may use: it saves a checkpoint and stops when a limit is reached.

    Everything counts that the processes of the run use: loading, steps that a rollback undoes,
    evaluations, pauses, and the runs before a resume or a restart. At 90 % there is a warning.
    """

    hours: Positive | None = None
    """Hours of wall time in which the processes of the run are running."""
    kwh: Positive | None = None
    """Energy of the GPUs of all processes in kilowatt hours; needs GPUs whose power can be read."""
    money: Positive | None = None
    """Money by `price`, in its currency."""

    @property
    def limited(self) -> bool:
        """Whether there is a limit."""
        return any(limit is not None for limit in (self.hours, self.kwh, self.money))
