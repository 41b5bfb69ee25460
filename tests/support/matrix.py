"""Wide matrices of tests: `make test` runs a representative part, `make test-long` all of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def in_part(values: Iterable[Any], kept: Collection[Any]) -> list[Any]:
    """Return parameters for `parametrize`, all but the kept ones marked `long`.

    Args:
        values: all values of the matrix; a tuple gives several arguments.
        kept: the values that represent the others in `make test`.
    """
    values = list(values)
    if unknown := [value for value in kept if value not in values]:
        raise ValueError(f"{unknown} is not among the values of the matrix")
    return [
        value
        if value in kept
        else pytest.param(
            *(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.long
        )
        for value in values
    ]
