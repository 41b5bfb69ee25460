"""The limits of agents: which of their commands the hub accepts; it does no I/O.

An agent says with each command what it may do. The hub counts its accepted commands in the control
journal, so that a new connection or a new hub gives no agent a second budget. What only the engine
can know, the learning rate that a command will set, is limited there, by the `Leash` of the entry.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..config.sections.outward import AgentsConfig
from ..protocol.commands import (
    AnyCommand,
    Propose,
    Recover,
    Rollback,
    Stop,
    describe_command,
    spec_of,
)
from ..protocol.requests import SubmitCommand
from ..protocol.settings import Leash
from ..run.control_log import ControlEntry

_HOUR_S = 3600.0
_MODES = ("read", "propose", "act")
"""What agents may do, the least first."""


class AgentLimits:
    """The limits of all agents of one run together."""

    def __init__(self, config: AgentsConfig) -> None:
        self.config = config
        self._leash = Leash(lr_low=config.lr_low, lr_high=config.lr_high)

    def leash(self, message: SubmitCommand) -> Leash | None:
        """Return the limits that the engine keeps a command in; None if no agent sent it."""
        return None if message.agent is None else self._leash

    def why_not(
        self, message: SubmitCommand, entries: Sequence[ControlEntry], now: float
    ) -> str | None:
        """Return why an agent may not send a command, or None if it may or no agent sent it.

        Args:
            message: the submitted command.
            entries: all decisions so far.
            now: Unix seconds.
        """
        if message.agent is None:
            return None
        mine = [e for e in entries if e.leash is not None and e.rejected is None]
        return self._why_no_right(message) or self._why_spent(message.command, mine, now)

    def _why_no_right(self, message: SubmitCommand) -> str | None:
        command, config = message.command, self.config
        spec = spec_of(command)
        if _MODES.index(message.agent or "act") > _MODES.index(config.allow):
            return f"agents of this run may only {config.allow} (agents.allow)"
        if message.take:
            return "an agent cannot take control of a run"
        if spec.by_agents == "never":
            return f"only a person can {spec.verb} a proposal"
        if Stop(save=False) in (command, _proposed(command)):
            return "an agent stops a run only with a checkpoint"
        if not isinstance(command, Propose) and (
            message.agent == "propose" or spec.by_agents == "confirmed"
        ):
            return f"this agent may only propose it: propose {describe_command(command)}"
        return None

    def _why_spent(
        self, command: AnyCommand, mine: Sequence[ControlEntry], now: float
    ) -> str | None:
        # A clock that was set back must not free the budget, so later times count, too.
        recent = [e.time for e in mine if e.time > now - _HOUR_S]
        if len(recent) >= self.config.per_hour:
            wait_s = recent[-self.config.per_hour] + _HOUR_S - now
            return (
                f"agents have sent their {self.config.per_hour} commands and proposals of this "
                f"hour (agents.per_hour); the next one may come in {max(1.0, wait_s / 60):.0f} min"
            )
        gone_back = sum(isinstance(e.command, Rollback | Recover) for e in mine)
        if isinstance(command, Rollback | Recover) and gone_back >= self.config.rollbacks:
            return (
                f"agents have made their {self.config.rollbacks} rollbacks of this run "
                "(agents.rollbacks); propose it, so that a person can confirm it"
            )
        return None


def _proposed(command: AnyCommand) -> AnyCommand | None:
    return command.command if isinstance(command, Propose) else None
