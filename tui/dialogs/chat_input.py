"""Parses what is typed in a chat: a prompt, or a setting of the chat that begins with `/`."""

from __future__ import annotations

from dataclasses import replace

from fttui.engine.protocol.chat.words import parse_chat
from fttui.engine.protocol.command_args import CommandError

from ..text.format import plural
from ..view_model.app_state import AppState
from ..view_model.chat.draft import ChatDraft, unused_name
from ..view_model.chat.exchange import Exchanges
from .prompts import ParsedInput

SETTINGS = "/system TEXT · /temperature 0.7 · /tokens 100 · /new"
"""The settings that can be typed in place of a prompt."""
_NAMES = ("system", "temperature", "tokens")


def read_chat(text: str, state: AppState) -> ParsedInput:
    """Parse a prompt, or a setting of the chat, which is returned as text."""
    draft, known, typed = state.chat, state.run.chats, text.strip()
    if not typed:
        return ParsedInput(needs="type a prompt, or cancel with esc", preview=told(draft, known))
    if not typed.startswith("/"):
        return ParsedInput(draft.command(typed, known), told(draft, known))
    try:
        after = with_setting(draft, typed, known)
    except CommandError as error:
        return ParsedInput(error=str(error))
    return ParsedInput(text=typed, preview=f"then: {told(after, known)}")


def with_setting(draft: ChatDraft, typed: str, known: Exchanges) -> ChatDraft:
    """Return the settings of a chat after a typed one, such as `/temperature 0.7`.

    Raises:
        CommandError: there is no such setting, or its value is not valid.
    """
    name, _, value = typed.removeprefix("/").partition(" ")
    if name == "new":
        return replace(draft, conversation=unused_name(known))
    if name not in _NAMES:
        raise CommandError(f"expected {SETTINGS}; got {typed!r}")
    if name == "system":
        return replace(draft, system=value.strip())
    read = parse_chat([f"{name}={value.strip()}", "prompt"])
    return replace(draft, **{name: getattr(read, name)})


def told(draft: ChatDraft, known: Exchanges) -> str:
    """Return the settings of the next prompt in words."""
    name = draft.named(known)
    turns = sum(one.asked.conversation == name and one.answered for one in known)
    how = f"temperature {draft.temperature:g}" if draft.temperature else "greedy"
    parts = [f"conversation {name}, {plural(turns, 'turn')}", how, f"at most {draft.tokens} tokens"]
    return " · ".join([*parts, *([f"system: {draft.system}"] if draft.system else [])])
