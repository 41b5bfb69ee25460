"""Restarts by torchrun: the number of restarts so far and how many are allowed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class LaunchAttempt:
    """One start of the ranks by torchrun."""

    number: int = 0
    """Number of restarts so far."""
    limit: int = 0
    """Number of restarts allowed."""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> LaunchAttempt:
        """Return the attempt from the environment of torchrun, or the only one without torchrun."""
        return cls(
            int(environment.get("TORCHELASTIC_RESTART_COUNT", "0")),
            int(environment.get("TORCHELASTIC_MAX_RESTARTS", "0")),
        )

    @property
    def repeated(self) -> bool:
        """Whether an earlier attempt crashed."""
        return self.number > 0

    @property
    def may_repeat(self) -> bool:
        """Whether another attempt follows if this one crashes."""
        return self.number < self.limit
