"""What the checks of a configuration find."""

from __future__ import annotations

from dataclasses import dataclass

STDLIB_PAIRS = "stdlib:pairs"
"""The data source that is built from the Python standard library."""


@dataclass(frozen=True)
class Problem:
    """Something that keeps a configuration from running."""

    key: str
    """The key to change, such as `train.batch`."""
    text: str
    """What is wrong and what to do."""
