"""Likely causes of an anomaly, ranked by what was seen. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from ..anomaly import Alert
from .advice import CAUSES

LONG = 1.5
MOSTLY_CLIPPED = 0.5
GRAD_LOUD = 3.0
MANY_EPOCHS = 3.0


class Signs(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence that tells causes apart; None or empty where unknown."""

    grad_ratio: float | None = None
    """Gradient norm over the upper end of its normal range."""
    lr_raised: list[str] = []
    """Changes of the learning rate in the last 50 steps."""
    lr_scale: float = 1.0
    clip_share: float | None = None
    loss_scale: float | None = None
    longest: int | None = None
    """Tokens of the longest sample of this batch."""
    longest_before: int | None = None
    repeated: list[str] = []
    """Ids that are in this batch more than once."""
    odd_modules: list[str] = []
    epoch: float | None = None


def rank_causes(alert: Alert, signs: Signs) -> list[str]:
    """The causes of a kind, those with evidence first, each with what speaks for it."""
    causes = CAUSES.get(alert.kind, ())
    told = [(cause, _evidence(cause, signs)) for cause in causes]
    order = sorted(range(len(told)), key=lambda i: (-len(told[i][1]), i))
    return [f"{told[i][0]} ({'; '.join(told[i][1])})" if told[i][1] else told[i][0] for i in order]


def _evidence(cause: str, signs: Signs) -> list[str]:
    return [text for words, find in _FINDERS for text in find(signs) if words in cause]


def _rate(signs: Signs) -> list[str]:
    found = [f"changed lately: {change}" for change in signs.lr_raised]
    if signs.lr_scale > 1:
        found.append(f"×{signs.lr_scale:g} of the schedule")
    if signs.clip_share is not None and signs.clip_share > MOSTLY_CLIPPED:
        found.append(f"{signs.clip_share:.0%} of recent steps were clipped")
    return found


def _batch(signs: Signs) -> list[str]:
    found = []
    if signs.grad_ratio is not None and signs.grad_ratio > GRAD_LOUD:
        found.append(f"the gradient of this very step is ×{signs.grad_ratio:.3g} the usual ones")
    if signs.longest and signs.longest_before and signs.longest > LONG * signs.longest_before:
        found.append(f"a sample of {signs.longest} tokens, {signs.longest_before} the step before")
    if signs.repeated:
        found.append(f"more than once in it: {', '.join(signs.repeated[:3])}")
    return found


def _precision(signs: Signs) -> list[str]:
    found = [f"loss scale {signs.loss_scale:g}"] if signs.loss_scale is not None else []
    overflow = signs.grad_ratio is not None and not math.isfinite(signs.grad_ratio)
    return found + (["the gradient norm is not finite"] if overflow else [])


def _state(signs: Signs) -> list[str]:
    return [f"odd: {', '.join(signs.odd_modules[:3])}"] if signs.odd_modules else []


def _epochs(signs: Signs) -> list[str]:
    many = signs.epoch is not None and signs.epoch >= MANY_EPOCHS
    return [f"epoch {signs.epoch:.1f}"] if many and signs.epoch is not None else []


_FINDERS: tuple[tuple[str, Callable[[Signs], list[str]]], ...] = (
    ("learning rate", _rate),
    ("batch", _batch),
    ("fp16", _precision),
    ("unstable state", _state),
    ("epochs", _epochs),
)
"""Words of a cause and what looks for its evidence."""
