"""Parse a chat as a person types it, and return the words of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ..command_args import CommandError, count, number, text_of
from ..command_kinds import DEFAULT_TOKENS, Chat, ChatTurn

MOST_TOKENS = 4096
"""Largest number of tokens of an answer; training waits for it."""
MOST_TEMPERATURE = 10.0
_END = "--"
"""The word after which everything is the prompt."""


def parse_chat(args: list[str]) -> Chat:
    """Parse options such as `temperature=0.7`, which come first, and the prompt.

    Raises:
        CommandError: an option has no valid value, or there is no prompt.
    """
    options: dict[str, Any] = {}
    at = 0
    while at < len(args) and (key := _option(args[at])):
        name, read = _OPTIONS[key]
        if name in options:
            raise CommandError(f"{key} is given twice; give it once")
        options[name] = read(args[at].partition("=")[2])
        at += 1
    at += args[at : at + 1] == [_END]
    return Chat(prompt=text_of(args[at:], "a PROMPT"), **options)


def _option(word: str) -> str:
    """Return the name of the option that a word gives; empty if it gives none."""
    key, sign, _ = word.partition("=")
    return key if sign and key in _OPTIONS else ""


def _temperature(text: str) -> float:
    return number(text, "the temperature", strict=False, high=MOST_TEMPERATURE)


def _tokens(text: str) -> int:
    value = count(text, "tokens")
    if value > MOST_TOKENS:
        raise CommandError(f"tokens must be ≤ {MOST_TOKENS:,}: training waits; got {text}")
    return value


def _turns(text: str) -> tuple[ChatTurn, ...]:
    try:
        found = msgspec.json.decode(text, type=list[tuple[str, str, str]])
    except (msgspec.DecodeError, UnicodeEncodeError):
        raise CommandError(
            f'turns must be JSON such as [["PROMPT", "ANSWER OF BASE", "ANSWER"]], got {text!r}'
        ) from None
    return tuple(ChatTurn(prompt=prompt, base=base, now=now) for prompt, base, now in found)


_OPTIONS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "system": ("system", str),
    "temperature": ("temperature", _temperature),
    "tokens": ("tokens", _tokens),
    "seed": ("seed", lambda text: count(text, "the seed")),
    "in": ("conversation", str),
    "at": ("checkpoint", str),
    "turns": ("turns", _turns),
}
"""Field of the command and parser of its value, by the name of the option."""


def chat_words(chat: Chat, *, whole: bool = True) -> list[str]:
    """Return the words after `chat`; `parse_chat` reads them back.

    Args:
        chat: the command.
        whole: whether the conversation and its earlier turns, which may be long, are included.
    """
    options = {
        "system": chat.system,
        "temperature": f"{chat.temperature:.12g}" if chat.temperature else "",
        "tokens": f"{chat.tokens}" if chat.tokens != DEFAULT_TOKENS else "",
        "seed": f"{chat.seed}" if chat.seed else "",
        "in": chat.conversation if whole else "",
        "at": chat.checkpoint,
        "turns": _json(chat.turns) if whole and chat.turns else "",
    }
    words = [f"{name}={value}" for name, value in options.items() if value]
    unclear = chat.prompt == _END or _option(chat.prompt)
    return [*words, *([_END] if unclear else []), chat.prompt]


def _json(turns: Sequence[ChatTurn]) -> str:
    return msgspec.json.encode([(turn.prompt, turn.base, turn.now) for turn in turns]).decode()
