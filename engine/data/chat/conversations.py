"""Turn conversations into text with the spans that are learned, and note what is left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ...config.data_reasons import (
    CALLS_LEFT_OUT,
    EMPTY_ANSWERS,
    LAST_REASONING_LEFT_OUT,
    MASKED_TURNS,
    MESSAGES_LEFT_OUT,
    NO_END_MARK,
    REASONING_LEFT_OUT,
    ROLE_NOT_FOUND,
    TOOLS_LEFT_OUT,
    UNLEARNED_TURNS,
)
from ..findings import Findings
from ..records.messages import TURN_WEIGHT
from .messages import Message, Turns, without_reasoning
from .targets import ChatTargets, TargetFinder
from .template import ChatTemplate, TemplateTokenizer, Tools

ASSISTANT = "assistant"


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

        Raises:
            DataError: There is no chat template, or it rejects the conversation.
        """
        turns = self._turns(conversation)
        if not turns:
            return ""
        return self._template.render(turns, conversation.tools, conversation.place).text

    def read(self, conversation: Conversation) -> tuple[str, tuple[WeightedSpan, ...]]:
        """Return a conversation as text, and its targets in order.

        What is left out, masked or not learned is noted in the findings. Without turns the text is
        empty and there are no spans.

        Raises:
            DataError: There is no chat template, or it rejects the conversation.
        """
        turns, place = self._turns(conversation), conversation.place
        if not turns:
            return "", ()
        rendered = self._template.render(turns, conversation.tools, place)
        wanted = self._wanted(turns, conversation.first, place)
        found = self._finder.find(turns, conversation.tools, rendered, wanted)
        self._note(turns, found, wanted, place)
        if self._template.ignores_tools(turns, conversation.tools, rendered):
            self._findings.note(TOOLS_LEFT_OUT, place)
        spans = [
            WeightedSpan(*span, turns[target.turn].get(TURN_WEIGHT, 1.0))
            for target in found.turns
            for span in target.spans
        ]
        return rendered.text, tuple(sorted(spans))

    def _turns(self, conversation: Conversation) -> Turns:
        drop = self._options.reasoning == "drop"
        return without_reasoning(conversation.turns) if drop else conversation.turns

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

    def _note(self, turns: Turns, found: ChatTargets, wanted: Sequence[int], place: str) -> None:
        note = self._findings.note
        bare = [target for target in found.turns if not target.ended]
        note(NO_END_MARK, place, count=len(bare))
        note(EMPTY_ANSWERS, place, count=any(_is_empty(turns[n]) for n in wanted))
        calls = {n for n, kinds in found.left_out.items() if "call" in kinds}
        note(CALLS_LEFT_OUT, place, count=len(calls))
        note(UNLEARNED_TURNS, place, count=len(set(found.lost) - calls))
        without = {n for n, kinds in found.left_out.items() if "reasoning" in kinds}
        last = {n for n in without if n in wanted and _is_last_answer(turns, n)}
        note(LAST_REASONING_LEFT_OUT, place, count=len(last))
        note(REASONING_LEFT_OUT, place, count=len(without - last))
        gone = [n for n, kinds in found.left_out.items() if "content" in kinds]
        gone = [n for n in gone if n not in found.lost]
        note(MESSAGES_LEFT_OUT, place, _roles("role", [turns[n] for n in gone]), count=len(gone))


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
