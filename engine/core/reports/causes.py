"""Likely causes of an anomaly, ranked by the evidence for each."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from ..anomaly import Alert
from .advice import CAUSES
from .row_losses import BATCH, ONE_RECORD, WEIGHTS, RowEvidence

LONG = 1.5
"""A sample is long if it has more than this many times the tokens of the step before's longest."""
MOSTLY_CLIPPED = 0.5
"""Share of clipped steps above which the learning rate may be too high."""
GRAD_LOUD = 3.0
"""Multiple of the usual gradient norms above which the batch itself is suspect."""
MANY_EPOCHS = 3.0
"""Epochs from which overfitting is likely."""


class Signs(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence that distinguishes the causes; None or empty if unknown."""

    grad_ratio: float | None = None
    """Gradient norm divided by the upper end of its usual range."""
    lr_raised: list[str] = []
    """Changes of the learning rate in the last 50 steps."""
    lr_scale: float = 1.0
    clip_share: float | None = None
    """Share of recent steps that were clipped."""
    loss_scale: float | None = None
    """Loss scale of fp16 training."""
    longest: int | None = None
    """Tokens of the longest sample of this batch."""
    longest_before: int | None = None
    """The same of the previous batch."""
    repeated: list[str] = []
    """Ids of samples that are in this batch more than once."""
    odd_modules: list[str] = []
    """Modules with a dead or exploding gradient."""
    epoch: float | None = None
    rows: RowEvidence | None = None
    """What the losses of rows say."""


def rank_causes(alert: Alert, signs: Signs) -> list[str]:
    """Return the causes of an alert, those with most evidence first, each with its evidence."""
    causes = CAUSES.get(alert.kind, ())
    found = [(cause, _evidence(cause, signs)) for cause in causes]
    ranked = sorted(found, key=lambda pair: -len(pair[1]))
    return [f"{cause} ({'; '.join(why)})" if why else cause for cause, why in ranked]


def _evidence(cause: str, signs: Signs) -> list[str]:
    return [text for words, find in _FINDERS for text in find(signs) if words in cause]


def _rate(signs: Signs) -> list[str]:
    found = [f"changed recently: {change}" for change in signs.lr_raised]
    if signs.lr_scale > 1:
        found.append(f"it is ×{signs.lr_scale:g} of the schedule")
    if signs.clip_share is not None and signs.clip_share > MOSTLY_CLIPPED:
        found.append(f"{signs.clip_share:.0%} of recent steps were clipped")
    if _origin(signs) == WEIGHTS:
        found.append(
            "the losses of the previous step's rows are higher than when they were trained"
        )
    return found


def _batch(signs: Signs) -> list[str]:
    found = []
    if signs.grad_ratio is not None and signs.grad_ratio > GRAD_LOUD:
        found.append(f"the gradient norm of this step is {_times(signs.grad_ratio)}")
    if signs.longest and signs.longest_before and signs.longest > LONG * signs.longest_before:
        found.append(
            f"a sample of {signs.longest} tokens; the longest of the step before has "
            f"{signs.longest_before}"
        )
    if _origin(signs) == ONE_RECORD:
        found.append("all rows but one record have their usual loss")
    if _origin(signs) == BATCH:
        found.append("all its rows have a high loss, and those of the previous step do not")
    if signs.repeated:
        found.append(f"twice or more in the batch: {', '.join(signs.repeated[:3])}")
    return found


def _times(ratio: float) -> str:
    """Return how a gradient norm compares with the upper end of its usual range."""
    if not math.isfinite(ratio):
        return "not finite"
    return f"×{ratio:.3g} the upper end of its usual range"


def _origin(signs: Signs) -> str:
    return signs.rows.origin if signs.rows is not None else ""


def _precision(signs: Signs) -> list[str]:
    found = [f"loss scale {signs.loss_scale:g}"] if signs.loss_scale is not None else []
    overflow = signs.grad_ratio is not None and not math.isfinite(signs.grad_ratio)
    return found + (["the gradient norm is not finite"] if overflow else [])


def _state(signs: Signs) -> list[str]:
    return [f"modules: {', '.join(signs.odd_modules[:3])}"] if signs.odd_modules else []


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
"""Words of a cause, and the function that finds evidence for causes with these words."""
