"""The class of reasons why the data trained on differ from the data as stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Unit = Literal["records", "turns", "messages", "columns", "keys", "files", "evaluation records"]
EVERYTHING = "all"
"""The entry of `data.accept` that accepts every reason."""


@dataclass(frozen=True)
class Reason:
    """A way in which the data trained on differ from the data as stored."""

    name: str
    """Its name in `data.accept`."""
    unit: Unit
    """The unit that is counted, and whose total the share refers to."""
    text: str
    """The finding, such as `truncated to data.max_length`."""
    remedy: str
    """The step that avoids the finding."""
    limit: float | None = None
    """Largest share that needs no consent, from 0 to 1; None: the finding is only shown."""
    drops: bool = False
    """Whether records that were read are left out, which explains data without any record."""
