"""A chat is answered by base and adapter, and training goes on as if nobody had asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fttui.engine.protocol.chat.events import ChatAnswered, ChatAsked
from fttui.engine.protocol.events import CommandApplied, CommandFailed, StepFinished
from tests.support.training import Played, Script, new_run, play

CHATS = [
    "chat tokens=8 hello",
    'chat tokens=8 temperature=0.9 seed=3 turns=\'[["a", "base said", "adapter said"]]\' and now?',
]


def _steps(played: Played) -> list[tuple[float, float | None]]:
    return [(event.loss, event.grad_norm) for event in played.events(StepFinished)]


def test_base_and_adapter_answer_and_training_goes_on_bit_for_bit(tmp_path: Path) -> None:
    sets: dict[str, Any] = {"task": "sft", "train__steps": 6, "adapter__dropout": 0.1}
    for name in ("plain", "chatted"):
        (tmp_path / name).mkdir()
    plain = play(new_run(tmp_path / "plain", **sets))
    chatted = play(new_run(tmp_path / "chatted", **sets), Script(commands={2: CHATS, 4: CHATS}))
    assert _steps(chatted) == _steps(plain)
    assert len(chatted.events(CommandApplied)) == 4
    answers = chatted.events(ChatAnswered)
    assert [a.answerer for a in answers] == ["base", "adapter"] * 4
    assert all(0 < a.tokens <= 8 for a in answers)
    greedy, sampled = answers[0::4], answers[2::4]
    assert greedy[0].text == greedy[1].text, "the base does not change"
    assert sampled[0].text == sampled[1].text, "nor does it with a seed of its own"
    assert {a.answerers for a in chatted.events(ChatAsked)} == {("base", "adapter")}


@pytest.mark.long
def test_without_an_adapter_the_model_answers_alone_and_says_why(tmp_path: Path) -> None:
    sets: dict[str, Any] = {
        "task": "sft",
        "train__steps": 3,
        "adapter__kind": "none",
        "model__quantize": "none",
    }
    played = play(new_run(tmp_path, **sets), Script(commands={1: ["chat tokens=4 hello"]}))
    (asked,) = played.events(ChatAsked)
    assert asked.answerers == ("model",)
    assert any("no base is in memory" in note for note in asked.notes)
    assert [a.answerer for a in played.events(ChatAnswered)] == ["model"]


@pytest.mark.long
def test_a_conversation_that_is_too_long_fails_and_changes_nothing(tmp_path: Path) -> None:
    sets: dict[str, Any] = {"task": "sft", "train__steps": 3}
    played = play(new_run(tmp_path, **sets), Script(commands={1: [f"chat {'long ' * 4000}"]}))
    (failed,) = played.events(CommandFailed)
    assert "begin a new conversation" in failed.reason
    assert not played.events(ChatAsked)
