"""Say at which step a command took effect, in the same words in the app, `ctl` and headless runs.

The engine applies a command between two steps and records the number of finished ones, N. A change
applies from step N + 1 on, a pause holds before step N + 1, and a checkpoint belongs to step N.
"""

from __future__ import annotations

from fttui.engine.protocol.commands import AnyCommand, spec_of


def holds(command: AnyCommand | None) -> bool:
    """Whether the command pauses the run, so that it takes effect once training is held."""
    return command is not None and spec_of(command).effect == "before"


def effect(command: AnyCommand | None, step: int, place: str = "{:,}") -> str:
    """Return `applied from 641`, `done at 640` or `paused before 641`.

    Args:
        command: the command; for None, of an unknown kind, it is `done at 640`.
        step: the number of finished steps when the command took effect, such as 640.
        place: the format of the step in the text.
    """
    match "here" if command is None else spec_of(command).effect:
        case "before":
            return f"paused before {place.format(step + 1)}"
        case "next":
            return f"applied from {place.format(step + 1)}"
        case _:
            return f"done at {place.format(step)}"


def change(command: AnyCommand | None, old: str, new: str) -> str:
    """Return the old and the new value as ` (1 → 0.5)`; empty for a pause and without values."""
    values = "" if holds(command) else " → ".join(value for value in (old, new) if value)
    return f" ({values})" if values else ""
