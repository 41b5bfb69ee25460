"""Messages of all common forms, with the roles and keys of chat templates."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...config.data_reasons.rows import PADDING_NULLS
from ...errors import DataError
from ..findings import Findings
from .labels import number_of, remedy_of
from .tool_calls import nulls_in, parse_calls, parse_tools, without_nulls

ROLE_KEYS = ("role", "from", "speaker", "author")
CONTENT_KEYS = ("content", "value", "text", "message")
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
TURN_WEIGHT = "loss_weight"
"""Key of a message that was read with the factor on its loss; 1 without it."""
FACTOR_KEYS = ("weight", TURN_WEIGHT)
"""Keys of a message in the data with a factor on its loss."""
WEIGHT_KEYS = (*FACTOR_KEYS, "loss", "train", "training", "train_on_turn", "loss_mask", "learned")
"""Keys of a message that exclude it from the loss with 0 or false."""
MASK_KEYS = ("mask", "masked", "ignore", "train_detail", "training_detail")
"""Keys with which other tools mask a message or a part of it; their meanings differ."""
ASKING = ("human", "user", "input", "question", "prompt", "instruction", "query")
ANSWERING = ("assistant", "gpt", "bot", "output", "answer", "response", "completion", "model")
CALLS = "tool_calls"
"""The role of a message that holds the tool calls of the assistant."""
ROLES: Mapping[str, str] = {
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "gpt", "bot", "chatgpt", "model", "ai", "chatbot"), "assistant"),
    **dict.fromkeys(("bing", "bard", "claude"), "assistant"),
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("tool", "function", "observation", "function_response"), "tool"),
    **dict.fromkeys(("tool_response", "tool_result", "ipython"), "tool"),
    **dict.fromkeys(("function_call", "tool_call", "tool_calls"), CALLS),
}
"""Role names in data → roles of chat templates."""
OTHERS = "*"
"""All other roles, as a key of `data.roles`; as a value, it keeps their names."""
_TEXT_PARTS = ("text", "input_text", "output_text")
_THOUGHT_PARTS = ("thinking", "reasoning")
_TOOL_PARTS = ("tool_use", "tool_result", "toolUse", "toolResult", "function_call")
"""Types of the parts of a content."""
_FILE_OF_JSON = re.compile(r"\.(jsonl|ndjson|json)(\.\w+)?[:\[ ]")
_MEDIA = ("image", "images", "audio", "audios", "video", "videos")
_MEDIA_KEY = re.compile(
    r"(input_?)?(image|img|picture|photo|audio|video|wav)s?"
    r"(_?(url|uri|path|data|file|file_?name|name|bytes|base64|b64)s?)?|pixel_values",
    re.I,
)
"""Names of columns, and keys of messages and their parts, that hold images, audio or video."""


@dataclass(frozen=True)
class MessageRules:
    """Rules for roles of messages, and counts of the changes made to messages."""

    roles: Mapping[str, str] = field(default_factory=dict)
    """Roles by their names in the data (`data.roles`)."""
    known: frozenset[str] = frozenset()
    """Further roles of the chat template, such as the one whose turns are learned."""
    weighted: bool = False
    """Whether turns may have other weights than 0 and 1, as in task sft."""
    reasoning: bool = False
    """Whether `data.columns` maps a column to the field `reasoning`, which precedes an answer."""
    findings: Findings = field(default_factory=Findings)
    _padded: set[str] = field(default_factory=set)
    """Places of the records whose nulls were removed, so that each counts once."""

    def role(self, name: str) -> str | None:
        """Return the chat template's role for the name of a role in the data; None if unknown."""
        if name not in self.roles and name in self.known:
            return name
        given = self.roles.get(name) or ROLES.get(name.lower()) or self.roles.get(OTHERS)
        if given in (name, OTHERS):
            return name
        return None if given is None else ROLES.get(given.lower(), given)

    def without_padding(self, value: Any, place: str) -> Any:
        """Return tools or calls without the nulls that columnar files add to structs.

        Such files give every struct of a column the keys of all others. JSON text and rows of JSON
        files have no such nulls and are returned unchanged. A row with removed nulls is counted
        once.
        """
        if isinstance(value, str) or _FILE_OF_JSON.search(place) or not nulls_in(value):
            return value
        if place not in self._padded:
            self._padded.add(place)
            self.findings.note(PADDING_NULLS, place)
        return without_nulls(value)


def _thought(part: Any) -> str:
    """Return the reasoning in a part of a content; empty for parts of other types."""
    if not isinstance(part, Mapping) or part.get("type") not in _THOUGHT_PARTS:
        return ""
    keys = (*REASONING_KEYS, "text", "value")
    return next((part[key] for key in keys if isinstance(part.get(key), str)), "")


def _is_call(part: Any) -> bool:
    """Whether a part of a content is a tool call as LLaMA-Factory writes it, with a `value`."""
    return isinstance(part, Mapping) and part.get("type") == "tool_call" and "value" in part


def _thoughts(content: Any) -> str:
    return "".join(map(_thought, content)) if isinstance(content, list | tuple) else ""


def role_of(item: Any, rules: MessageRules) -> str | None:
    """Return the standard role of a stored message; None for other values and unknown roles."""
    if not isinstance(item, Mapping):
        return None
    name = next((item[key] for key in ROLE_KEYS if isinstance(item.get(key), str)), None)
    return None if name is None else rules.role(name)


def decoded(value: Any) -> Any:
    """Return the messages that a JSON text holds; every other value is returned unchanged."""
    if not isinstance(value, str) or value.lstrip()[:1] != "[":
        return value
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return value
    messages = isinstance(found, list) and bool(found)
    return found if messages and all(map(_is_message, found)) else value


def _is_message(item: Any) -> bool:
    return isinstance(item, Mapping) and any(isinstance(item.get(key), str) for key in ROLE_KEYS)


def parse_messages(
    value: Any, column: str, place: str, rules: MessageRules | None = None
) -> tuple[Mapping[str, Any], ...]:
    """Return the messages of a conversation: a list, or its JSON text.

    None as `rules` allows the roles that are known.

    Raises:
        DataError: The value is not a conversation, a role is unknown, or a message has parts that
            cannot be read, such as images.
    """
    reader = _Messages(column, place, rules or MessageRules())
    if isinstance(value, str) and value.lstrip()[:1] == "[":
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise reader.wrong(value, "a list of {role, content} as JSON text") from None
    if not isinstance(value, list | tuple):
        raise reader.wrong(value, "a list of {role, content}")
    return tuple(message for item in value for message in reader.messages(item))


def tools_of(
    values: Mapping[str, Any], place: str, rules: MessageRules | None = None
) -> tuple[Mapping[str, Any], ...]:
    """Return the tools of a row from its column `tools` or `functions`; none if it has neither.

    Removed nulls are counted in `rules`; None as `rules` counts nothing.

    Raises:
        DataError: The column lists no tools.
    """
    column = next((name for name in ("tools", "functions") if name in values), None)
    value = None if column is None else values[column]
    if column is None or value is None:
        return ()
    rules = rules or MessageRules()
    value = rules.without_padding(value, place)
    return parse_tools(value, _Messages(column, place, rules).wrong)


def is_media(name: str) -> bool:
    """Whether the name of a column or a key says that it holds images, audio or video."""
    return _MEDIA_KEY.fullmatch(name) is not None


def texts_by_path(column: str, expected: str) -> str:
    """Say what is expected in place of a list of texts, and how to name one of them."""
    return f"{expected} (or name one text of the list, as in data.columns: {{FIELD: {column}.0}})"


@dataclass(frozen=True)
class _Messages:
    """Reads the messages in a column of one row."""

    column: str
    place: str
    rules: MessageRules

    def messages(self, item: Any) -> Iterator[Mapping[str, Any]]:
        """Yield the messages of an item: one message, or a question and its answer.

        Raises:
            DataError: The item is not a message, or its role is unknown.
        """
        if isinstance(item, str):
            raise self.wrong(item, texts_by_path(self.column, "{role, content}"))
        if not isinstance(item, Mapping):
            raise self.wrong(item, "{role, content}")
        if any(isinstance(item.get(key), str) for key in ROLE_KEYS):
            yield self._message(item)
        else:
            yield from self._exchange(item)

    def _exchange(self, item: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield the messages of an item such as {human, assistant} or {input, output}.

        Raises:
            DataError: The item has not one answer and at most one question, or has other keys.
        """
        names = {key.lower(): part for key, part in item.items() if part is not None}
        asked = [key for key in ASKING if key in names]
        answered = [key for key in ANSWERING if key in names]
        if len(asked) > 1 or len(answered) != 1:
            raise self.wrong(item, "{role, content}")
        if rest := names.keys() - {*asked, *answered, "system"}:
            raise self.wrong(sorted(rest), "no other keys than those of a question and its answer")
        if names.get("system"):
            yield {"role": "system", "content": self._content(names["system"], "system")}
        for key in asked:
            yield {"role": "user", "content": self._content(names[key], "user")}
        yield {"role": "assistant", "content": self._content(names[answered[0]], "assistant")}

    def _message(self, item: Mapping[str, Any]) -> Mapping[str, Any]:
        keys = {key: part for key, part in item.items() if part is not None}
        role_key = next(key for key in ROLE_KEYS if isinstance(keys.get(key), str))
        self._refuse_two_meanings(keys)
        role = self._role(keys.pop(role_key))
        content_key = next((key for key in CONTENT_KEYS if key in keys), None)
        content_key = content_key or next((key for key in CONTENT_KEYS if key in item), None)
        content = None if content_key is None else keys.pop(content_key, None)
        message: dict[str, Any] = {"role": role}
        if role == CALLS:
            message = {"role": "assistant", "tool_calls": self._calls(content)}
        elif content is not None:
            content = self._without_calls(content, role, keys)
            message["content"] = self._content(content, role)
            if thoughts := _thoughts(content):
                keys.setdefault("reasoning_content", thoughts)
        self._move_reasoning(message, keys)
        self._move_calls(message, keys)
        self._move_weight(message, keys)
        self._refuse_media_in(keys, "images, audio or video")
        if content_key is None and not message.keys() & {"tool_calls", "reasoning_content"}:
            raise self.wrong(item, "{role, content}")
        return message | {key: part for key, part in keys.items() if key not in message}

    def _refuse_two_meanings(self, keys: Mapping[str, Any]) -> None:
        """Refuse a message with two different texts or roles, of which only one would be read.

        Raises:
            DataError: The message has two.
        """
        texts = {key: keys[key] for key in CONTENT_KEYS if isinstance(keys.get(key), str)}
        names = {key: keys[key] for key in ("role", "from") if isinstance(keys.get(key), str)}
        roles = {key: self.rules.role(name) for key, name in names.items()}
        for found in (texts, roles):
            if len(set(found.values())) > 1:
                raise self.wrong(found, "one role and one text in a message")

    def _role(self, name: str) -> str:
        role = self.rules.role(name)
        if role is None:
            raise DataError(
                f"{self.place}: column '{self.column}': the role {name!r} is unknown, expected one "
                f"of {', '.join(ROLES)}; set data.roles: {{{name!r}: user}} (or assistant, system, "
                f"tool), or {{{name!r}: {name!r}}} if the chat template has this role"
            )
        return role

    def _content(self, content: Any, role: str) -> str:
        if isinstance(content, str):
            return content
        if isinstance(content, list | tuple):
            return "".join(self._part(part) for part in content if not _thought(part))
        if role == "tool" and isinstance(content, Mapping | int | float):
            return json.dumps(content, ensure_ascii=False)
        raise self.wrong(content, "{role, content}, both text")

    def _without_calls(self, content: Any, role: str, keys: dict[str, Any]) -> Any:
        """Return a content without its tool calls, which are moved to the `keys` of the message.

        Raises:
            DataError: Other parts follow the calls, or the message is not the assistant's or has
                other calls.
        """
        first = -1
        if isinstance(content, list | tuple):
            first = next((at for at, part in enumerate(content) if _is_call(part)), -1)
        if first < 0:
            return content
        calls = content[first:]
        if role != "assistant" or keys.get("tool_calls") or not all(map(_is_call, calls)):
            raise self.wrong(calls[0], "tool calls as the last parts of a message of the assistant")
        values = [call for part in calls for call in self._calls(part["value"])]
        keys["tool_calls"] = values
        return content[:first]

    def _part(self, part: Any) -> str:
        if isinstance(part, str):
            return part
        kind = str(part.get("type") or "text") if isinstance(part, Mapping) else ""
        if isinstance(part, Mapping):
            self._refuse_media_in(part, "a part with images, audio or video")
        if any(media in kind for media in _MEDIA):
            raise self._media(f"a part of type {kind!r}")
        text = part.get("text", part.get("value")) if isinstance(part, Mapping) else None
        if kind in _TOOL_PARTS:
            raise self.wrong(part, "tool calls as tool_calls, and results as messages of role tool")
        if kind not in _TEXT_PARTS or not isinstance(text, str):
            raise self.wrong(part, "{role, content}, both text, or parts of type text")
        return text

    def _calls(self, value: Any) -> list[dict[str, Any]]:
        return parse_calls(self.rules.without_padding(value, self.place), self.wrong)

    def _move_calls(self, message: dict[str, Any], keys: dict[str, Any]) -> None:
        """Move the tool calls out of the unread `keys` of a message to the message.

        A `function_call` of the older form is a tool call as well.

        Raises:
            DataError: A value holds no tool calls.
        """
        given = [keys.pop(name, None) for name in ("tool_calls", "function_call")]
        if calls := [call for value in given if value for call in self._calls(value)]:
            message["tool_calls"] = calls

    def _move_reasoning(self, message: dict[str, Any], keys: dict[str, Any]) -> None:
        for key in REASONING_KEYS:
            if isinstance(keys.get(key), str) and (reasoning := keys.pop(key)):
                message.setdefault("reasoning_content", reasoning)

    def _move_weight(self, message: dict[str, Any], keys: dict[str, Any]) -> None:
        """Take the weight of a message out of its unread `keys`; one of 0 is not learned.

        Only turns of the assistant are marked so, because other turns are learned only on request.

        Raises:
            DataError: the weight is not a factor on a loss, or another one than 0 and 1 in a task
                that has none for turns, or the turn has two weights or another tool's mask.
        """
        for key in MASK_KEYS:
            if keys.get(key) and message["role"] == "assistant":
                raise self.wrong(keys[key], f"no {key}; write weight: 0 for a turn to mask")
        for key in WEIGHT_KEYS:
            weight = keys.pop(key, None)
            factor = 1.0 if weight is None else self._factor(key, weight)
            if factor == 0 and message["role"] == "assistant":
                message["learned"] = False
            elif factor not in (0, 1) and message.setdefault(TURN_WEIGHT, factor) != factor:
                raise self.wrong(weight, "one weight for a message")

    def _factor(self, key: str, weight: Any) -> float:
        """Return the weight of a message as a number.

        Raises:
            DataError: it is none, or another one than 0 and 1 where only these are allowed.
        """
        if weight in (0, 1):
            return float(weight)
        factor = number_of(weight) if key in FACTOR_KEYS else None
        weighted = self.rules.weighted and key in FACTOR_KEYS
        if factor is None or factor < 0 or (factor not in (0, 1) and not weighted):
            above = ", or a factor on its loss above 0" if weighted else ""
            raise self.wrong(weight, f"a {key} of 0 or 1 for a message{above}")
        return factor

    def _refuse_media_in(self, keys: Mapping[str, Any], what: str) -> None:
        if any(value and is_media(key) for key, value in keys.items()):
            raise self._media(what)

    def _media(self, what: str) -> DataError:
        return DataError(
            f"{self.place}: column '{self.column}': a message has {what}, but models are trained "
            "on text only; remove the records with such messages"
        )

    def wrong(self, value: Any, expected: str) -> DataError:
        """Return the error for a value of an unexpected form."""
        got = "null" if value is None else f"{type(value).__name__} {str(value)[:60]!r}"
        return DataError(
            f"{self.place}: column '{self.column}': got {got}, expected {expected}; "
            f"{remedy_of(value)}"
        )
