"""Which `train.strategy` fits on several devices, and what else has to change, cheapest first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from ...text.format import size

if TYPE_CHECKING:
    from fttui.engine.config.memory.architecture import Architecture
    from fttui.engine.config.memory.fit import ConfigChange, Fit
    from fttui.engine.config.memory.hardware import Hardware
    from fttui.engine.config.schema import RunConfig

Strategy = Literal["ddp", "hybrid", "fsdp"]
STRATEGIES: tuple[Strategy, ...] = ("ddp", "hybrid", "fsdp")
"""By their traffic between devices, the least first."""
SHOWN = 3
"""Changes that are named in a line; the others are counted."""


def strategy_lines(
    config: RunConfig, architecture: Architecture, hardware: Hardware
) -> Iterator[str]:
    """Yield a line for each strategy: its memory per rank, whether it fits, or after what change.

    The cheapest is named last: the one with the fewest changes, of these the one with the least
    traffic between devices. There are no lines for a single rank, and none on a CPU.
    """
    if config.train.ranks < 2 or hardware.kind != "cuda":
        return
    yield f"strategies on {config.train.ranks} devices (train.strategy):"
    costs: dict[Strategy, int] = {}
    for strategy in STRATEGIES:
        tried = replace(config, train=replace(config.train, strategy=strategy))
        if strategy == "hybrid" and config.train.nodes == 1:
            continue
        cost, text = _outcome(tried, architecture, hardware)
        if cost is not None:
            costs[strategy] = cost
        yield f"  {strategy:<7} {text}"
    if costs:
        best = min(costs, key=lambda one: costs[one])
        yield f"  cheapest: {best}" + (", as configured" if best == config.train.strategy else "")


def _outcome(
    config: RunConfig, architecture: Architecture, hardware: Hardware
) -> tuple[int | None, str]:
    """Return the number of changes after which a strategy fits, None if it does not, and a text."""
    from fttui.engine.config.memory.fit import fit

    if refused := _refusal(config, architecture):
        return None, f"not possible: {refused}"
    found = fit(config, architecture, hardware)
    estimate = found.estimate
    need = f"{size(estimate.likely)} likely, at most {size(estimate.high)}"
    if estimate.high <= found.free_bytes:
        chosen = f" with {', '.join(found.chosen)}" if found.chosen else ""
        return len(found.chosen), f"{need}: fits{chosen}"
    changes = list(_changes(found))
    if changes and changes[-1].need.high <= found.free_bytes:
        last = changes[-1].need
        named = "; ".join(change.text for change in changes[:SHOWN])
        more = f"; and {len(changes) - SHOWN} more" if len(changes) > SHOWN else ""
        return len(changes), f"{need}: fits with {size(last.likely)} after: {named}{more}"
    if estimate.likely <= found.free_bytes:
        return 1, f"{need}: likely fits"
    least = f" (least {size(changes[-1].need.likely)})" if changes else ""
    return None, f"{need}: does not fit{least}"


def _changes(found: Fit) -> Iterator[ConfigChange]:
    """Yield the changes that come before another strategy, the least costly first."""
    from fttui.engine.config.memory.fit import changes_to_fit

    kept = found.config.train.strategy
    for change in changes_to_fit(found.estimate, found.free_bytes, found.config):
        if change.config.train.strategy != kept:
            return
        yield change


def _refusal(config: RunConfig, architecture: Architecture) -> str:
    """Return why the run cannot use its strategy; empty if it can."""
    from fttui.engine.config.checks.sharding import (
        check_sharding,
        sharded_experts,
        sharded_vision,
    )

    problems = list(check_sharding(config))
    if architecture.mixture is not None:
        problems += sharded_experts(config)
    if architecture.sees_images:
        problems += sharded_vision(config)
    return f"{problems[0].key}: {problems[0].text.split('; ')[0]}" if problems else ""
