"""Tokens of a trainer that generates its data."""

from __future__ import annotations

from fttui.engine.watch.huggingface.session import GeneratedTokens


def test_the_steps_of_one_generation_share_its_tokens() -> None:
    seen = iter([100, 300, 300, 500, 500, 300, 420])  # the last but one after a rollback
    counted = GeneratedTokens(lambda: next(seen), 2)
    assert [counted.of_step() for _ in range(6)] == [100, 100, 100, 100, 100, 60]
