"""Find where the strings of a conversation stand in its rendered text, and which are missing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .marks import (
    MOST_STRINGS,
    STYLES,
    Kind,
    Marking,
    PlacedString,
    Style,
    has_marks,
    opening_mark,
    unmarked,
)
from .messages import REASONING, Turns
from .template import ChatTemplate, Rendered, Tools


@dataclass(frozen=True)
class Ending:
    """The conversation rendered up to and including one turn, and the places of its strings."""

    own: list[PlacedString]
    """Where the strings of the turn stand in `text`."""
    text: str
    """The text of the conversation that stops after the turn."""

    def count(self, string: int) -> int:
        """Return how often the text contains a string of the turn, which is given by its number."""
        return sum(one.string == string for one in self.own)

    def behind(self, string: int) -> str | None:
        """Return the text from a string's last occurrence to the turn's next string or to the end.

        `string` is the number of the string; None if the text does not contain it.
        """
        ends = [one.end for one in self.own if one.string == string]
        if not ends:
            return None
        after = [one.start for one in self.own if one.start >= ends[-1]]
        return self.text[ends[-1] : min(after, default=len(self.text))]


@dataclass(frozen=True)
class GenerationPrompt:
    """The generation prompt before an answer, and the last string before it."""

    string: int | None
    """Number of the last string before the answer; None if there is none."""
    tail: str
    """The text behind that string."""
    opener: str
    """What the template adds to the messages to ask for an answer."""


@dataclass(frozen=True)
class Asked:
    """A request for an answer to the messages before a turn."""

    string: int | None
    """Number of the last string in the request; None if there is none."""
    tail: str
    """The text behind that string."""
    text: str
    """The request with marks."""


class Placement:
    """Finds the strings of one conversation in its text.

    Args:
        template: The chat template.
        turns: The messages.
        tools: The tools that were rendered with them.
        rendered: The conversation as text.
    """

    def __init__(
        self, template: ChatTemplate, turns: Turns, tools: Tools, rendered: Rendered
    ) -> None:
        self._template = template
        self._turns = turns
        self._tools = tools
        self._form = rendered.form
        self._endings: dict[int, Ending | None] = {}
        self._asked: dict[int, Asked | None] = {}
        self._style: Style = "inner"
        self._mixed = False
        """Whether some messages need another style than the others."""
        self.text = rendered.text
        self.marking = Marking(turns)
        self.unmarkable = {n for n in range(len(turns)) if not self.marking.of(n)}
        """Messages without strings, and messages that marks would change."""
        self.placed = self._place_all()
        """Where the strings stand, in order."""
        self._placed_of: dict[int, list[PlacedString]] = {}
        for one in self.placed:
            self._placed_of.setdefault(one.message, []).append(one)

    def of(self, message: int) -> list[PlacedString]:
        """Return the places of the strings that belong to a message.

        Later messages may repeat a string, such as the name of a tool. A message owns as many
        occurrences of its string as there are in the conversation that ends with this message.
        """
        own = self._placed_of.get(message, [])
        if len({one.string for one in own}) == len(own):
            return own
        ending = self.ending(message)
        if ending is None:
            return own
        seen: Counter[int] = Counter()
        kept = []
        for one in own:
            seen[one.string] += 1
            if seen[one.string] <= max(1, ending.count(one.string)):
                kept.append(one)
        return kept

    def ending(self, message: int) -> Ending | None:
        """Return the conversation that ends with a message.

        None if the template refuses it, or no string of the message is found in it.
        """
        if message not in self._endings:
            self._endings[message] = self._ending(message)
        return self._endings[message]

    def _ending(self, message: int) -> Ending | None:
        text: str | None = self.text
        if message < len(self._turns) - 1:
            text = self._rendered(self._turns[: message + 1])
        if text is None:
            return None
        if not self._mixed and self.text.startswith(text):
            # The template writes this part alike whether or not the conversation continues.
            own = [one for one in self._placed_of.get(message, []) if one.end <= len(text)]
        else:
            own = self._either([message], text, message + 1) or []
        return Ending(own, text) if own else None

    def left_out(self) -> dict[int, set[Kind]]:
        """Return {message: kinds of its strings that are missing in the text}."""
        there = self._there()
        missing: dict[int, set[Kind]] = {}
        for number, string in enumerate(self.marking.strings):
            if number in there:
                continue
            if string.message not in self.unmarkable or self._vanishes(number, there):
                missing.setdefault(string.message, set()).add(string.kind)
        return missing

    def _there(self) -> set[int]:
        """Return the numbers of the strings that stand in the text.

        A template that writes the tags of reasoning itself drops an outer mark with the first tag,
        so the strings of such messages are searched for with inner marks too.
        """
        there = {one.string for one in self.placed}
        gone = {one.message for n, one in enumerate(self.marking.strings) if n not in there}
        contents = [self._turns[number].get("content") for number in gone - self.unmarkable]
        if self._style != "inner" and any(REASONING.search(str(one)) for one in contents):
            there |= {one.string for one in self._with_marks(None, self.text, "inner") or ()}
        return there

    def changed(self) -> set[int]:
        """Return the messages of which a text stands in the conversation with other characters."""
        found: set[int] = set()
        for one in self.placed:
            string = self.marking.strings[one.string].text
            # Marks at the ends of a content enclose tags of reasoning as well.
            there = REASONING.sub("", self.text[one.start : one.end]).strip()
            if one.kind != "call" and there not in (string, *_as_json(string)):
                found.add(one.message)
        return found

    def _vanishes(self, number: int, there: set[int]) -> bool:
        """Whether a string that cannot be marked is missing in the text.

        It is missing if a change of the string leaves the text the same, or if the text contains it
        no more often than the strings found elsewhere (their numbers are `there`) do.
        """
        for change in (_longer, _other):
            if self._rendered(self.marking.changed(number, change)) == self.text:
                return True
        string = self.marking.strings[number].text
        others = sum(self.marking.strings[one].text.count(string) for one in there)
        forms = {string, *_as_json(string)}
        return max(self.text.count(form) for form in forms) <= others

    def generation_prompt(self, turn: int) -> GenerationPrompt:
        """Return the generation prompt before a turn.

        If the messages before the turn cannot be marked, it has no string and no tail. The
        template remembers what it adds to the messages, for later calls.
        """
        asked = self.asked(turn)
        if asked is None:
            opener = self._template.opener(self._turns[:turn], self._tools, self._form)
            return GenerationPrompt(None, "", opener)
        if opener := self._template.known_opener(asked.text):
            return GenerationPrompt(asked.string, asked.tail, opener)
        before = self.marking.marked(style=self._style, stop=turn)
        plain = self._rendered(before) or ""
        headed = None
        if asked.text.strip() == plain.strip():
            headed = self._headed(turn, before)
            asked = self._tail(turn, headed or plain)
        bare, plain = unmarked(asked.text), unmarked(plain)
        opener = bare[len(plain) :] if bare.startswith(plain) else ""
        if headed is None:
            self._template.learn_opener(opener)
        return GenerationPrompt(asked.string, asked.tail, opener)

    def asked(self, turn: int) -> Asked | None:
        """Return the messages before a turn, rendered as a request for an answer.

        None if there are no messages before the turn, or they cannot be marked or rendered.
        """
        if turn not in self._asked:
            made = None
            if turn and self._marked_alike(turn):
                before = self.marking.marked(style=self._style, stop=turn)
                made = self._rendered(before, opening=True)
                if self._mixed and made is not None:
                    plain = self._rendered(self._turns[:turn], opening=True)
                    made = made if unmarked(made) == plain else None
            self._asked[turn] = None if made is None else self._tail(turn, made)
        return self._asked[turn]

    def _tail(self, turn: int, asked: str) -> Asked:
        ends = [one for one in self.marking.placed(asked, self._style) if one.message < turn]
        last = max(ends, key=lambda one: one.end, default=None)
        tail = unmarked(asked)[last.end :] if last else ""
        return Asked(last.string if last else None, tail, asked)

    def _headed(self, turn: int, before: list[dict[str, Any]]) -> str | None:
        """Return the rendered messages before a turn with the header of the turn; None without one.

        The header is found by rendering a short answer in place of the turn.
        """
        answer = Marking([*self._turns[:turn], {"role": "assistant", "content": "a"}])
        marked = answer.marked([turn])
        answered = self._rendered([*before, marked[-1]]) or ""
        place = answered.find(opening_mark(answer.of(turn)[0]))
        return answered[:place] if place >= 0 else None

    def _marked_alike(self, stop: int) -> bool:
        """Whether marks do not change how the messages before `stop` are rendered."""
        return not any(self.marking.of(n) and n in self.unmarkable for n in range(stop))

    def _place_all(self) -> list[PlacedString]:
        everyone = range(len(self._turns))
        if has_marks(self.text) or len(self.marking.strings) > MOST_STRINGS:
            self.unmarkable |= set(everyone)
            return []
        for style in ("outer", "inner"):
            whole = self._with_marks(None, self.text, style)
            if whole is not None:
                self._style = style
                return whole
        placed: list[PlacedString] = []
        self._mixed = True
        for number in everyone:
            one = self._either([number], self.text)
            if one is None:
                self.unmarkable.add(number)
            else:
                placed += one
        return sorted(placed, key=lambda one: (one.start, one.end))

    def _either(
        self, chosen: Sequence[int], text: str, stop: int | None = None
    ) -> list[PlacedString] | None:
        """Return the places of strings in a text, by a style of marks that does not change it.

        None if every style changes the text.
        """
        for style in STYLES:
            placed = self._with_marks(chosen, text, style, stop)
            if placed is not None:
                return placed
        return None

    def _with_marks(
        self, chosen: Sequence[int] | None, text: str, style: Style, stop: int | None = None
    ) -> list[PlacedString] | None:
        """Return where marked strings stand; None if the marks change the text or are refused."""
        made = self._rendered(self.marking.marked(chosen, style=style, stop=stop))
        if made is None or unmarked(made) != text:
            return None
        return self.marking.placed(made, style)

    def _rendered(self, turns: Turns, *, opening: bool = False) -> str | None:
        return self._template.text(turns, self._tools, self._form, opening=opening)


def _as_json(text: str) -> Iterator[str]:
    """Yield a text as it stands between quotes in JSON, with and without escapes of ASCII."""
    for ascii_only in (True, False):
        yield json.dumps(text, ensure_ascii=ascii_only)[1:-1]


def _longer(text: str) -> str:
    return f"{text}x"


def _other(text: str) -> str:
    """Return a different text of the same length."""
    return "".join("x" if letter != "x" else "y" for letter in text)
