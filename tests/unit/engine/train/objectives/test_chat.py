"""Who answers a chat, how an answer grows, and what ranks do meanwhile; with a scripted model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fttui.engine.model.adapter.switch import adapter_off
from fttui.engine.protocol.chat.events import ChatAnswered, ChatAsked, ChatContinued
from fttui.engine.protocol.command_kinds import ChatTurn
from fttui.engine.protocol.commands import Chat
from fttui.engine.protocol.events import AnyEvent
from fttui.engine.train.control.command_scheduler import Impossible
from fttui.engine.train.distributed.agreement import Agreement, SingleRank
from fttui.engine.train.objectives.chat import (
    ChatModel,
    ChatResponder,
    GrowingAnswer,
    messages_of,
)
from tests.support.rank_threads import in_threads
from tests.support.tokenizer import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
ANSWERS = {"base": "from the base", "adapter": "grüße"}


class Scripted(nn.Module):
    """Says what is written for base and adapter, a byte at a time; it may fail."""

    def __init__(self, fails: bool = False, positions: int = 1000) -> None:
        super().__init__()
        self.frozen = nn.Parameter(torch.zeros(1), requires_grad=False)
        self.trained = nn.Parameter(torch.zeros(1))
        self.who, self._fails = "adapter", fails
        text = SimpleNamespace(to_dict=lambda: {"max_position_embeddings": positions})
        self.config = SimpleNamespace(get_text_config=lambda: text)
        self.heard: list[str] = []

    @contextmanager
    def disable_adapter(self) -> Iterator[None]:
        """As PEFT: all weights have gradients afterwards."""
        self.who = "base"
        yield
        self.who = "adapter"
        self.frozen.requires_grad_(True)

    def generate(
        self, input_ids: Tensor, max_new_tokens: int, stopping_criteria: Any, **_: Any
    ) -> Tensor:
        """The prompt and the answer."""
        self.heard.append(TOKENIZER.decode(input_ids[0]))
        if self._fails:
            raise RuntimeError("out of memory")
        answer = TOKENIZER(ANSWERS[self.who] + "<|im_end|>")["input_ids"][:max_new_tokens]
        for token in answer:
            input_ids = torch.cat([input_ids, torch.tensor([[token]])], dim=1)
            if all(bool(criterion(input_ids, None).all()) for criterion in stopping_criteria):
                break
        return input_ids


def responder(model: Scripted, agreement: Agreement | None = None, **changes: Any) -> ChatResponder:
    parts: dict[str, Any] = {"running": nullcontext, "device": torch.device("cpu"), **changes}
    answering = ChatModel(model=model, tokenizer=TOKENIZER, **parts)
    ticks = iter(range(100_000))  # every look at the clock finds a new event due
    return ChatResponder(answering, agreement or SingleRank(), lambda: float(next(ticks)))


def answered(
    model: Scripted, chat: Chat, interrupted: Callable[[], bool] = lambda: False, **changes: Any
) -> list[AnyEvent]:
    events: list[AnyEvent] = []
    responder(model, **changes).answer(chat, events.append, interrupted)
    return events


def test_base_and_adapter_answer_and_the_events_grow_to_the_whole_text() -> None:
    model = Scripted()
    asked, *events = answered(model, Chat(prompt="hi", tokens=40))
    assert isinstance(asked, ChatAsked)
    assert asked.answerers == ("base", "adapter")
    for who in ("base", "adapter"):
        grown = ""
        for event in events:
            if isinstance(event, ChatContinued) and event.answerer == who:
                grown = grown[: event.start] + event.text
        whole = [e for e in events if isinstance(e, ChatAnswered) and e.answerer == who]
        assert [(e.text, e.ending) for e in whole] == [(ANSWERS[who], "end")]
        assert grown == ANSWERS[who]
    assert not any("�" in e.text for e in events if isinstance(e, ChatContinued))


def test_switching_the_adapter_off_changes_nothing_that_is_trained() -> None:
    model = Scripted()
    with adapter_off(model):
        assert model.who == "base"
    assert [weight.requires_grad for weight in model.parameters()] == [False, True]


def test_without_a_base_the_model_answers_alone() -> None:
    asked, *events = answered(Scripted(), Chat(prompt="hi"), no_base="none is there")
    assert isinstance(asked, ChatAsked)
    assert (asked.answerers, asked.notes) == (("model",), ("none is there",))
    assert [e.answerer for e in events if isinstance(e, ChatAnswered)] == ["model"]


def test_each_answerer_reads_its_own_answers() -> None:
    turns = (ChatTurn(prompt="a", base="by base", now="by adapter"),)
    chat = Chat(prompt="b", system="be brief", turns=turns)
    assert [m["content"] for m in messages_of(chat, "base")] == ["be brief", "a", "by base", "b"]
    model = Scripted()
    answered(model, chat)
    assert [("by base" in heard, "by adapter" in heard) for heard in model.heard] == [
        (True, False),
        (False, True),
    ]


def test_an_answer_is_cut_at_the_largest_number_of_tokens_and_at_the_context() -> None:
    events = answered(Scripted(), Chat(prompt="hi", tokens=4))
    assert [(e.tokens, e.ending) for e in events if isinstance(e, ChatAnswered)] == [
        (4, "limit")
    ] * 2
    asked = answered(Scripted(positions=60), Chat(prompt="hi", tokens=50))[0]
    assert isinstance(asked, ChatAsked)
    assert asked.tokens < 50
    assert "is left in the model's context" in asked.notes[0]
    with pytest.raises(Impossible, match="begin a new conversation"):
        answered(Scripted(positions=10), Chat(prompt="hi"))


def test_a_stop_ends_the_chat_and_keeps_what_was_said() -> None:
    events = answered(Scripted(), Chat(prompt="hi"), lambda: True)
    (answer,) = [e for e in events if isinstance(e, ChatAnswered)]
    assert (answer.text, answer.ending) == ("f", "stopped")


def test_a_failure_is_told_and_fails_the_command() -> None:
    events: list[AnyEvent] = []
    with pytest.raises(Impossible, match="the base could not answer: RuntimeError: out of memory"):
        responder(Scripted(fails=True)).answer(Chat(prompt="a"), events.append, lambda: False)
    assert isinstance(events[-1], ChatAnswered)
    assert events[-1].ending == "failed"


@pytest.mark.parametrize("fails", [False, True])
def test_one_rank_generates_and_the_others_wait_for_it(fails: bool) -> None:
    models = [Scripted(fails=fails) for _ in range(2)]
    told: list[list[AnyEvent]] = [[], []]

    def act(agreement: Agreement) -> str:
        rank = agreement.rank
        answering = responder(models[rank], agreement)
        try:
            return answering.answer(Chat(prompt="hi"), told[rank].append, lambda: False)
        except Impossible as error:
            return str(error)

    assert len(in_threads(2, act)) == 2
    assert (len(models[0].heard), models[1].heard) == (1 if fails else 2, [])
    assert told[0]
    assert not told[1]


def test_ranks_agree_that_a_chat_has_ended() -> None:
    def act(agreement: Agreement) -> str:
        answering = responder(Scripted(), agreement)
        return answering.answer(Chat(prompt="hi"), lambda _: None, lambda: True)

    first, second = in_threads(2, act)
    assert first.startswith("base 1 tokens")
    assert "adapter" not in first + second


def test_half_a_character_is_held_back() -> None:
    tokens = TOKENIZER("aü")["input_ids"]
    told: list[tuple[int, str]] = []
    ticks = iter(range(100))
    growing = GrowingAnswer(
        TOKENIZER.decode, 0, lambda *grown: told.append(grown), lambda: False, lambda: next(ticks)
    )
    for end in range(1, len(tokens) + 1):
        growing(torch.tensor([tokens[:end]]), None)
    assert told == [(0, "a"), (1, "ü")]
