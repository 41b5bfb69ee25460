"""The interface of agreement between ranks, and its implementation for a single rank; no torch.

Control, monitoring and checkpoints depend on `Agreement`. `rank_agreement.RankAgreement` implements
it for several ranks over gloo.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...errors import FttuiError

T = TypeVar("T")
Table = NDArray[np.float64]
"""One row of values per rank, `[ranks, values]`."""


@dataclass(frozen=True)
class PendingResult(Generic[T]):
    """The result of a collective that has been started."""

    read: Callable[[], T]
    """Wait for the other ranks and return the result; called once."""


class Agreement(Protocol):
    """Collectives that every rank enters at the same point of a step."""

    @property
    def rank(self) -> int:
        """The rank of this process."""

    @property
    def world_size(self) -> int:
        """The number of ranks."""

    @property
    def alone(self) -> bool:
        """Whether there is only one rank."""

    def start_max(self, values: list[int]) -> PendingResult[list[int]]:
        """Start an element-wise maximum over all ranks."""

    def max(self, values: list[int]) -> list[int]:
        """Return the element-wise maximum over all ranks."""

    def start_table(self, values: list[float]) -> PendingResult[Table]:
        """Start to gather the values of every rank, ordered by rank; NaN and infinity survive."""

    def rows(self, values: list[float]) -> list[list[float]]:
        """Return the values of every rank, ordered by rank; NaN and infinity survive."""

    def share(self, data: bytes) -> bytes:
        """Return the bytes of rank 0 on every rank."""

    def gather(self, data: bytes) -> list[bytes]:
        """Return the bytes of every rank, ordered by rank."""

    def errors(self, error: str | None) -> list[str]:
        """Return the errors of all ranks, each with its rank; empty if there is none."""


class SingleRank:
    """Agreement of a run with one rank: every collective returns what was passed in."""

    rank = 0
    world_size = 1
    alone = True

    def start_max(self, values: list[int]) -> PendingResult[list[int]]:
        """Return the values themselves as a finished result."""
        return PendingResult(lambda: values)

    def max(self, values: list[int]) -> list[int]:
        """Return the values themselves, as those of the only rank."""
        return values

    def start_table(self, values: list[float]) -> PendingResult[Table]:
        """Return one row with the values as a finished result."""
        return PendingResult(lambda: np.array([values]))

    def rows(self, values: list[float]) -> list[list[float]]:
        """Return one row with the values."""
        return [values]

    def share(self, data: bytes) -> bytes:
        """Return the bytes themselves, as those of the only rank."""
        return data

    def gather(self, data: bytes) -> list[bytes]:
        """Return a list with the bytes of the only rank."""
        return [data]

    def errors(self, error: str | None) -> list[str]:
        """Return the error of the only rank, without a rank number; empty if there is none."""
        return [error] if error else []


def attempt(action: Callable[[], object]) -> str | None:
    """Run an action and return its error in one line, or None; for `Agreement.errors`."""
    try:
        action()
    except FttuiError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 -- every rank must receive any error
        return f"{type(error).__name__}: {error}"
    return None
