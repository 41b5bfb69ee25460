"""The short form: some hundred mutants for every parser; `python -m tests.fuzz` is the long one."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .mutants import mutant
from .parsers import Parser, parsers

MUTANTS = 20


def try_mutants(parser: Parser, seed: int, count: int) -> None:
    """Read mutants of valid inputs; raise, with the input, what a parser may not raise."""
    rng = random.Random(seed)
    for _ in range(count):
        data = mutant(rng, rng.choice(parser.bases), parser.form)
        try:
            parser.read(data)
        except parser.may_raise:
            pass
        except Exception as error:
            error.add_note(f"{parser.name} got {data!r}")
            raise


@pytest.mark.parametrize("parser", parsers(), ids=lambda parser: parser.name)
def test_a_valid_input_is_read(parser: Parser) -> None:
    for base in parser.bases:
        try:
            parser.read(base)
        except parser.may_raise:
            assert parser.name == "command line", "a usage is no command, the others are valid"


@pytest.mark.parametrize("parser", parsers(), ids=lambda parser: parser.name)
@settings(max_examples=30)
@given(seed=st.integers(0, 2**32))
def test_no_input_breaks_a_parser(parser: Parser, seed: int) -> None:
    try_mutants(parser, seed, MUTANTS)
