"""What the next prompt of a chat is sent with: system prompt, temperature, length, conversation."""

from __future__ import annotations

from dataclasses import dataclass

from fttui.engine.protocol.command_kinds import DEFAULT_TOKENS, Chat

from .exchange import Exchanges


@dataclass(frozen=True)
class ChatDraft:
    """The settings of the next prompt."""

    system: str = ""
    temperature: float = 0.0
    tokens: int = DEFAULT_TOKENS
    conversation: str = ""
    """Name of the conversation; empty for the newest one."""
    checkpoint: str = ""
    """The checkpoint that answers beside the base; empty for the current weights."""

    def named(self, known: Exchanges) -> str:
        """Return the name of the conversation that the next prompt belongs to."""
        names = [one.asked.conversation for one in known if one.asked.conversation]
        return self.conversation or (names[-1] if names else "c1")

    def command(self, prompt: str, known: Exchanges) -> Chat:
        """Return the command that asks a prompt after the turns of its conversation."""
        name = self.named(known)
        turns = [one.turn for one in known if one.asked.conversation == name and one.answered]
        return Chat(
            prompt=prompt,
            system=self.system,
            temperature=self.temperature,
            tokens=self.tokens,
            seed=len(known),
            conversation=name,
            turns=tuple(turns),
            checkpoint=self.checkpoint,
        )


def unused_name(known: Exchanges) -> str:
    """Return a name that no conversation has, such as `c3`."""
    names = {one.asked.conversation for one in known}
    return next(name for n in range(1, len(names) + 2) if (name := f"c{n}") not in names)
