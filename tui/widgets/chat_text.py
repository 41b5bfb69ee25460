"""The text of chats: prompts with the answers side by side, or below each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from textual.content import Content

from ..text import format as fmt
from ..view_model.chat.exchange import Answer, Exchange
from .text_line import ACCENT, BOLD, DIM, WATCH, Piece, assemble, plain

LEAST_COLUMN = 36
"""Fewest cells of an answer beside another; with less room, one is below the other."""
_BETWEEN = " │ "
_ENDINGS = {"limit": "cut at the token limit", "stopped": "ended because the run is stopping"}


def chat_rows(chats: Sequence[Exchange], width: int, *, answering: bool) -> list[Content]:
    """Return chats as lines of at most `width` cells.

    Args:
        chats: prompts and answers, the oldest first.
        width: cells of a line.
        answering: whether the newest prompt may be being answered.
    """
    rows: list[Content] = []
    before = None
    for number, one in enumerate(chats):
        if one.asked.conversation != before:
            before = one.asked.conversation
            rows += [_rule(one, width)]
        rows += exchange_rows(one, width, answering=answering and number == len(chats) - 1)
    return rows


def _rule(one: Exchange, width: int) -> Content:
    name = f"conversation {one.asked.conversation}" if one.asked.conversation else "single prompt"
    return assemble((f"── {name} ".ljust(width, "─"), DIM))


def exchange_rows(one: Exchange, width: int, *, answering: bool) -> Iterator[Content]:
    """Yield a prompt and its answers as lines of at most `width` cells."""
    asked = one.asked
    how = f"temperature {asked.temperature:g}" if asked.temperature else "greedy"
    about = f"step {one.step:,} · {how}" + (f" · system: {asked.system}" if asked.system else "")
    yield from assemble((about, DIM)).wrap(width)
    yield from assemble((f"> {asked.prompt}", f"bold {ACCENT}")).wrap(width)
    for note in asked.notes:
        yield from assemble((note, WATCH)).wrap(width)
    yield from _answers(one, width, answering)
    yield Content("")


def _answers(one: Exchange, width: int, answering: bool) -> Iterator[Content]:
    each = (width - len(_BETWEEN)) // 2
    if len(one.answers) != 2 or each < LEAST_COLUMN:
        for answer in one.answers:
            yield from _answer(answer, one, width, answering)
        return
    left, right = (_answer(answer, one, each, answering) for answer in one.answers)
    for a, b in zip_longest(left, right, fillvalue=Content("")):
        room = " " * max(0, each - a.cell_length)
        yield assemble(a, room, (_BETWEEN, DIM), b)


def _answer(answer: Answer, one: Exchange, width: int, answering: bool) -> Iterator[Content]:
    where = f"of {one.asked.checkpoint}" if one.asked.checkpoint else f"at step {one.step:,}"
    name = answer.answerer if answer.answerer == "base" else f"{answer.answerer} {where}"
    yield assemble((fmt.clip_to(name, width), BOLD))
    yield from (line for line in plain(answer.text).expand_tabs(4).wrap(width) if answer.text)
    yield from assemble(_state(answer, answering)).wrap(width)


def _state(answer: Answer, answering: bool) -> Piece:
    """Return how long an answer is and how it ended, or that it grows or is missing."""
    if not answer.ending:
        return ("…", ACCENT) if answering else ("no answer: the chat was interrupted", WATCH)
    size = f"{fmt.plural(answer.tokens, 'token')}, {fmt.duration(answer.seconds)}"
    if answer.ending == "failed":
        return (f"failed after {size}", WATCH)
    ending = _ENDINGS.get(answer.ending, "")
    return (f"{size}{', ' if ending else ''}{ending}", WATCH if ending else DIM)
