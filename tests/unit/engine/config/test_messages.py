"""A wrong value is shown on one line, with the choice that was meant if one is near."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from fttui.engine.config.messages import describe_value, suggest_value

Schedule = Literal["linear", "cosine"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": 1}, "a mapping"),
        (list(range(20)), "a list"),
        ([1, 2], "[1, 2]"),
        (["x" * 56], f"['{'x' * 56}']"),
        (["x" * 57], "a list"),
        ("x" * 60, repr("x" * 60)),
        ("x" * 61, repr("x" * 57 + "…")),
        (None, "null"),
        (True, "true"),
        (False, "false"),
        (0.5, "0.5"),
    ],
)
def test_a_value_is_short_enough_for_one_line(value: Any, text: str) -> None:
    assert describe_value(value) == text


@pytest.mark.parametrize(
    ("value", "annotation", "hint"),
    [
        ("cosin", Schedule, "; did you mean 'cosine'?"),
        ("COSINE", Schedule, "; did you mean 'cosine'?"),
        ("nothing of the kind", Schedule, ""),
        (7, Schedule, ""),
        ("cosin", str, ""),
    ],
)
def test_the_choice_that_was_meant_is_named(value: Any, annotation: Any, hint: str) -> None:
    assert suggest_value(value, annotation) == hint
