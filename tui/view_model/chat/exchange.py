"""Prompts and their answers, folded from the journal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fttui.engine.protocol.chat.events import ChatAnswered, ChatAsked, ChatContinued
from fttui.engine.protocol.command_kinds import ChatTurn
from fttui.engine.protocol.events import Record

BASE = "base"
Exchanges = tuple["Exchange", ...]


@dataclass(frozen=True)
class Answer:
    """An answer, which may still grow."""

    answerer: str
    """Who answers: base, adapter or model."""
    text: str = ""
    tokens: int = 0
    seconds: float = 0.0
    ending: str = ""
    """Why it ends, as in `ChatAnswered`; empty while it grows or has not begun."""


@dataclass(frozen=True)
class Exchange:
    """A prompt and its answers, in the order of those who answer."""

    step: int
    """Finished steps when it was asked."""
    asked: ChatAsked
    answers: tuple[Answer, ...]

    @property
    def answered(self) -> bool:
        """Whether every answer is complete."""
        return all(answer.ending for answer in self.answers)

    @property
    def turn(self) -> ChatTurn:
        """The exchange as an earlier turn of the next prompt."""
        base = next((a.text for a in self.answers if a.answerer == BASE), "")
        now = next((a.text for a in self.answers if a.answerer != BASE), "")
        return ChatTurn(prompt=self.asked.prompt, base=base, now=now)

    def changed(self, answerer: str, change: Callable[[Answer], Answer]) -> Exchange:
        """Return the exchange with a change of one answer."""
        answers = (change(a) if a.answerer == answerer else a for a in self.answers)
        return replace(self, answers=tuple(answers))


def folded(known: Exchanges, record: Record, event: Any) -> Exchanges:
    """Return the exchanges after an event of a chat; answers belong to the newest prompt."""
    match event:
        case ChatAsked(answerers=answerers):
            return (*known, Exchange(record.step, event, tuple(map(Answer, answerers))))
        case ChatContinued(answerer=who, start=start, text=text) if known:
            grown = known[-1].changed(who, lambda a: replace(a, text=a.text[:start] + text))
            return (*known[:-1], grown)
        case ChatAnswered(answerer=who) if known:
            whole = Answer(who, event.text, event.tokens, event.seconds, event.ending or "end")
            return (*known[:-1], known[-1].changed(who, lambda _: whole))
        case _:
            return known  # the journal before was not read
