"""Parts of events: a recommended command, the norms of a module."""

from __future__ import annotations

import msgspec

from .commands import AnyCommand, recorded_command


class RecommendedCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command that an anomaly's report recommends, and what it will do."""

    text: str
    """The command as a person would type it."""
    why: str = ""
    """What it will do, in whole sentences; empty in journals of older versions."""
    command: AnyCommand | None = None
    """The command; None in journals of older versions, and for a kind that this version lacks."""

    @property
    def typed(self) -> AnyCommand | None:
        """The command, parsed from its text where `command` is missing; None if it is unknown."""
        return self.command or recorded_command(self.text)


class ModuleFlow(msgspec.Struct, frozen=True, kw_only=True):
    """The norms of one module in an update."""

    module: str
    """Name of the module, such as `layers.3.q_proj`; its adapter matrices count together."""
    grad_norm: float
    """Gradient norm before clipping."""
    update_norm: float
    """Norm of the change of the weights; 0 when the guard refused the update."""
    weight_norm: float
