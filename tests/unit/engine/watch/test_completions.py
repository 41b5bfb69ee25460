"""The newest completion of an online trainer, as a sample of the run."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

from fttui.engine.watch.huggingface.completions import NewestCompletion


def trainer(prompts: list[Any], completions: list[Any]) -> Any:
    return SimpleNamespace(_logs={"prompt": deque(prompts), "completion": deque(completions)})


def test_the_newest_is_shown_once() -> None:
    one = trainer(["a:", "b:"], ["first", "second"])
    newest = NewestCompletion(one)
    assert newest.take() == ("b:", "second")
    assert newest.take() is None
    one._logs["prompt"].append("b:")
    one._logs["completion"].append("third")
    assert newest.take() == ("b:", "third")


def test_a_conversation_is_shown_by_turns() -> None:
    parts = [{"type": "text", "text": "hello"}, {"type": "image"}]
    prompt = [{"role": "system", "content": None}, {"role": "user", "content": parts}]
    found = NewestCompletion(trainer([prompt], [[{"role": "assistant", "content": "hi"}]])).take()
    assert found == ("system: \nuser: hello", "assistant: hi")


def test_other_trainers_have_none() -> None:
    for other in (SimpleNamespace(), SimpleNamespace(_logs=[]), trainer([], [])):
        assert NewestCompletion(other).take() is None
