"""Turn conversations into text with the spans that are learned, and note what is left out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from ...config.data_reasons import (
    CALLS_LEFT_OUT,
    CHANGED_TEXT,
    EMPTY_ANSWERS,
    IGNORED_KEYS,
    LAST_REASONING_LEFT_OUT,
    MASKED_TURNS,
    MESSAGES_LEFT_OUT,
    NO_END_MARK,
    REASONING_LEFT_OUT,
    ROLE_NOT_FOUND,
    TOOLS_LEFT_OUT,
    TRIMMED_TEXT,
    UNLEARNED_TURNS,
    UNREAD_MESSAGE_KEYS,
)
from ..findings import Findings
from ..records.messages import TURN_WEIGHT
from .marks import Kind
from .messages import Message, Turns, further_keys, without_reasoning
from .targets import ChatTargets, TargetFinder
from .template import ChatTemplate, Rendered, TemplateTokenizer, Tools

ASSISTANT = "assistant"
MEANINGFUL_KEYS = frozenset(
    {
        *("analysis", "rationale", "thoughts", "thought", "cot", "chain_of_thought", "scratchpad"),
        *("explanation", "context", "documents", "document", "prefix", "instruction", "input"),
        *("output", "response", "answer", "prompt", "system", "tools", "functions"),
    }
)
"""Keys of messages that may hold what should be learned; not reading them needs consent."""


@dataclass(frozen=True)
class ChatOptions:
    """Settings that choose the turns of conversations that are learned."""

    train_on: str = "all"
    """`all` assistant turns, the `last` one, or the turns of the role with this name."""
    reasoning: Literal["keep", "drop"] = "keep"


@dataclass(frozen=True)
class Conversation:
    """A conversation that is rendered and learned from."""

    turns: Turns
    tools: Tools
    first: int
    """Number of the first turn that may be learned; earlier turns are prompt."""
    place: str


class WeightedSpan(NamedTuple):
    """Characters that are learned, and the factor on their loss."""

    start: int
    end: int
    weight: float = 1.0


@dataclass(frozen=True)
class _Reading:
    """A conversation with its text and what was found in it."""

    conversation: Conversation
    rendered: Rendered
    wanted: Sequence[int]
    """Numbers of the turns to learn."""
    found: ChatTargets

    def without(self, kind: Kind) -> set[int]:
        """Return the messages of which the template leaves out strings of a kind."""
        return {number for number, kinds in self.found.left_out.items() if kind in kinds}


class ConversationReader:
    """Renders conversations with one chat template and finds their targets.

    Args:
        tokenizer: The tokenizer with the chat template.
        tokens: Texts of its special tokens.
        eos: Text of its end-of-sequence token.
        options: Which turns are learned.
        findings: Receives what is left out, masked or not learned.
    """

    def __init__(
        self,
        tokenizer: TemplateTokenizer,
        tokens: Sequence[str],
        eos: str,
        options: ChatOptions,
        findings: Findings,
    ) -> None:
        self._template = ChatTemplate(tokenizer)
        self._finder = TargetFinder(self._template, tokens, eos)
        self._options = options
        self._findings = findings

    def whole(self, conversation: Conversation) -> str:
        """Return a conversation as text, of which everything is learned; empty without turns.

        What the template leaves out or changes is noted in the findings.

        Raises:
            DataError: There is no chat template, or it rejects the conversation.
        """
        kept = self._kept(conversation)
        if not kept.turns:
            return ""
        self._findings.counted("messages", len(kept.turns))
        reading = self._reading(kept, ())
        self._note_losses(reading)
        return reading.rendered.text

    def read(self, conversation: Conversation) -> tuple[str, tuple[WeightedSpan, ...]]:
        """Return a conversation as text, and its targets in order.

        What is left out, masked or not learned is noted in the findings. Without turns the text is
        empty and there are no spans.

        Raises:
            DataError: There is no chat template, or it rejects the conversation.
        """
        kept = self._kept(conversation)
        if not kept.turns:
            return "", ()
        reading = self._reading(kept, self._wanted(kept.turns, kept.first, kept.place))
        self._note_targets(reading)
        self._note_losses(reading)
        spans = [
            WeightedSpan(*span, kept.turns[target.turn].get(TURN_WEIGHT, 1.0))
            for target in reading.found.turns
            for span in target.spans
        ]
        return reading.rendered.text, tuple(sorted(spans))

    def _kept(self, conversation: Conversation) -> Conversation:
        """Return a conversation without reasoning if the options drop it."""
        drop = self._options.reasoning == "drop"
        turns = without_reasoning(conversation.turns) if drop else conversation.turns
        return replace(conversation, turns=turns)

    def _reading(self, conversation: Conversation, wanted: Sequence[int]) -> _Reading:
        turns, tools = conversation.turns, conversation.tools
        rendered = self._template.render(turns, tools, conversation.place)
        found = self._finder.find(turns, tools, rendered, wanted)
        return _Reading(conversation, rendered, wanted, found)

    def _wanted(self, turns: Turns, first: int, place: str) -> list[int]:
        """Return the numbers of the turns to learn.

        The numbers of turns and messages, turns that the data mask, and a role that no turn has are
        noted in the findings.
        """
        named = self._options.train_on
        role = ASSISTANT if named in ("all", "last") else named
        mine = [n for n in range(first, len(turns)) if turns[n].get("role") == role]
        if named not in ("all", "last") and all(turn.get("role") != role for turn in turns):
            self._findings.note(ROLE_NOT_FOUND, place, _roles("roles", turns))
        mine = mine[-1:] if named == "last" else mine
        wanted = [n for n in mine if turns[n].get("learned", True)]
        self._findings.counted("turns", len(mine))
        self._findings.counted("messages", len(turns))
        self._findings.note(MASKED_TURNS, place, count=len(mine) - len(wanted))
        return wanted

    def _note_targets(self, reading: _Reading) -> None:
        note, place = self._findings.note, reading.conversation.place
        turns, found = reading.conversation.turns, reading.found
        note(NO_END_MARK, place, count=sum(not target.ended for target in found.turns))
        note(EMPTY_ANSWERS, place, count=any(_is_empty(turns[n]) for n in reading.wanted))
        note(UNLEARNED_TURNS, place, count=len(set(found.lost) - reading.without("call")))

    def _note_losses(self, reading: _Reading) -> None:
        """Note what the template leaves out of a conversation, or changes."""
        conversation, note = reading.conversation, self._findings.note
        turns, place = conversation.turns, conversation.place
        arguments = (turns, conversation.tools, reading.rendered)
        note(TOOLS_LEFT_OUT, place, count=self._template.ignores_tools(*arguments))
        note(CALLS_LEFT_OUT, place, count=len(reading.without("call")))
        self._note_text(reading)
        self._note_keys(turns, self._template.unread_keys(*arguments), place)
        without = reading.without("reasoning")
        last = {n for n in without if n in reading.wanted and _is_last_answer(turns, n)}
        note(LAST_REASONING_LEFT_OUT, place, count=len(last))
        note(REASONING_LEFT_OUT, place, count=len(without - last))
        gone = sorted(reading.without("content") - set(reading.found.lost))
        note(MESSAGES_LEFT_OUT, place, _roles("role", [turns[n] for n in gone]), count=len(gone))

    def _note_text(self, reading: _Reading) -> None:
        turns, found = reading.conversation.turns, reading.found
        place, text = reading.conversation.place, reading.rendered.text
        changed = sorted(found.changed - set(found.lost))
        roles = _roles("role", [turns[n] for n in changed])
        self._findings.note(CHANGED_TEXT, place, roles, count=len(changed))
        known = found.changed | found.left_out.keys()
        trimmed = sum(n not in known and _is_trimmed(turn, text) for n, turn in enumerate(turns))
        self._findings.note(TRIMMED_TEXT, place, count=trimmed)

    def _note_keys(self, turns: Turns, unread: Sequence[str], place: str) -> None:
        """Note the messages with keys that are not read, once each, by what the keys may hold."""
        ignored = [key for key in unread if key.lower() in MEANINGFUL_KEYS]
        rest = [key for key in unread if key not in ignored]
        for reason, keys in ((IGNORED_KEYS, ignored), (UNREAD_MESSAGE_KEYS, rest)):
            count = sum(not set(keys).isdisjoint(further_keys(turn)) for turn in turns)
            self._findings.note(reason, place, ", ".join(keys), count=count)


def _is_trimmed(turn: Message, text: str) -> bool:
    """Whether a content has white space at an end, and stands in the text only without it."""
    content = turn.get("content")
    if not isinstance(content, str) or content == content.strip():
        return False
    return content not in text and json.dumps(content, ensure_ascii=False)[1:-1] not in text


def _is_last_answer(turns: Turns, number: int) -> bool:
    """Whether no user turn follows a turn."""
    return all(turn.get("role") != "user" for turn in turns[number + 1 :])


def _is_empty(turn: Message) -> bool:
    """Whether a turn has no text except white space, no tool calls and no reasoning."""
    content = turn.get("content") or ""
    empty = isinstance(content, str) and not content.strip()
    return empty and not (turn.get("tool_calls") or turn.get("reasoning_content"))


def _roles(word: str, turns: Iterable[Message]) -> str:
    names = dict.fromkeys(str(turn.get("role")) for turn in turns)
    return f"{word} {', '.join(names)}" if names else ""
