"""Where in the run a command took effect, said alike by the app, `ctl` and the lines of a run.

Between two steps the engine counts the finished ones. What was changed there counts from the next
step on, and a pause holds before it; only a deed, such as a checkpoint, belongs to the one before.
"""

from __future__ import annotations

_FROM_THE_NEXT = frozenset(
    {"lr", "clip", "policy", "resume", "run", "skip", "gradients", "profile"}
)
_PAUSE = "pause"


def is_pause(command: str) -> bool:
    """It holds the run; the engine takes it up at once, but a step under way may end first."""
    return _verb(command) == _PAUSE


def effect(command: str, step: int, place: str = "{:,}") -> str:
    """`applied from 641`, `done at 640` or `paused before 641`, for 640 finished steps."""
    if is_pause(command):
        return f"paused before {place.format(step + 1)}"
    if _verb(command) in _FROM_THE_NEXT:
        return f"applied from {place.format(step + 1)}"
    return f"done at {place.format(step)}"


def change(command: str, old: str, new: str) -> str:
    """` (1 → 0.5)`; empty where the effect says it already, or there are no values to tell."""
    told = "" if is_pause(command) else " → ".join(value for value in (old, new) if value)
    return f" ({told})" if told else ""


def _verb(command: str) -> str:
    return command.partition(" ")[0]
