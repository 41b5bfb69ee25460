"""What a run has used, what it will have used at its end, and its budget, in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fttui.engine.protocol.usage.amounts import Usage
from fttui.engine.protocol.usage.cost import (
    WARN_AT,
    Spent,
    energy_text,
    energy_words,
    money_of,
    spent_of,
)

from ..text import format as fmt
from ..text.usage import use_per_s
from ..view_model.run_view import RunView

PACE_STEPS = 64
"""Newest steps from whose usage that of the remaining steps is computed."""


@dataclass(frozen=True)
class UsageRow:
    """One line about what a run uses."""

    name: str
    text: str
    warns: bool = False
    """Whether most of a limit is used."""


def at_end(run: RunView) -> Usage | None:
    """Return what a run will have used after its last planned step; None while unknown.

    The remaining steps count at the pace and with the usage of the newest ones.
    """
    if run.eta_s is None or run.ended is not None:
        return None
    pace = use_per_s(run.used_at(max(1, run.step - PACE_STEPS)), run.used_at(run.step))
    return None if pace is None else run.used.plus(pace.scaled(run.eta_s))


def usage_rows(run: RunView) -> Iterator[UsageRow]:
    """Yield what a run has used and will have used at its end, and its budget."""
    used, then, price = run.used, at_end(run), run.tally.price
    several = run.tally.world_size > 1
    devices = f" × {run.tally.world_size} devices" if several else ""
    later_s = None if then is None else fmt.duration(then.seconds)
    yield UsageRow("time", _both(f"{fmt.duration(used.seconds)}{devices}", later_s))
    yield UsageRow("energy", _energy(used, then))
    money = money_of(used, price)
    later = None if then is None else money_of(then, price)
    if price is None:
        yield UsageRow("money", "no price in the configuration (price.hour, price.kwh)")
    elif money is None:
        yield UsageRow("money", "unknown: only energy has a price, and no power was read")
    else:
        yield UsageRow("money", _both(money.words, later.words if later else None))
    for spent in spent_of(used, price, run.tally.budget):
        share = fmt.percent(spent.share, 0)
        yield UsageRow(spent.key, f"{spent.words} ({share})", warns=spent.share >= WARN_AT)


def _energy(used: Usage, then: Usage | None) -> str:
    if used.energy_j is None:
        return "unknown: no power reading"
    later = None if then is None or then.energy_j is None else energy_text(then.energy_j)
    text = _both(energy_words(used), later)
    unread = used.unmetered_s
    return f"{text}; power not read for {fmt.duration(unread)}" if unread >= 1 else text


def _both(now: str, then: str | None) -> str:
    return f"{now}   about {then} at the end" if then else now


def nearest_limit(run: RunView) -> Spent | None:
    """Return the limit of the budget of which most is used; None without a budget."""
    known = spent_of(run.used, run.tally.price, run.tally.budget)
    return max(known, key=lambda spent: spent.share, default=None)
