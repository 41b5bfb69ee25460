"""Express a chat template as fixed texts around each role's content.

Ollama renders conversations with a language of its own, and cannot run Jinja. Most templates only
write something before and after each message; those texts are found by rendering conversations of
known contents, and the result is compared with the template on other conversations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Message = dict[str, str]
Render = Callable[[list[Message], bool], str]
"""Renders messages; True adds the prompt for an answer."""
_S, _U, _V, _A = "Sys7em", "Us3r", "Us4r", "Answ3r"


class NotFixed(Exception):
    """The template does more than write fixed texts around the messages; the text says what."""


class ConversationRefused(NotFixed):
    """The template refuses a conversation."""


@dataclass(frozen=True)
class ChatForm:
    """The texts around the messages of a conversation."""

    default_start: str
    """At the start of a conversation without a system message."""
    system: tuple[str, str] | None
    """Before and after a system message; None if the template refuses one."""
    user: tuple[str, str]
    assistant: tuple[str, str]
    answer: str
    """Asks for an answer, after the last message."""

    def render(self, messages: Sequence[Message]) -> str:
        """Return messages with the texts around each, and what asks for an answer at the end."""
        roles = {"system": self.system or ("", ""), "user": self.user, "assistant": self.assistant}
        text = "" if messages[0]["role"] == "system" else self.default_start
        for one in messages:
            before, after = roles[one["role"]]
            text += before + one["content"] + after
        return text + self.answer


def chat_form(render: Render, bos: str | None) -> ChatForm:
    """Find the texts around the messages that a chat template writes.

    Args:
        render: Of the chat template; it raises `ConversationRefused` for what the template refuses.
        bos: The token that llama.cpp itself puts before every text, which is left out of the form;
            None if it puts none.

    Raises:
        NotFixed: The template writes something else in a conversation that was tried.
    """

    def rendered(messages: list[Message], ask: bool = True) -> str:
        text = render(messages, ask)
        return text.removeprefix(bos) if bos else text

    pair = [_user(_U), _says(_A), _user(_V)]
    start, between, middle, tail = _split(rendered(pair), [_U, _A, _V])
    (*_, last) = _split(rendered(pair, ask=False), [_U, _A, _V])
    if not tail.startswith(last) or not between.startswith(last):
        raise NotFixed("it writes an earlier message in another way than the last one")
    before_user = _common_end(start, middle).removeprefix(last)
    form = ChatForm(
        default_start=start.removesuffix(before_user),
        system=None,
        user=(before_user, last),
        assistant=(between.removeprefix(last), middle.removesuffix(before_user)),
        answer=tail.removeprefix(last),
    )
    form = _with_system(form, rendered)
    _compare(form, rendered)
    return form


def trims(render: Render) -> bool:
    """Return whether a template drops the white space around a message."""
    return " \n padded \n " not in render([_user(" \n padded \n ")], True)


def _with_system(form: ChatForm, render: Callable[[list[Message]], str]) -> ChatForm:
    """Return the form with the texts around a system message; unchanged if there may be none.

    Raises:
        NotFixed: The template writes the system message into the first message of the user.
    """
    try:
        text = render([_system(_S), _user(_U)])
    except ConversationRefused:
        return form
    before, after, _ = _split(text, [_S, _U])
    if not after.endswith(form.user[0]):
        raise NotFixed("it writes the system message into the first message of the user")
    system = (before, after.removesuffix(form.user[0]))
    return ChatForm(form.default_start, system, form.user, form.assistant, form.answer)


def _compare(form: ChatForm, render: Callable[[list[Message]], str]) -> None:
    """Compare the form with the template on other conversations.

    Raises:
        NotFixed: They differ.
    """
    turns = [_user("One, two?"), _says("three: 3"), _user("a\n\nb"), _says("c"), _user("{d}")]
    tried = [turns[:1], turns[:3], turns]
    if form.system:
        tried += [[_system("Be brief.\nAlways."), *one] for one in tried]
    for one in tried:
        if form.render(one) != render(one):
            raise NotFixed(f"it writes a conversation of {len(one)} messages in another way")


def _split(text: str, contents: Sequence[str]) -> list[str]:
    """Return the texts before, between and after contents that each stand there once.

    Raises:
        NotFixed: A content is missing, or stands there more than once.
    """
    parts, rest = [], text
    for one in contents:
        if rest.count(one) != 1:
            raise NotFixed("it leaves out, repeats or changes a message")
        before, rest = rest.split(one)
        parts.append(before)
    return [*parts, rest]


def _common_end(one: str, other: str) -> str:
    length = 0
    while length < min(len(one), len(other)) and one[-length - 1] == other[-length - 1]:
        length += 1
    return one[len(one) - length :]


def _user(content: str) -> Message:
    return {"role": "user", "content": content}


def _says(content: str) -> Message:
    return {"role": "assistant", "content": content}


def _system(content: str) -> Message:
    return {"role": "system", "content": content}
