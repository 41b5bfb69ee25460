"""Usage in money and in words, and how much of a budget it takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .amounts import Budget, Price, Usage

JOULES_PER_KWH = 3.6e6
UNMETERED_SHARE = 0.02
"""Share of the device time without a power reading from which texts name it."""
WARN_AT = 0.9
"""Share of a budget from which a run warns."""


@dataclass(frozen=True)
class Money:
    """An amount of money."""

    amount: float
    currency: str
    whole: bool = True
    """Whether all of the usage is in it; false if energy has a price and was not always read."""

    @property
    def words(self) -> str:
        """The amount as text, such as `3.10 EUR`; `at least 3.10 EUR` if a part is missing."""
        return f"{'' if self.whole else 'at least '}{amount_text(self.amount)} {self.currency}"


def amount_text(value: float) -> str:
    """Format an amount of money with two decimals, or two significant digits below 0.1."""
    return f"{value:.2f}" if value >= 0.1 or value == 0 else f"{value:.2g}"


def energy_text(joules: float) -> str:
    """Format an energy with three digits, as Wh below 1 kWh and as kWh from there on."""
    hours = joules / 3600
    if hours < 999.5:
        return f"{hours:.3g} Wh"
    return f"{hours / 1000:,.0f} kWh" if hours >= 999_500 else f"{hours / 1000:.3g} kWh"


def money_of(usage: Usage, price: Price | None) -> Money | None:
    """Return what a usage costs; None without a price, or if only unknown energy has a price."""
    if price is None:
        return None
    parts = []
    if price.hour is not None:
        parts.append(price.hour * usage.device_s / 3600)
    if price.kwh is not None and usage.energy_j is not None:
        parts.append(price.kwh * usage.energy_j / JOULES_PER_KWH)
    if not parts:
        return None
    return Money(sum(parts), price.currency, price.kwh is None or not partly_metered(usage))


def partly_metered(usage: Usage) -> bool:
    """Whether the power was not read in a part of the device time that matters, or never."""
    return usage.energy_j is None or usage.unmetered_s > UNMETERED_SHARE * usage.device_s


def energy_words(usage: Usage) -> str:
    """Return the energy as text; it says so if no power, or power only in part, was read."""
    if usage.energy_j is None:
        return "energy unknown (no power reading)"
    lead = "at least " if partly_metered(usage) else ""
    return f"{lead}{energy_text(usage.energy_j)}"


@dataclass(frozen=True)
class Spent:
    """How much of one limit of a budget is used."""

    key: str
    """The key of the limit, such as `budget.hours`."""
    used: float
    limit: float
    unit: str

    @property
    def share(self) -> float:
        """The used share of the limit; above 1 once it is exceeded."""
        return self.used / self.limit

    @property
    def words(self) -> str:
        """The used amount and the limit as text, such as `7.21 of 8 h`."""
        return f"{self.used:.3g} of {self.limit:g} {self.unit}"


def spent_of(usage: Usage, price: Price | None, budget: Budget | None) -> Iterator[Spent]:
    """Yield how much of each limit is used; a limit on what cannot be measured is left out."""
    if budget is None:
        return
    if budget.hours is not None:
        yield Spent("budget.hours", usage.seconds / 3600, budget.hours, "h")
    if budget.kwh is not None and usage.energy_j is not None:
        yield Spent("budget.kwh", usage.energy_j / JOULES_PER_KWH, budget.kwh, "kWh")
    money = money_of(usage, price)
    if budget.money is not None and money is not None:
        yield Spent("budget.money", money.amount, budget.money, money.currency)
