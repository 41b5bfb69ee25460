"""Whether two runs train each step on the same batch with the same loss, by their settings."""

from __future__ import annotations

from collections.abc import Iterable

_DECIDE_BATCHES = (
    "data",
    "task",
    "model.id",
    "model.revision",
    "model.add_tokens",
    "train.seed",
    "train.batch",
    "train.accumulate",
    "train.sequences_per_update",
    "train.devices",
    "train.nodes",
)
"""Settings, or sections of them, that decide which tokens a step trains and in which order."""
_DECIDE_LOSS = (
    "contrastive",
    "preference",
    "reward",
    "train.label_smoothing",
    "train.focal",
    "train.router_aux_loss",
)
"""Settings that decide what the loss is, so that its values cannot be compared."""
_DECIDING_COMMANDS = ("skip", "quarantine", "mix")
"""Verbs of commands that change which records the later steps train."""


def unpaired_settings(names: Iterable[str]) -> list[str]:
    """Return those settings that change the batches of a step or what its loss is."""
    deciding = (*_DECIDE_BATCHES, *_DECIDE_LOSS)
    return [n for n in names if any(n == one or n.startswith(f"{one}.") for one in deciding)]


def unpaired_changes(changes: Iterable[str]) -> list[str]:
    """Return those interventions, such as `step 640: skip 2`, that change later batches."""
    return [text for text in changes if text.partition(": ")[2].startswith(_DECIDING_COMMANDS)]
