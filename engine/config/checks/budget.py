"""Checks of prices and budget."""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import ConfigError
from ...protocol.usage.amounts import Budget, Price, Usage
from ...protocol.usage.cost import Spent, spent_of
from ..schema import RunConfig
from .problem import Problem


class BudgetUsedUp(ConfigError):
    """The budget was already used up when the run was resumed."""


def check_budget(config: RunConfig) -> Iterator[Problem]:
    """Yield a price without a currency, and a limit of money without a price."""
    price, budget = config.price, config.budget
    if price.given and price.currency is None:
        yield Problem("price.currency", "a price is set without a currency; add one, such as EUR")
    if budget.money is not None and not price.given:
        yield Problem(
            "budget.money",
            f"got {budget.money:g}, but no price is known; set price.hour (of one device) or "
            "price.kwh",
        )


def limit_without_power(config: RunConfig) -> str | None:
    """Return the key of a limit that cannot be kept without a power reading; None without one."""
    if config.budget.kwh is not None:
        return "budget.kwh"
    if config.budget.money is not None and config.price.hour is None:
        return "budget.money"
    return None


def no_power(key: str, who: str) -> Problem:
    """Return the problem of a limit on energy where power cannot be read."""
    way_out = "remove it, or set budget.hours"
    if key == "budget.money":
        way_out = "set price.hour as well, or set budget.hours instead"
    return Problem(key, f"the limit needs energy readings, but {who}; {way_out}")


def price_of(config: RunConfig) -> Price | None:
    """Return the prices of a configuration; None if it names none."""
    price = config.price
    if not price.given:
        return None
    return Price(hour=price.hour, kwh=price.kwh, currency=price.currency or "")


def budget_of(config: RunConfig) -> Budget | None:
    """Return the limits of a configuration; None if it names none."""
    budget = config.budget
    if not budget.limited:
        return None
    return Budget(hours=budget.hours, kwh=budget.kwh, money=budget.money)


def require_budget_left(config: RunConfig, used: Usage, resume: str) -> None:
    """Refuse to resume a run whose budget is used up; `resume` is the command that resumes it.

    Raises:
        BudgetUsedUp: it is; the text says how to raise it.
    """
    for spent in spent_of(used, price_of(config), budget_of(config)):
        if spent.share >= 1:
            raise BudgetUsedUp(
                f"the budget is used up: {spent.words} ({spent.key}); {way_on(spent, resume)}"
            )


def way_on(spent: Spent, resume: str) -> str:
    """Return how to resume a run that has used up a limit."""
    higher = f"{1.5 * max(spent.limit, spent.used):.3g}"
    return f"raise it to continue: {resume} --set {spent.key}={higher}"
