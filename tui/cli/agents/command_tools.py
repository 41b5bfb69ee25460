"""The command tools of `fttui mcp`, made from the command table: names, arguments, and sending."""

from __future__ import annotations

from dataclasses import dataclass
from shlex import quote
from typing import Any

import msgspec

from fttui.engine.errors import CommandRejected, ConfigError
from fttui.engine.protocol.command_args import CommandError
from fttui.engine.protocol.commands import (
    COMMANDS,
    AnyCommand,
    CommandSpec,
    Propose,
    TrainingCommand,
    command_words,
    parse_command,
    proposal_name,
)
from fttui.engine.protocol.settings import AgentMode
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.run.run_index import learning_rate

from ...connection.command_outcome import CommandOutcome, send_command
from ...connection.local import LocalSession
from ...connection.viewer_identity import issuer
from ..control import require_confirmed, require_engine, sentence

TIMEOUT_S = 120.0
"""Seconds that a call waits for the outcome of a command."""
RUN_ARGUMENT = {
    "type": "string",
    "description": "name of the run, a unique beginning of it, or its folder",
}
_REASON = {
    "type": "string",
    "pattern": r"\S",
    "description": "why, for the journal and the person; it must not be blank",
}
_IF_MEANT = "; approach it in smaller steps, or ask the person to set it"
_PROPOSE = {
    "type": "boolean",
    "default": False,
    "description": "propose it to a person instead of sending it",
}


@dataclass(frozen=True)
class CommandTool:
    """One command of the table as a tool."""

    spec: CommandSpec
    mode: AgentMode

    @property
    def name(self) -> str:
        """The name of the tool, such as `lr_scale`."""
        return self.spec.verb.replace(" ", "_")

    @property
    def only_proposed(self) -> bool:
        """Whether a call always proposes the command."""
        return self.mode == "propose" or self.spec.by_agents == "confirmed"

    @property
    def description(self) -> str:
        """What the tool does, from the row of the table."""
        start = "Propose to a person, who confirms or declines it" if self.only_proposed else "Send"
        return f"{start}: {self.spec.help}. Typed form: {self.spec.usage}"

    @property
    def input_schema(self) -> dict[str, Any]:
        """The JSON schema of the arguments: those of the command, the run and the reason."""
        made = msgspec.json.schema(self.spec.command)["$defs"][self.spec.command.__name__]
        own = {name: value for name, value in made["properties"].items() if name != "k"}
        needed = [name for name in made["required"] if name != "k"]
        also = {} if self.only_proposed else {"propose": _PROPOSE}
        return {
            "type": "object",
            "properties": {"run": RUN_ARGUMENT, **own, "reason": _REASON, **also},
            "required": ["run", *needed, "reason"],
            "additionalProperties": False,
        }

    def read(self, arguments: dict[str, Any]) -> tuple[TrainingCommand, str, bool]:
        """Return the command, the reason, and whether to propose it.

        Args:
            arguments: arguments that the input schema allows.

        Raises:
            ConfigError: they make no command that could be typed.
        """
        own = {k: v for k, v in arguments.items() if k not in {"run", "reason", "propose"}}
        proposes = self.only_proposed or arguments.get("propose", False)
        return self._command(own), arguments["reason"], proposes

    def _command(self, own: dict[str, Any]) -> TrainingCommand:
        kind = self.spec.command
        try:
            if not own:  # then it is the verb alone, so that what is left out is never guessed
                parse_command(self.spec.verb.split())
            made = msgspec.convert({"k": kind.__struct_config__.tag, **own}, kind)
            parse_command(command_words(made))  # type: ignore[arg-type]  # of the table
        except (msgspec.ValidationError, CommandError) as error:
            raise ConfigError(f"{self.name}: {error}; typed form: {self.spec.usage}") from None
        if not isinstance(made, TrainingCommand):
            raise ConfigError(f"{self.name} cannot be proposed")
        return made


def command_tools(mode: AgentMode) -> dict[str, CommandTool]:
    """Return the tools for all commands that an agent may send or propose, by name."""
    tools = [
        CommandTool(spec, mode)
        for spec in COMMANDS
        if spec.by_agents != "never" and spec.command is not Propose
    ]
    return {tool.name: tool for tool in tools}


def send(
    run: RunDirectory, tool: CommandTool, arguments: dict[str, Any], client: str
) -> dict[str, Any]:
    """Send or propose the command of a call, wait for its outcome, and return it.

    Args:
        run: the run.
        tool: the tool that is called.
        arguments: the arguments of the call.
        client: name of the client, for the journal.

    Raises:
        ConfigError: the arguments are invalid.
        CommandRejected: the command looks like a typing error, was refused, or has failed.
        EngineGone: no engine is running for the run.
    """
    command, reason, proposes = tool.read(arguments)
    require_engine(run)
    require_confirmed(command, learning_rate(run), way_out=_IF_MEANT)
    session = LocalSession(run, one_shot=True, agent="propose" if proposes else tool.mode)
    session.issuer = f"agent {client} of {issuer()}"
    sent: AnyCommand = Propose(command=command) if proposes else command
    outcome = send_command(session, sent, reason=reason, timeout_s=TIMEOUT_S)
    if outcome.status in {"rejected", "failed", "unanswered"}:
        raise CommandRejected(sentence(sent, outcome))
    return _proposed(run, outcome) if proposes else _told(sent, outcome)


def _told(command: AnyCommand, outcome: CommandOutcome) -> dict[str, Any]:
    return {
        "outcome": sentence(command, outcome),
        "status": outcome.status,
        "step": outcome.step,
        "old": outcome.old,
        "new": outcome.new,
        **({"answers": outcome.answers} if outcome.answers else {}),
    }


def _proposed(run: RunDirectory, outcome: CommandOutcome) -> dict[str, Any]:
    name = proposal_name(outcome.id)
    return {
        "proposal": name,
        "status": "waits for a person",
        "next": "a person confirms it in the app, or with: "
        f"fttui ctl {quote(run.id)} confirm {quote(name)}; show_run shows the outcome",
    }
