"""Ranks in words: which are slow, by how much and for how long, and the range of a figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..text import format as fmt
from ..view_model.ranks.standing import Standing, by_node

NAMED = 3
"""Slow ranks that are named in a line; the others are counted."""


def place_of(one: Standing, *, several: bool) -> str:
    """Return the number of a rank, with its node and host where there are several nodes."""
    return f"rank {one.rank} on node {one.node} ({one.host})" if several else f"rank {one.rank}"


def slow_words(ranks: Sequence[Standing]) -> list[str]:
    """Return a line for each of the slowest ranks, worst first, and one for the rest of them.

    A node of which all ranks are slow has one line.
    """
    nodes = by_node(ranks, "slowest")
    lines: list[tuple[float, str]] = []
    for node in nodes:
        slow = [one for one in node if one.slow]
        if len(nodes) > 1 and len(node) > 1 and len(slow) == len(node):
            where = f"node {node[0].node} ({node[0].host}) is slow, all its {len(node)} ranks"
            lines.append((node[0].behind, f"{where}: up to {_how_much(slow[0])}"))
        else:
            lines += [(one.behind, _alone(one, several=len(nodes) > 1)) for one in slow]
    lines.sort(key=lambda line: -line[0])
    rest = [f"and {len(lines) - NAMED} more"] if len(lines) > NAMED else []
    return [text for _, text in lines[:NAMED]] + rest


def _alone(one: Standing, *, several: bool) -> str:
    return f"{place_of(one, several=several)} is slow: {_how_much(one)}"


def _how_much(one: Standing) -> str:
    return f"{fmt.percent(one.behind, 0)} behind the median of the others {_since(one)}"


def _since(one: Standing) -> str:
    if one.slow_since is None:
        return f"for {one.slow_steps:,} steps or more"
    return f"for {fmt.plural(one.slow_steps, 'step')}, since step {one.slow_since:,}"


def standing_lines(one: Standing) -> list[str]:
    """Return a line for each known figure of a rank."""
    figures = (
        ("time in a step", one.seconds, fmt.duration),
        ("against the others", one.behind, lambda value: f"{100 * value:+.1f} %"),
        ("tokens/s", one.tokens_per_s, lambda value: f"{value:,.0f}"),
        ("memory", one.mem_bytes, fmt.size),
        ("GPU", one.util, "{:.0f} %".format),
        ("temperature", one.temp_c, "{:.0f} °C".format),
        ("power", one.power_w, "{:.0f} W".format),
    )
    return [f"{name:<19}{text(value)}" for name, value, text in figures if value is not None]


def spread(values: Sequence[float | None], text: Callable[[float], str]) -> str:
    """Return the lowest and the highest of the figures of all ranks, or that none is known."""
    known = [value for value in values if value is not None]
    if not known:
        return "not measured"
    low, high = text(min(known)), text(max(known))
    return low if low == high else f"{low} to {high}"
