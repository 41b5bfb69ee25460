"""The words for where a command took effect, the same in the app, in `ctl` and in headless output.

The engine applies a command between two steps and records the number of finished ones, N. A change
applies from step N + 1 on, a pause holds before step N + 1, and a checkpoint belongs to step N.
"""

from __future__ import annotations

from fttui.engine.protocol.commands import AnyCommand, spec_of


def holds(command: AnyCommand | None) -> bool:
    """Whether the command holds the run, which a step in progress may delay to its end."""
    return command is not None and spec_of(command).effect == "before"


def effect(command: AnyCommand | None, step: int, place: str = "{:,}") -> str:
    """Return `applied from 641`, `done at 640` or `paused before 641`, for 640 finished steps."""
    match "here" if command is None else spec_of(command).effect:
        case "before":
            return f"paused before {place.format(step + 1)}"
        case "next":
            return f"applied from {place.format(step + 1)}"
        case _:
            return f"done at {place.format(step)}"


def change(command: AnyCommand | None, old: str, new: str) -> str:
    """Return ` (1 → 0.5)`; empty for a pause and where the journal has no values."""
    values = "" if holds(command) else " → ".join(value for value in (old, new) if value)
    return f" ({values})" if values else ""
