"""The events of a chat: what was asked, answers as they grow, and answers in full."""

from __future__ import annotations

import msgspec


class ChatEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="k"):
    """Base of the events of a chat, with the tag of all events."""


class ChatAsked(ChatEvent, frozen=True, kw_only=True, tag="ChatAsked"):
    """A prompt is about to be answered; the answers follow, one after the other."""

    conversation: str
    """Name of the conversation that it belongs to; empty for a prompt on its own."""
    prompt: str
    system: str = ""
    """The system prompt; empty without one."""
    temperature: float = 0.0
    """Temperature of the sampling; 0 for greedy decoding."""
    tokens: int = 0
    """Largest number of tokens of an answer."""
    checkpoint: str = ""
    """The checkpoint whose weights answer beside the base; empty for the current weights."""
    answerers: tuple[str, ...] = ()
    """Who answers, in this order: `base` and `adapter`, or `model` where no base is in memory."""
    notes: tuple[str, ...] = ()
    """Notes for the user, such as why the base model does not answer."""


class ChatContinued(ChatEvent, frozen=True, kw_only=True, tag="ChatContinued"):
    """An answer has grown: up to `start` it is as before, and `text` follows."""

    answerer: str
    """Who answers: base, adapter or model."""
    start: int
    """Number of characters of the answer that are unchanged."""
    text: str


class ChatAnswered(ChatEvent, frozen=True, kw_only=True, tag="ChatAnswered"):
    """An answer is complete."""

    answerer: str
    """Who has answered: base, adapter or model."""
    text: str
    """The whole answer."""
    tokens: int = 0
    """Number of generated tokens."""
    seconds: float = 0.0
    ending: str = ""
    """Why it ends: `end` (the model ended it), `limit` (of the tokens), `stopped` (the run is to
    stop) or `failed`."""


AnyChatEvent = ChatAsked | ChatContinued | ChatAnswered
