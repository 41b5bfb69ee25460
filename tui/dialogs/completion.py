"""Completes a typed command: verbs, checkpoints, anomalies, samples and options by their names."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import takewhile

from fttui.engine.protocol.command_args import RESET
from fttui.engine.protocol.commands import COMMANDS

from ..view_model.app_state import AppState

_CHOICES: dict[str, tuple[str, ...]] = {
    "clip": ("p90", "off"),
    "pause": ("release",),
    "stop": ("no-save",),
    "checkpoint": ("pin",),
    "policy": ("nonfinite", "autopilot"),
    "policy nonfinite": ("skip", "halt", "rollback"),
    "policy autopilot": ("off", "propose", "act"),
}
"""Words that may follow a command, besides the names in a run."""
_ROLLBACK_OPTIONS = ("lr=", "clip=", "skip=")


def checkpoint_names(state: AppState) -> list[str]:
    """Return the names by which a rollback finds a checkpoint, newest first, then the copies."""
    copies = state.link.beat.checkpoint_copies if state.link.beat else {}
    return [*(c.name for c in reversed(state.run.checkpoints)), *sorted(copies)]


def anomaly_ids(state: AppState) -> list[str]:
    """Return the ids of the anomalies, newest first."""
    return [anomaly.event.id for anomaly in reversed(state.run.anomalies)]


def completions(text: str, state: AppState) -> list[str]:
    """Return the texts that a typed command can be continued to, the most likely first."""
    head, space, word = text.rpartition(" ")
    verbs = [c.verb for c in COMMANDS if c.verb.startswith(text) and c.verb != text]
    rest = [f"{head} {c}" for c in _following(" ".join(head.split()), state) if c.startswith(word)]
    return [*verbs, *(r for r in rest if space and r != text)]


def _following(head: str, state: AppState) -> Sequence[str]:
    """Return the words that may follow the words before the cursor."""
    verb, _, rest = head.partition(" ")
    match verb:
        case "rollback":
            given = {option.partition("=")[0] + "=" for option in rest.split()[1:]}
            options = [o for o in _ROLLBACK_OPTIONS if o not in given]
            return options if rest else [*checkpoint_names(state), "last"]
        case "soup":
            return [name for name in checkpoint_names(state) if name not in rest.split()]
        case "recover" | "culprit":
            return () if rest else anomaly_ids(state)
        case "quarantine":
            return ("lift",) if not rest else _kept_out(state) if rest == "lift" else ()
        case "mix":
            given = {option.rpartition("=")[0] for option in rest.split()}
            names = state.run.started.sources if state.run.started else []
            options = [f"{shlex.quote(name)}=" for name in names if name not in given]
            return options if rest else [*options, RESET]
        case _:
            return _CHOICES.get(head, ())


def _kept_out(state: AppState) -> Sequence[str]:
    return state.run.started.quarantine if state.run.started else ()


def completed(text: str, found: Sequence[str]) -> str:
    """Return the text continued as far as all completions agree; unchanged without any.

    A single completion is followed by a space, unless a value has to follow its `=`.
    """
    if not found:
        return text
    if len(found) == 1:
        return found[0] if found[0].endswith("=") else f"{found[0]} "
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(min(found), max(found), strict=False))
    return max(text, "".join(sign for sign, _ in alike), key=len)
