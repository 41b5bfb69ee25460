"""Texts, docstrings and pages use the terms of the field, not words of this project alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .links import ROOT
from .pages import PAGES, prose

HOUSE_WORDS = {
    r"\b(?:go|goes|going|went|gone) on\b": "continue, resume",
    r"\b(?<!cannot be )(?:tell|tells|telling|told)\b(?!:|.{0,60}\bapart\b)": (
        "report, show, notify, say"
    ),
    r"\bjudg(?:es|ed|ing)\b": "check, decide",
    r"\b(?:its|their) level\b(?! of)": "its usual value, its baseline",
    r"\bthe ordinary way\b": "eager mode",
    r"\bputs? back\b": "restore",
    r"\banew\b": "again",
    r"\bgravest\b": "most severe",
    r"\bas (?:they are|it is|they were|it was) learned\b": "as the model sees them",
    r"\btrains on(?=[.;:,]|$)": "continue training",
}
"""Phrase → the words that readers know."""

ALLOWED = {
    "colour of its level": "a level of the log",
}


def strings(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the docstrings and the texts of three words or more, each on one line."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = " ".join(node.value.split())
            if len(text.split()) >= 3:
                yield node.lineno, text


def passages() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of everything that people read."""
    for package in ("engine", "tui"):
        for file in sorted((ROOT / package).rglob("*.py")):
            for line, text in strings(file):
                yield f"{file.relative_to(ROOT)}:{line}", text
    for page in PAGES:
        for paragraph in re.split(r"\n\s*\n", prose(page)):
            yield str(page.relative_to(ROOT)), " ".join(paragraph.split())


def faults(text: str) -> Iterator[str]:
    """Yield each phrase of a text that has a better word, with that word."""
    for allowed in ALLOWED:
        text = text.replace(allowed, "")
    for phrase, instead in HOUSE_WORDS.items():
        for found in re.finditer(phrase, text):
            around = text[max(0, found.start() - 30) : found.end() + 30]
            yield f"“{found[0].strip()}” in “… {around} …”; write: {instead}"


def test_people_read_the_terms_of_the_field() -> None:
    places = list(passages())
    assert len(places) > 10_000
    assert [f"{place}: {one}" for place, text in places for one in faults(text)] == []


@pytest.mark.parametrize(
    "text",
    ["training goes on", "that is told once", "loss 6 is ×6 its level",
     "the data is tokenized anew", "records as they are learned"],
)  # fmt: skip
def test_a_house_word_is_found(text: str) -> None:
    assert list(faults(text))


@pytest.mark.parametrize(
    "text",
    ["colours tell live and ended runs apart",
     "the mean of held-out losses"],
)  # fmt: skip
def test_a_usual_phrase_is_not_found(text: str) -> None:
    assert not list(faults(text))
