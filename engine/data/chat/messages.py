"""The forms in which chat templates take messages, and the reasoning inside messages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

Message = Mapping[str, Any]
Turns = Sequence[Message]

_PAIRS = (
    *((f"<{name}>", f"</{name}>") for name in ("think", "thinking", "thought", "reasoning")),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|thought_start|>", "<|thought_end|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|channel>thought\n", "<channel|>"),
    (
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
    ),
    ("Here are my reasoning steps:\n", "[BEGIN FINAL RESPONSE]"),
)
_KNOWN_KEYS = frozenset(
    {"role", "content", "reasoning_content", "tool_calls", "learned", "loss_weight"}
)
_EMPTY: tuple[Any, ...] = (None, "", [], {})
_CLOSING = frozenset(closes for _, closes in _PAIRS)
_TAGS = "|".join(re.escape(tag) for pair in _PAIRS for tag in pair)
REASONING = re.compile(f"({_TAGS})")
"""Tags of reasoning that is written into the content of a message."""
_BLOCKS = "|".join(f"{re.escape(opens)}.*?{re.escape(closes)}" for opens, closes in _PAIRS)
_INLINE = re.compile(rf"(?:{_BLOCKS})\s*", re.DOTALL)


def closes_reasoning(tag: str) -> bool:
    """Whether a tag marks the end of reasoning."""
    return tag in _CLOSING


@dataclass(frozen=True)
class MessageForm:
    """The form in which messages are given to a template."""

    parts: bool = False
    """Content as a list of `{type: text, text}` instead of text."""
    empty: bool = False
    """Null content as empty text."""
    json_arguments: bool = False
    """Arguments of tool calls as JSON text instead of an object."""

    def of(self, turns: Turns) -> list[dict[str, Any]]:
        """Return the messages in this form, without the key `learned`, which templates ignore."""
        return [self._message(turn) for turn in turns]

    def _message(self, turn: Message) -> dict[str, Any]:
        made = {key: value for key, value in turn.items() if key not in ("learned", "loss_weight")}
        made["content"] = self._content(made.get("content"))
        if calls := made.get("tool_calls"):
            made["tool_calls"] = [self._call(call) for call in calls]
        return made

    def _content(self, content: Any) -> Any:
        if content is None and not self.empty:
            return None
        content = "" if content is None else content
        if self.parts and isinstance(content, str):
            return [{"type": "text", "text": content}]
        return content

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = call.get("function")
        if not (self.json_arguments and isinstance(function, Mapping)):
            return dict(call)
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            function = {**function, "arguments": json.dumps(arguments, ensure_ascii=False)}
        return {**call, "function": function}


FORMS = tuple(
    MessageForm(parts, empty, arguments)
    for parts, arguments, empty in product((False, True), repeat=3)
)
"""Every form, in the order in which they are tried."""


def further_keys(turn: Message) -> list[str]:
    """Return the keys of a message with a value that are not those of every conversation."""
    return [key for key, part in turn.items() if key not in _KNOWN_KEYS and part not in _EMPTY]


def arguments_of(turns: Turns) -> Iterator[Any]:
    """Yield the arguments of all tool calls."""
    for turn in turns:
        for call in turn.get("tool_calls") or ():
            function = call.get("function")
            if isinstance(function, Mapping):
                yield function.get("arguments")


def without_reasoning(turns: Turns) -> list[Message]:
    """Return the messages without reasoning of the assistant, beside the content or in its text."""
    return [_without_reasoning(turn) for turn in turns]


def _without_reasoning(turn: Message) -> Message:
    if turn.get("role") != "assistant":
        return turn
    kept = {key: value for key, value in turn.items() if key != "reasoning_content"}
    if isinstance(content := kept.get("content"), str):
        kept["content"] = _INLINE.sub("", content)
    return kept


def has_reasoning(turn: Message) -> bool:
    """Whether a message has reasoning beside its content or in the text of its content."""
    content = turn.get("content")
    inline = isinstance(content, str) and _INLINE.search(content) is not None
    return inline or bool(turn.get("reasoning_content"))
