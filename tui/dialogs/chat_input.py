"""Parses what is typed in a chat: a prompt, or a setting of the chat that begins with `/`."""

from __future__ import annotations

from dataclasses import replace

from fttui.engine.protocol.chat.words import parse_chat
from fttui.engine.protocol.command_args import CommandError, existing
from fttui.engine.protocol.command_kinds import KeepPrompt

from ..text.format import plural
from ..view_model.app_state import AppState
from ..view_model.chat.draft import ChatDraft, unused_name
from ..view_model.chat.exchange import Exchanges
from .completion import checkpoint_names
from .prompts import ParsedInput

SETTINGS = "/system TEXT · /temperature T · /tokens N · /checkpoint NAME · /new · /keep"
"""What can be typed in place of a prompt; `//` begins a prompt with `/`."""
NOW = "now"
"""The name after `/checkpoint` that stands for the current weights."""
_NAMES = ("system", "temperature", "tokens")


def read_chat(text: str, state: AppState) -> ParsedInput:
    """Parse a prompt, or a setting of the chat, which is returned as text."""
    draft, known, typed = state.chat, state.run.chats, text.strip()
    if not typed:
        return ParsedInput(needs="type a prompt, or cancel with esc", preview=told(draft, known))
    if not typed.startswith("/") or typed.startswith("//"):
        prompt = typed.removeprefix("/") if typed.startswith("//") else typed
        return ParsedInput(draft.command(prompt, known), told(draft, known))
    if typed in ("/", "/keep"):
        return _kept(known) if typed == "/keep" else ParsedInput(needs=SETTINGS, preview=SETTINGS)
    try:
        after = with_setting(draft, typed, known)
    except CommandError as error:
        return ParsedInput(error=str(error).split(" (usage")[0])
    if after.checkpoint and (unknown := _why_unknown(after.checkpoint, state)):
        return ParsedInput(error=unknown)
    return ParsedInput(text=typed, preview=f"then: {told(after, known)}")


def _kept(known: Exchanges) -> ParsedInput:
    """Return the command that continues the newest prompt at each evaluation."""
    if not known:
        return ParsedInput(error="there is no prompt yet; type one first, then /keep")
    prompt = known[-1].asked.prompt
    return ParsedInput(KeepPrompt(prompt=prompt), f"samples at each evaluation: {prompt}")


def _why_unknown(wanted: str, state: AppState) -> str:
    names = checkpoint_names(state)
    if wanted in {*names, *(str(one.step) for one in state.run.checkpoints)}:
        return ""
    return f"no checkpoint {wanted!r}; {existing(wanted, names, 'checkpoints')}"


def with_setting(draft: ChatDraft, typed: str, known: Exchanges) -> ChatDraft:
    """Return the settings of a chat after a typed one, such as `/temperature 0.7`.

    Raises:
        CommandError: there is no such setting, or its value is not valid.
    """
    name, _, value = typed.removeprefix("/").partition(" ")
    if name == "new":
        return replace(draft, conversation=unused_name(known))
    if name == "checkpoint" and value.strip():
        return replace(draft, checkpoint="" if value.strip() == NOW else value.strip())
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
    parts += [f"answers: {draft.checkpoint}"] if draft.checkpoint else []
    return " · ".join([*parts, *([f"system: {draft.system}"] if draft.system else [])])
