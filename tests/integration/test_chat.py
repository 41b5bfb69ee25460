"""A chat is answered by base and adapter, and training goes on as if nobody had asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fttui.engine.protocol.chat.events import ChatAnswered, ChatAsked
from fttui.engine.protocol.events import (
    CommandApplied,
    CommandFailed,
    SampleGenerated,
    StepFinished,
)
from tests.support.training import Played, Script, new_run, play

CHATS = [
    "chat tokens=8 hello",
    'chat tokens=8 temperature=0.9 seed=3 turns=\'[["a", "base said", "adapter said"]]\' and now?',
]


def _steps(played: Played) -> list[tuple[float, float | None]]:
    return [(event.loss_or_nan, event.grad_norm) for event in played.events(StepFinished)]


def test_base_and_adapter_answer_and_training_goes_on_bit_for_bit(tmp_path: Path) -> None:
    sets: dict[str, Any] = {"task": "sft", "train__steps": 6, "adapter__dropout": 0.1}
    for name in ("plain", "chatted"):
        (tmp_path / name).mkdir()
    plain = play(new_run(tmp_path / "plain", **sets))
    commands = {2: ["checkpoint", *CHATS], 4: [*CHATS, "chat at=2 tokens=8 hello"]}
    chatted = play(new_run(tmp_path / "chatted", **sets), Script(commands=commands))
    assert _steps(chatted) == _steps(plain)
    assert len(chatted.events(CommandApplied)) == 6
    *answers, base, earlier = chatted.events(ChatAnswered)
    assert [a.answerer for a in answers] == ["base", "adapter"] * 4
    assert (base.text, earlier.text) == (answers[0].text, answers[1].text), "as it was at step 2"
    assert chatted.events(ChatAsked)[-1].checkpoint == "step-000002"
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


@pytest.mark.long
def test_a_kept_prompt_is_sampled_at_each_evaluation_also_after_a_resume(tmp_path: Path) -> None:
    sets: dict[str, Any] = {"task": "sft", "train__steps": 6, "eval__every": 2}
    sets["eval__samples"] = "[first]"
    for name in ("plain", "kept"):
        (tmp_path / name).mkdir()
    plain = play(new_run(tmp_path / "plain", **sets))
    run = new_run(tmp_path / "kept", **sets)
    play(run, Script(commands={1: ["keep what is it?"], 3: ["stop"]}))
    resumed = play(run, resume="last")
    assert _steps(resumed) == _steps(plain)
    prompts = [one.prompt for one in resumed.events(SampleGenerated)]
    assert prompts == ["first", "what is it?"] * 3
    dropped = play(run, Script(early=["keep drop what"]), resume="3")
    (failed,) = dropped.events(CommandFailed)
    assert failed.reason == "no such prompt is kept; the kept ones are: what is it?"


@pytest.mark.long
def test_a_checkpoint_that_does_not_exist_answers_nothing(tmp_path: Path) -> None:
    sets: dict[str, Any] = {"task": "sft", "train__steps": 3}
    played = play(new_run(tmp_path, **sets), Script(commands={1: ["chat at=77 hello"]}))
    (failed,) = played.events(CommandFailed)
    assert "77" in failed.reason
    assert not played.events(ChatAsked)
