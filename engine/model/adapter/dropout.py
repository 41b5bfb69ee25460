"""Dropout before the adapter, changed while the model is in use."""

from __future__ import annotations

from collections.abc import Iterator

from peft.tuners.lora import LoraLayer
from torch import nn


def dropout_of(model: nn.Module) -> float | None:
    """Return the rate of the dropout before the adapters of a model; None without adapters."""
    return next((_rate(dropouts[name]) for dropouts, name in _dropouts(model)), None)


def set_dropout(model: nn.Module, rate: float) -> bool:
    """Give every adapter a dropout of this rate, as a new adapter would have it.

    A rate of 0 draws no random numbers. Return whether a rate has changed.
    """
    changed = False
    for dropouts, name in list(_dropouts(model)):
        present = dropouts[name]
        if _rate(present) != rate:
            new = nn.Dropout(rate) if rate else nn.Identity()
            dropouts[name] = new.train(present.training)
            changed = True
    return changed


def _rate(dropout: nn.Module) -> float:
    return dropout.p if isinstance(dropout, nn.Dropout) else 0.0


def _dropouts(model: nn.Module) -> Iterator[tuple[nn.ModuleDict, str]]:
    for module in model.modules():
        if isinstance(module, LoraLayer):
            yield from ((module.lora_dropout, name) for name in module.lora_dropout)
