"""Find the characters of a rendered conversation that are learned: turns and their end marks.

A turn begins behind the text with which the template asks for an answer (the opener), as far as
that text stands before the turn, and ends behind its end mark. Both are found with marks around
the strings of the messages, so it does not matter whether the template repeats, drops or rewrites
other turns. Templates with `{% generation %}` name their targets themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from . import marks
from .marks import Placed
from .messages import Turns
from .template import ChatTemplate, Rendered, Tools

Span = tuple[int, int]
_WORDED = re.compile(r"<\|[^<>|\s]{1,60}\|>|<｜[^<>｜\s]{1,60}｜>|</?s>|<(?:start|end)_of_turn>")
"""End marks and headers of common templates, also where the tokenizer has no token for them."""
_OPENS = re.compile(r"start|begin|header|user|human|assistant|system|bos|\[INST\]|^<s>$", re.I)
"""Names of tokens that open a turn."""


@dataclass(frozen=True)
class TurnTarget:
    """The text that is learned of one turn."""

    turn: int
    span: Span
    ended: bool
    """Whether it includes an end mark."""


@dataclass
class ChatTargets:
    """The targets of a conversation, and what the template leaves out of it."""

    turns: list[TurnTarget] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    """Turns that should be learned, but cannot be found in the text."""
    left_out: dict[int, set[marks.Kind]] = field(default_factory=dict)
    """Message → kinds of its strings that are not in the text."""


@dataclass(frozen=True)
class TargetFinder:
    """Finds targets with the marks that a tokenizer knows.

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
        return search.targets(wanted, self.template.generated(turns, tools, rendered))

    def special(self, text: str) -> Iterator[re.Match[str]]:
        """Yield the special tokens in a text."""
        return self._pattern.finditer(text)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        known = [re.escape(token) for token in sorted(self.tokens, key=len, reverse=True) if token]
        return re.compile("|".join([*known, _WORDED.pattern]))


@dataclass(frozen=True)
class _Alone:
    """A turn at the end of a conversation."""

    own: list[Placed]
    """Where its strings stand."""
    tail: str
    """The text behind the last one."""


class _Search:
    """The search in one conversation."""

    def __init__(
        self, finder: TargetFinder, turns: Turns, tools: Tools, rendered: Rendered
    ) -> None:
        self._finder = finder
        self._template = finder.template
        self._turns = turns
        self._tools = tools
        self._text = rendered.text
        self._form = rendered.form
        self._placed, self._unmarkable = self._place_all()

    def targets(self, wanted: Sequence[int], generated: Sequence[Span]) -> ChatTargets:
        """Return the targets of turns; `generated`: the spans that the template names itself."""
        found = ChatTargets(left_out=self._left_out())
        for turn in wanted:
            target = self._by_generation(turn, generated) or self._without_generation(turn)
            if target is None:
                found.lost.append(turn)
            else:
                found.turns.append(target)
        return found

    def _without_generation(self, turn: int) -> TurnTarget | None:
        return self._by_prefix(turn) if turn in self._unmarkable else self._by_marks(turn)

    def _by_generation(self, turn: int, generated: Sequence[Span]) -> TurnTarget | None:
        """Return the span of `{% generation %}` that holds a turn, with the end mark behind it."""
        own = [one for one in self._placed if one.message == turn]
        spans = [(a, b) for a, b in generated if any(a <= one.start < b for one in own)]
        if not spans:
            return None
        # The header of the turn and white space behind it are no part of what the model writes.
        start = max(spans[0][0], self._start(turn, own[0].start))
        end = start + len(self._text[start : spans[-1][1]].rstrip())
        inside = list(self._finder.special(self._text[start:end]))
        if inside and inside[-1].end() == end - start:
            return TurnTarget(turn, (start, end), ended=True)
        after = [one.start for one in self._placed if one.start >= end]
        more = self._run(self._text[end : min(after, default=len(self._text))])
        return TurnTarget(turn, (start, end + more), more > 0)

    def _place_all(self) -> tuple[list[Placed], set[int]]:
        """Return where the strings of all messages stand, and messages that marks would change."""
        everyone = range(len(self._turns))
        if marks.has_marks(self._text) or len(self._turns) > marks.MOST_MESSAGES:
            return [], set(everyone)
        for outer in (True, False):
            whole = self._with_marks(self._turns, None, self._text, outer=outer)
            if whole is not None:
                return whole, self._bare()
        placed: list[Placed] = []
        unmarkable = self._bare()
        for number in everyone:
            one = self._either(self._turns, number, self._text)
            if one is None:
                unmarkable.add(number)
            else:
                placed += one
        return sorted(placed, key=lambda one: one.start), unmarkable

    def _either(self, turns: Turns, number: int, text: str) -> list[Placed] | None:
        """Return where the strings of a message stand, with outer marks or with inner ones."""
        outer = self._with_marks(turns, [number], text, outer=True)
        return self._with_marks(turns, [number], text, outer=False) if outer is None else outer

    def _with_marks(
        self, turns: Turns, chosen: Sequence[int] | None, text: str, *, outer: bool
    ) -> list[Placed] | None:
        """Return where marked strings stand; None if the marks change the text."""
        given = marks.marked(turns, chosen, outer=outer)
        made = self._template.text(given, self._tools, self._form)
        return None if made is None or marks.unmarked(made) != text else marks.placed(made)

    def _bare(self) -> set[int]:
        """Return the messages without any string to mark."""
        return {number for number, turn in enumerate(self._turns) if not marks.kinds_of(turn)}

    def _left_out(self) -> dict[int, set[marks.Kind]]:
        there = {(one.message, one.kind) for one in self._placed}
        missing = {
            number: {kind for kind in marks.kinds_of(turn) if (number, kind) not in there}
            for number, turn in enumerate(self._turns)
            if number not in self._unmarkable
        }
        return {number: kinds for number, kinds in missing.items() if kinds}

    def _by_marks(self, turn: int) -> TurnTarget | None:
        alone = self._alone(turn)
        own = [one for one in self._placed if one.message == turn]
        if alone is not None:  # later messages may repeat strings, such as the name of a tool
            own = own[: len(alone.own)]
        if not own:
            return None
        first, last = min(one.start for one in own), max(one.end for one in own)
        end = self._end(turn, last, alone.tail if alone else None)
        return TurnTarget(turn, (self._start(turn, first), end), end > last)

    def _start(self, turn: int, first: int) -> int:
        """Return where a turn begins: behind the opener, as far as it stands before the turn.

        Templates ask for turns of the assistant only; others begin with their first string.
        """
        if self._turns[turn].get("role") != "assistant":
            return first
        others = [one.end for one in self._placed if one.message != turn and one.end <= first]
        before = max(others, default=0)
        gap = self._text[before:first]
        opener = self._template.opener(self._turns[:turn], self._tools, self._form)
        if not opener.strip() and self._turns[turn].get("tool_calls"):
            return self._behind_prompt(turn, first)
        for length in range(len(opener), 0, -1):
            place = gap.rfind(opener[:length])
            if place >= 0:
                return self._behind(opener, length, gap[place:], before + place, first)
        return first

    def _behind_prompt(self, turn: int, first: int) -> int:
        """Return where the text before a turn ends, if answers follow it without a header."""
        asked = self._turns[:turn]
        prompt = self._template.text(asked, self._tools, self._form) or ""
        answer = marks.marked([*asked, {"role": "assistant", "content": "a"}], [turn])
        answered = self._template.text(answer, self._tools, self._form) or ""
        plain = answered.startswith(prompt) and not marks.before_first(answered[len(prompt) :])
        there = bool(prompt) and self._text.startswith(prompt) and len(prompt) <= first
        return len(prompt) if plain and there else first

    def _behind(self, opener: str, length: int, following: str, place: int, first: int) -> int:
        """Return the end of the part of an opener that stands at `place`, or `first`."""
        if length == len(opener):
            return place + length
        shared = _without_cut_tag(opener[:length])
        return place + len(shared) if self._is_header(shared, following) else first

    def _is_header(self, shared: str, following: str) -> bool:
        """Whether the beginning of an opener is a header of its own, not a part of another one."""
        special = list(self._finder.special(following))
        if special and special[0].start() == 0 and len(shared) < special[0].end():
            return False
        cut_word = shared[-1:].isalnum() and following[len(shared) : len(shared) + 1].isalnum()
        return bool(shared.strip()) and not cut_word

    def _alone(self, turn: int) -> _Alone | None:
        """Return a turn in the conversation that stops after it; None if it cannot be found."""
        turns, text = self._turns[: turn + 1], self._text
        if turn < len(self._turns) - 1:
            shorter = self._template.text(turns, self._tools, self._form)
            if shorter is None:
                return None
            text = shorter
        placed = self._either(turns, turn, text)
        return _Alone(placed, text[max(one.end for one in placed) :]) if placed else None

    def _end(self, turn: int, last: int, alone: str | None) -> int:
        """Return where the end mark of a turn ends, or `last` if it has none.

        Args:
            turn: Number of the turn.
            last: Where its last string ends.
            alone: The text behind that string if the conversation stopped after the turn.
        """
        after = [one.start for one in self._placed if one.start >= last and one.message != turn]
        tail = self._text[last : min(after, default=len(self._text))]
        shared = tail if alone is None else _common(tail, alone)
        run = self._call_end if self._turns[turn].get("tool_calls") else self._run
        return last + (run(shared) or self._first_mark(tail) or self._worded_end(shared, alone))

    def _call_end(self, tail: str) -> int:
        """Return the length of the syntax that closes a tool call, with its end mark."""
        length = 0
        for mark in self._finder.special(tail):
            if self._opens(mark.group()):
                return length or len(tail[: mark.start()].rstrip())
            length = mark.end()
        return length

    def _run(self, tail: str) -> int:
        """Return the length of the run of end marks with which a text begins; 0 without any."""
        length = 0
        for mark in self._finder.special(tail):
            if (length and tail[length : mark.start()].strip()) or self._opens(mark.group()):
                break
            length = mark.end()
            if mark.group() == self._finder.eos:
                break
        return length

    def _first_mark(self, tail: str) -> int:
        mark = next(self._finder.special(tail), None)
        return 0 if mark is None or self._opens(mark.group()) else mark.end()

    def _worded_end(self, shared: str, alone: str | None) -> int:
        """Return the length of an end mark that is no special token."""
        if alone is None or any(self._opens(m.group()) for m in self._finder.special(shared)):
            return 0
        return len(shared.rstrip())

    def _opens(self, token: str) -> bool:
        """Whether a token opens turns, by its name or because one stands before the first one."""
        if token == self._finder.eos:
            return False
        return _OPENS.search(token) is not None or token in self._openers

    @cached_property
    def _openers(self) -> set[str]:
        first = self._text[: self._placed[0].start] if self._placed else ""
        before = [mark.group() for mark in self._finder.special(first)]
        opener = self._template.opener(self._turns[:1], self._tools, self._form)
        asked = {mark.group() for mark in self._finder.special(opener)}
        # A system message that the template writes by itself ends with an end mark.
        alone = self._alone(self._placed[0].message) if self._placed else None
        ends = [mark.group() for mark in self._finder.special(alone.tail)] if alone else []
        return {*before[-1:], *(asked & set(before))} - set(ends[:1])

    def _by_prefix(self, turn: int) -> TurnTarget | None:
        """Return the text that a turn adds to the text before it; None if it changes that text."""
        turns, opener = self._turns[:turn], ""
        before = self._template.text(turns, self._tools, self._form) if turns else ""
        opener = self._template.opener(turns, self._tools, self._form)
        through = self._template.text(self._turns[: turn + 1], self._tools, self._form)
        if before is None or through is None:
            return None
        shared = _without_cut_tag(_common(opener, through[len(before) :]))
        start = len(before) + len(shared)
        if not (through.startswith(before) and self._text.startswith(through.rstrip())):
            return None
        end = start + self._run_end(through[start:])
        return TurnTarget(turn, (start, end), end > start) if end > start else None

    def _run_end(self, text: str) -> int:
        ends = [mark.end() for mark in self._finder.special(text) if not self._opens(mark.group())]
        return ends[-1] if ends else len(text.rstrip())


def _without_cut_tag(text: str) -> str:
    """Return a text without a tag at its end that is not closed, such as `<thi`."""
    for opens, closes in ("<>", "[]"):
        place = text.rfind(opens)
        if place > text.rfind(closes):
            text = text[:place]
    return text


def _common(one: str, other: str) -> str:
    length = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        length += 1
    return one[:length]
