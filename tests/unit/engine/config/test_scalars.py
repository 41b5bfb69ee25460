"""Unquoted values of a configuration are read as the core schema of YAML 1.2 reads them."""

from __future__ import annotations

import math

import pytest

from fttui.engine.config.foreign.draft import number
from fttui.engine.config.yaml_tree import parse_scalar


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0x1F", 31),
        ("0o17", 15),
        ("017", 17),
        ("-12", -12),
        ("1.", 1.0),
        ("-.5e+3", -500.0),
        ("2e-4", 2e-4),
        (".INF", math.inf),
        ("-.Inf", -math.inf),
        ("Null", None),
        ("TRUE", True),
    ],
)
def test_numbers_and_words(text: str, value: object) -> None:
    found = parse_scalar(text)
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize("text", [".nan", ".NaN", ".NAN"])
def test_not_a_number(text: str) -> None:
    found = parse_scalar(text)
    assert isinstance(found, float)
    assert math.isnan(found)


@pytest.mark.parametrize(
    "text", ["٣", "1_000", "0b1", "-0x10", "inf", "nan", "+.nan", ".iNF", "yes", "no", "12:30", "."]
)
def test_everything_else_is_text(text: str) -> None:
    assert parse_scalar(text) == text


def test_a_number_too_large_for_any_key_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a number"):
        number(10**400)
