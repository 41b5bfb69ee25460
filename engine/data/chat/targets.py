"""Find the characters of a rendered conversation that are learned: each turn with its end mark.

The target of a turn begins after the generation prompt. If the text has only the beginning of that
prompt, it begins after that part. It ends after the end-of-turn token. Both ends are found with
marks around the strings of the messages, so it does not matter whether the template repeats, drops
or rewrites other turns. Templates with `{% generation %}` define their targets themselves.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

from .edges import common, shared_beginning, without_cut_tag, without_cut_word
from .marks import Kind, Marking, PlacedString, unmarked
from .messages import REASONING, Turns
from .placement import Placement
from .template import ChatTemplate, Rendered, Span, Tools

_WORDED = re.compile(
    r"<\|[^<>|\s]{1,60}\|>|<｜[^<>｜\s]{1,60}｜>|</?s>|<(?:start|end)_of_turn>"
    r"|<\|[a-z_]{1,40}>|<[a-z_]{1,40}\|>"
)
"""End marks and headers of common templates, also where the tokenizer has no token for them."""
_OPENS = re.compile(r"start|begin|header|user|human|assistant|system|bos|\[INST\]|^<s>$", re.I)
"""Names of tokens that open a turn."""


@dataclass(frozen=True)
class TurnTarget:
    """The text that is learned of one turn."""

    turn: int
    spans: tuple[Span, ...]
    """Its characters; several spans if the template writes other messages into the turn."""
    ended: bool
    """Whether the spans include an end mark, such as the end-of-turn token."""


@dataclass
class ChatTargets:
    """The targets of a conversation, and what the template leaves out of it."""

    turns: list[TurnTarget] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    """Turns that should be learned, but cannot be found in the text as a whole."""
    left_out: dict[int, set[Kind]] = field(default_factory=dict)
    """Message → kinds of its strings that are not in the text."""
    changed: set[int] = field(default_factory=set)
    """Messages whose text the template writes with other characters."""


@dataclass(frozen=True)
class TargetFinder:
    """Finds targets by the chat template and the special tokens of a tokenizer.

    Args:
        template: The chat template.
        tokens: Texts of the special tokens of the tokenizer.
        eos: Text of the end-of-sequence token.
    """

    template: ChatTemplate
    tokens: Sequence[str]
    eos: str

    def find(
        self, turns: Turns, tools: Tools, rendered: Rendered, wanted: Sequence[int]
    ) -> ChatTargets:
        """Return the targets of a conversation.

        Args:
            turns: The messages.
            tools: The tools that were rendered with them.
            rendered: The conversation as text.
            wanted: Numbers of the turns that should be learned.
        """
        search = _Search(self, turns, tools, rendered)
        return search.targets(wanted, rendered.generated)

    def special(self, text: str) -> Iterator[re.Match[str]]:
        """Yield the special tokens of the tokenizer in a text, and marks of common templates."""
        return self._pattern.finditer(text)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        known = [re.escape(token) for token in sorted(self.tokens, key=len, reverse=True) if token]
        return re.compile("|".join([*known, _WORDED.pattern]))


class _Search:
    """Finds the targets of one conversation."""

    def __init__(
        self, finder: TargetFinder, turns: Turns, tools: Tools, rendered: Rendered
    ) -> None:
        self._finder = finder
        self._template = finder.template
        self._turns = turns
        self._tools = tools
        self._text = rendered.text
        self._form = rendered.form
        self._where = Placement(self._template, turns, tools, rendered)

    def targets(self, wanted: Sequence[int], generated: Sequence[Span]) -> ChatTargets:
        """Return the targets of turns; `generated`: the spans that the template names itself."""
        found = ChatTargets(left_out=self._where.left_out(), changed=self._where.changed())
        for turn in wanted:
            target = self._by_generation(turn, generated) or self._without_generation(turn)
            if target is not None:
                found.turns.append(target)
            if target is None or not self._is_whole(target):
                found.lost.append(turn)
        return found

    def _is_whole(self, target: TurnTarget) -> bool:
        """Whether all strings of a turn that the text contains are learned."""
        return all(
            any(start <= one.start and one.end <= end for start, end in target.spans)
            for one in self._where.of(target.turn)
        )

    def _without_generation(self, turn: int) -> TurnTarget | None:
        if turn in self._where.unmarkable:
            return self._by_prefix(turn)
        own = self._where.of(turn)
        if not own:
            return None
        parts = self._parts(own)
        spans = []
        for number, part in enumerate(parts):
            last = max(part, key=lambda one: one.end)
            start = part[0].start if number else self._start(turn, part[0])
            length, ended = self._closing(turn, last, last.end)
            spans.append((start, last.end + length))
        return TurnTarget(turn, tuple(spans), ended)

    def _parts(self, own: Sequence[PlacedString]) -> list[list[PlacedString]]:
        """Split the strings of a turn into groups, wherever other messages stand between them."""
        parts = [[own[0]]]
        for one, following in pairwise(own):
            between = (one.end, following.start)
            if any(
                between[0] <= other.start and other.end <= between[1]
                for other in self._where.placed
                if other.message != one.message
            ):
                parts.append([])
            parts[-1].append(following)
        return parts

    def _by_generation(self, turn: int, generated: Sequence[Span]) -> TurnTarget | None:
        """Return the target of a turn from `{% generation %}`, including its end-of-turn token.

        None if the template does not name this turn.
        """
        own = self._where.of(turn)
        named = [(a, b) for a, b in generated if any(a <= one.start < b for one in own)]
        if not named:
            return None
        # The header of the turn and white space behind it are not a part of what the model writes.
        starts = [max(named[0][0], self._start(turn, own[0])), *(a for a, _ in named[1:])]
        ends = [a + len(self._text[a:b].rstrip()) for a, b in named]
        spans = list(zip(starts, ends, strict=True))
        start, end = spans[-1]
        inside = list(self._finder.special(self._text[start:end]))
        ended = bool(inside) and inside[-1].end() == end - start
        last = max((one for one in own if one.start < end), key=lambda one: one.end)
        if not ended and last.end <= end:
            length, ended = self._closing(turn, last, end)
            spans[-1] = (start, end + length)
        return TurnTarget(turn, tuple(spans), ended)

    def _start(self, turn: int, first: PlacedString) -> int:
        """Return where the learned text of a turn begins: after the generation prompt.

        If the text has only the beginning of that prompt, the learned text begins after that part.
        Templates ask only for turns of the assistant; other turns begin with their first string.
        """
        if self._turns[turn].get("role") != "assistant":
            return first.start
        last = self._before(turn, first)
        before = last.end if last else 0
        gap = self._text[before : first.start]
        if last is not None and self._asks_alike(turn, last, gap):
            return first.start
        prompt = self._where.generation_prompt(turn)
        opened = self._behind_opener(prompt.opener, gap)
        if last is None or prompt.string != last.string or not prompt.tail.strip():
            return before + (len(gap) if opened is None else opened)
        length, whole = shared_beginning(gap, prompt.tail)
        if whole:
            return before + length
        if first.kind == "call":
            return before + max(self._cut(gap, length), opened or 0)
        return before + (opened or self._prefix_to_last_special_token(gap, length))

    def _before(self, turn: int, first: PlacedString) -> PlacedString | None:
        """Return the string of another message nearest before the first of a turn, or None."""
        others = [
            one for one in self._where.placed if one.message != turn and one.end <= first.start
        ]
        return max(others, key=lambda one: one.end, default=None)

    def _asks_alike(self, turn: int, last: PlacedString, gap: str) -> bool:
        """Whether a request for a turn ends with the text that stands before the turn.

        The requests of turns between two such turns are not rendered if the same text without
        reasoning stands before them: a longer request would not change where their target begins.
        """
        alike = self._headed_alike[self._turns[last.message].get("role"), gap]
        if REASONING.search(gap) or turn in (alike[0][0], alike[-1][0]):
            return self._is_asked(turn, last, gap)
        ends = (alike[0], alike[-1])
        return all(self._is_asked(*end, gap) for end in ends) or self._is_asked(turn, last, gap)

    def _is_asked(self, turn: int, last: PlacedString, gap: str) -> bool:
        asked = self._where.asked(turn)
        return asked is not None and (asked.string, asked.tail) == (last.string, gap)

    @cached_property
    def _headed_alike(self) -> Mapping[tuple[Any, str], Sequence[tuple[int, PlacedString]]]:
        """Turns of the assistant with the string before each.

        The keys are (role of the message with that string, text between the string and the turn).
        """
        found = defaultdict(list)
        for turn, message in enumerate(self._turns):
            own = self._where.of(turn) if message.get("role") == "assistant" else []
            last = self._before(turn, own[0]) if own else None
            if last is not None:
                gap = self._text[last.end : own[0].start]
                found[self._turns[last.message].get("role"), gap].append((turn, last))
        return found

    def _cut(self, gap: str, length: int) -> int:
        """Return the length of `gap[:length]` without an incomplete tag or word at its end."""
        return len(without_cut_word(without_cut_tag(gap[:length]), gap))

    def _prefix_to_last_special_token(self, gap: str, length: int) -> int:
        """Return the length of the shared part of a gap if it ends with a special token.

        Otherwise return the length of the whole gap.
        """
        shared = gap[: self._cut(gap, length)].rstrip()
        special = list(self._finder.special(shared))
        return len(shared) if special and special[-1].end() == len(shared) else len(gap)

    def _behind_opener(self, opener: str, gap: str) -> int | None:
        """Return where the longest prefix of an opener that stands in a gap ends.

        None if there is no such prefix, or only a part of a word or special token.
        """
        for length in range(len(opener), 0, -1):
            place = gap.rfind(opener[:length])
            if place < 0:
                continue
            if length == len(opener):
                return place + length
            shared = without_cut_tag(opener[:length])
            return place + len(shared) if self._is_header(shared, gap[place:]) else None
        return None

    def _is_header(self, shared: str, following: str) -> bool:
        """Whether `shared`, a beginning of the generation prompt, is a whole word in `following`.

        It is not if a word or special token of `following` continues after it.
        """
        special = list(self._finder.special(following))
        if special and special[0].start() == 0 and len(shared) < special[0].end():
            return False
        return bool(shared.strip()) and without_cut_word(shared, following) == shared

    def _closing(self, turn: int, last: PlacedString, end: int) -> tuple[int, bool]:
        """Return (length of the text that closes a turn, whether an end of the turn is learned).

        The length is 0 if no closing text is found. An end is a special token, or words that end
        every turn, in the closing text or in the learned text after `last`.

        Args:
            turn: Number of the turn.
            last: Its last string.
            end: End of the text learned so far, which is the end of `last` or later.
        """
        own = self._where.of(turn)
        after = [one.start for one in self._where.placed if one.start >= end and one not in own]
        following = [one.start for one in own if one.start >= end]
        tail = self._text[end : min([*after, *following], default=len(self._text))]
        if end == last.end and (length := self._single_end(tail, last.kind)):
            return length, True
        ending = self._where.ending(turn)
        alone = ending.behind(last.string) if ending else None
        stops_alike = _stops_alike(self._text[last.end : end] + tail, alone)
        alone = alone[end - last.end :] if alone is not None else None
        shared = self._shared(tail, alone)
        run = self._call_end if last.kind == "call" else self._run
        length = run(shared) or self._next_role(turn, shared, alone)
        if not length and not stops_alike:
            length = self._first_mark(tail)
        if length:
            if last.kind == "call" and not tail[:length].endswith(self._finder.eos):
                length = max(length, self._worded_end(turn, shared, alone))
            return length, self._has_end_mark(turn, tail[:length])
        if last.kind == "call":
            length = len(shared.rstrip()) if alone is not None else 0
            return length, self._has_end_mark(turn, tail[:length])
        length = self._worded_end(turn, shared, alone)
        return length, bool(self._text[last.end : end + length].strip())

    def _single_end(self, tail: str, kind: Kind) -> int:
        """Return the length of the only end mark with which a text begins.

        It is 0 if the end of the turn has to be compared with that of a conversation that stops
        there: if text stands before the mark, or a further end mark follows directly. What follows
        a tool call may be syntax of that call, so only the EOS ends it in any case.
        """
        marks = self._finder.special(tail)
        first = next(marks, None)
        if first is None or tail[: first.start()].strip() or self._opens(first.group()):
            return 0
        if first.group() == self._finder.eos:
            return first.end()
        if kind == "call":
            return 0
        second = next(marks, None)
        alone = second is None or tail[first.end() : second.start()].strip()
        return first.end() if alone or self._opens(second.group()) else 0  # type: ignore[union-attr]

    def _shared(self, tail: str, alone: str | None) -> str:
        """Return how the text after a turn begins, whether or not the conversation ends there.

        Args:
            tail: The text after the turn.
            alone: The text after it in a conversation that ends with it; None if that is not known.
        """
        shared = tail if alone is None else common(tail, alone)
        for mark in self._finder.special(tail):
            if mark.start() < len(shared) < mark.end():
                return shared[: mark.start()]
        return shared

    def _has_end_mark(self, turn: int, closing: str) -> bool:
        """Whether a text has a special token, or ends with the words that end a short answer."""
        if any(True for _ in self._finder.special(closing)):
            return True
        answer = Marking([*self._turns[:turn], {"role": "assistant", "content": "a"}])
        made = self._template.text(answer.marked([turn]), self._tools, self._form)
        placed = [one for one in answer.placed(made or "") if one.message == turn]
        worded = unmarked(made or "")[placed[-1].end :].strip() if placed else ""
        return bool(worded) and closing.rstrip().endswith(worded)

    def _call_end(self, tail: str) -> int:
        """Return the length of the syntax that closes a tool call, with its end mark; 0 without."""
        length = 0
        for mark in self._finder.special(tail):
            if self._opens(mark.group()):
                return length or len(tail[: mark.start()].rstrip())
            length = mark.end()
            if mark.group() == self._finder.eos:
                break
        return length

    def _run(self, tail: str) -> int:
        """Return the length of a text up to the end of its first run of end marks; 0 without any.

        Text before the run is included.
        """
        length = 0
        for mark in self._finder.special(tail):
            if (length and tail[length : mark.start()].strip()) or self._opens(mark.group()):
                break
            length = mark.end()
            if mark.group() == self._finder.eos:
                break
        return length

    def _next_role(self, turn: int, shared: str, alone: str | None) -> int:
        """Return the length of the token of the next role if models stop with it, otherwise 0.

        Args:
            turn: Number of the turn.
            shared: How the text after the turn begins, whether or not the conversation ends there.
            alone: The text after it in a conversation that ends with it; None gives 0.
        """
        mark = next(self._finder.special(shared), None)
        if mark is None or alone is None or alone.strip() != mark.group():
            return 0
        prompt = self._where.generation_prompt(turn)
        return 0 if mark.group() in prompt.opener + prompt.tail else mark.end()

    def _first_mark(self, tail: str) -> int:
        mark = next(self._finder.special(tail), None)
        return 0 if mark is None or self._opens(mark.group()) else mark.end()

    def _worded_end(self, turn: int, shared: str, alone: str | None) -> int:
        """Return the length of an end mark that is not a special token; 0 without one.

        Args:
            turn: Number of the turn.
            shared: How the text after the turn begins, whether or not the conversation ends there.
            alone: The text after it in a conversation that ends with it; None gives 0.
        """
        if alone is None or any(self._opens(m.group()) for m in self._finder.special(shared)):
            return 0
        if turn == len(self._turns) - 1 and alone.strip():
            shared = common(shared, self._continued(turn) or shared)
        if len(shared) < len(alone.rstrip()):  # the rest of the line may begin another turn
            shared = shared[: max(shared.rfind(closes) for closes in "\n>]") + 1]
        return len(shared.rstrip())

    def _continued(self, turn: int) -> str | None:
        """Return the text that follows the last turn in a conversation that the user continues.

        None if the strings around it are not found.
        """
        turns = [*self._turns, {"role": "user", "content": "a"}]
        marking = Marking(turns)
        made = self._template.text(marking.marked([turn, turn + 1]), self._tools, self._form)
        placed = marking.placed(made or "")
        own = [one.end for one in placed if one.message == turn]
        answer = [one.start for one in placed if one.message > turn]
        return unmarked(made or "")[own[-1] : answer[0]] if own and answer else None

    def _opens(self, token: str) -> bool:
        """Whether a token opens turns; the end-of-sequence token never does.

        Another token does by its name, or if it stands before the first turn and is the one next to
        that turn or also a part of the generation prompt.
        """
        if token == self._finder.eos:
            return False
        if _OPENS.search(token) is not None:
            return True
        before = {mark.group() for mark in self._before_first}
        return token in before and token in self._openers

    @cached_property
    def _before_first(self) -> list[re.Match[str]]:
        """The special tokens before the first string."""
        placed = self._where.placed
        return list(self._finder.special(self._text[: placed[0].start])) if placed else []

    @cached_property
    def _openers(self) -> set[str]:
        placed = self._where.placed
        first = self._text[: placed[0].start] if placed else ""
        before = self._before_first
        opener = self._template.opener(self._turns[:1], self._tools, self._form)
        asked = {mark.group() for mark in self._finder.special(opener)}
        nearest = {m.group() for m in before[-1:] if len(first[m.end() :].split()) < 2}
        # A system message that the template writes by itself ends with an end mark.
        ending = self._where.ending(placed[0].message) if placed else None
        tail = ending.text[max(one.end for one in ending.own) :] if ending else ""
        ends = [mark.group() for mark in self._finder.special(tail)]
        found = {*nearest, *(asked & {mark.group() for mark in before})} - set(ends[:1])
        return {token for token in found if not token.startswith("</")}

    def _by_prefix(self, turn: int) -> TurnTarget | None:
        """Return as the target what a turn adds to the text of the turns before it.

        None if the turn adds nothing or changes the text before it, if later turns change its text,
        or if the template rejects the turns.
        """
        turns = self._turns[:turn]
        before = self._template.text(turns, self._tools, self._form) if turns else ""
        opener = self._template.opener(turns, self._tools, self._form)
        through = self._template.text(self._turns[: turn + 1], self._tools, self._form)
        if before is None or through is None:
            return None
        shared = without_cut_tag(common(opener, through[len(before) :]))
        start = len(before) + len(shared)
        if not (through.startswith(before) and self._text.startswith(through.rstrip())):
            return None
        length, ended = self._run_end(through[start:])
        return TurnTarget(turn, ((start, start + length),), ended) if length else None

    def _run_end(self, text: str) -> tuple[int, bool]:
        ends = [mark.end() for mark in self._finder.special(text) if not self._opens(mark.group())]
        return (ends[-1], True) if ends else (len(text.rstrip()), bool(text.strip()))


def _stops_alike(tail: str, alone: str | None) -> bool:
    """Whether a turn ends with the same words in the middle and at the end of a conversation.

    Args:
        tail: The text after the turn.
        alone: The text after it in a conversation that ends with it; None gives False.
    """
    return alone is not None and bool(alone.strip()) and tail.startswith(alone.rstrip())
