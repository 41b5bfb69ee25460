"""A slow tokenizer is exported too, with a note where it cannot be changed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fttui.engine.config.schema import ContrastiveConfig
from fttui.engine.export.embedding import embedding_notes, end_with_eos
from tests.support.tokenizer import tiny_tokenizer


class Slow:
    """The used part of a tokenizer written in Python."""

    is_fast = False
    eos_token = "</s>"
    eos_token_id = 7
    model_max_length = 0

    def __init__(self, *, appends: bool) -> None:
        self._end = [7] if appends else []

    def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
        assert "return_offsets_mapping" not in options, "a slow tokenizer has none"
        return {"input_ids": [1, *self._end]}


CONFIG: Any = SimpleNamespace(contrastive=ContrastiveConfig(instruction="find: "))


@pytest.mark.parametrize("appends", [True, False])
def test_a_slow_tokenizer_that_appends_no_eos_is_noted(appends: bool) -> None:
    tokenizer = Slow(appends=appends)
    notes = embedding_notes(tokenizer, CONFIG)
    assert [("append it to the texts" in note) for note in notes] == [True] * (not appends)
    end_with_eos(tokenizer, 64)
    assert tokenizer.model_max_length == 64


def test_a_fast_tokenizer_is_changed_without_a_note() -> None:
    tokenizer = tiny_tokenizer()
    assert embedding_notes(tokenizer, CONFIG) == []
    end_with_eos(tokenizer, 64)
    assert tokenizer("a")["input_ids"][-1] == tokenizer.eos_token_id
