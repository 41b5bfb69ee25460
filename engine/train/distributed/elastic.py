"""Restarts by torchrun: one more attempt of the same run, from its last checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class LaunchAttempt:
    """Which start of the ranks this is."""

    number: int = 0
    """Restarts so far."""
    limit: int = 0
    """Restarts allowed."""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> LaunchAttempt:
        """As torchrun tells it; without torchrun there is one attempt."""
        return cls(
            int(environment.get("TORCHELASTIC_RESTART_COUNT", "0")),
            int(environment.get("TORCHELASTIC_MAX_RESTARTS", "0")),
        )

    @property
    def repeated(self) -> bool:
        """An earlier attempt crashed."""
        return self.number > 0

    @property
    def may_repeat(self) -> bool:
        """If this one crashes, another follows."""
        return self.number < self.limit
