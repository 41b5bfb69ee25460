"""No text of a record reaches a terminal as a command or unseen."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fttui.tui.text.control_characters import escape_control_characters, escape_in_json, one_line

HOSTILE = "\x1b]52;c;aGk=\x07\x9b31m\x1b[2J\r\u202egnp\u200b\ud800\U000e0041"
"""A clipboard command, colours, a cleared screen, reversed text, and invisible characters."""


def unsafe(text: str) -> list[str]:
    """The characters of a text that a terminal obeys, or that cannot be seen or written."""
    kept = ("\n", "\t")
    hidden = ("Cc", "Cs", "Zl", "Zp")
    reordering = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI", "BN")
    return [
        one
        for one in text
        if one not in kept
        and (unicodedata.category(one) in hidden or unicodedata.bidirectional(one) in reordering)
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\n\ttext – ü", "plain\n\ttext – ü"),
        ("שלום 漢字 👩🏽 é", "שלום 漢字 👩🏽 é"),
        ("\x1b[31m", r"\x1b[31m"),
        ("a\rb\x00\x7f\x9b", r"a\rb\x00\x7f\x9b"),
        ("\u202eab\u2066\u200d\ufeff", r"\u202eab\u2066\u200d\ufeff"),
        ("\ud800 \U000e0041", r"\ud800 \U000e0041"),
    ],
)
def test_only_what_is_unsafe_is_shown_as_an_escape(text: str, shown: str) -> None:
    assert escape_control_characters(text) == shown


def test_one_line_stays_one_line() -> None:
    assert one_line("a\nb\tc\r\nd\u2028e") == r"a\nb\tc\r\nd\u2028e"


@given(st.text(st.characters(codec=None, exclude_categories=()), max_size=60))
def test_any_text_is_safe_and_json_keeps_its_value(text: str) -> None:
    assert not unsafe(escape_control_characters(text))
    encoded = escape_in_json(json.dumps([text], ensure_ascii=False))
    assert not unsafe(encoded)
    assert json.loads(encoded) == json.loads(json.dumps([text]))
