"""Usage of time, energy and money in words."""

from __future__ import annotations

from fttui.engine.protocol.usage.amounts import Price, Usage
from fttui.engine.protocol.usage.cost import energy_words, money_of

from . import format as fmt


def energy_and_money(used: Usage, price: Price | None) -> list[str]:
    """Return the energy and the money of a usage in words, as far as they are known."""
    money = money_of(used, price)
    energy = [] if used.energy_j is None else [energy_words(used)]
    return [*energy, *([] if money is None else [money.words])]


def used_words(used: Usage, price: Price | None) -> str:
    """Return time, energy and money of a usage as one text; what is unknown is named."""
    money = money_of(used, price)
    parts = [fmt.duration(used.seconds), energy_words(used)]
    return ", ".join([*parts, *([] if money is None else [money.words])])


def use_per_s(earlier: Usage | None, newest: Usage | None) -> Usage | None:
    """Return the usage in a second between two measurements; None if nothing is known."""
    if newest is None or earlier is None:
        return None
    between = newest.since(earlier)
    return between.scaled(1 / between.seconds) if between.seconds > 0 else None
