"""The base class of all sections, and the ranges of numbers."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Positive = Annotated[float, Meta(gt=0)]
NonNegative = Annotated[float, Meta(ge=0)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Share = Annotated[float, Meta(gt=0, le=1)]
Momentum = Annotated[float, Meta(ge=0, lt=1)]
Dropout = Annotated[float, Meta(ge=0, lt=1)]
Temperature = Annotated[float, Meta(ge=0.001, le=1)]
MOST = 10**9
"""Largest whole number accepted; larger ones would overflow where they are used."""
Count = Annotated[int, Meta(ge=1, le=MOST)]
CountOrZero = Annotated[int, Meta(ge=0, le=MOST)]
Seed = Annotated[int, Meta(ge=0, le=2**32 - 1)]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of all sections."""
