from __future__ import annotations

from typing import Any

import pytest

from fttui.engine.protocol.benchmarks.result import (
    BenchmarkFinished,
    BenchmarkScore,
    same_conditions,
    with_base,
)
from fttui.engine.protocol.codec import decode_record, encode
from fttui.engine.protocol.commands import AddNote, command_words, parse_command
from fttui.engine.protocol.events import Record
from fttui.engine.protocol.thresholds import lower_is_better
from tests.support.benchmarks import result

SCORES = {"acc": BenchmarkScore(value=0.75, stderr=0.1), "f1.strict": BenchmarkScore(value=0.5)}


def test_values_and_changes_have_the_names_of_metrics() -> None:
    base = {"acc": BenchmarkScore(value=0.5, stderr=0.2)}
    found = result(scores=with_base(SCORES, base))
    assert found.metrics == {"bench.words.acc": 0.75, "bench.words.f1.strict": 0.5}
    assert found.changes == {"bench.words.acc.change": 0.25}


def test_the_text_says_error_base_limit_and_versions() -> None:
    base = {"acc": BenchmarkScore(value=0.5, stderr=0.2)}
    found = result(scores=with_base(SCORES, base), total=90, fewshot=2, chat_template=True)
    assert found.text == (
        "benchmark words at step-000004: acc 0.75 ± 0.1 (base 0.5 ± 0.2, +0.25); f1.strict 0.5 "
        "(12 of 90 examples, 2-shot, chat template, task version 2.5, lm_eval 0.4.13)"
    )


@pytest.mark.parametrize("other", [{"total": 90}, {"fewshot": 1}, {"version": "3"}])
def test_results_of_other_conditions_cannot_be_compared(other: dict[str, Any]) -> None:
    assert same_conditions(result(0.1), result(0.9, step=8))
    assert not same_conditions(result(), result(**other))


@pytest.mark.parametrize(
    ("metric", "lower"),
    [
        ("bench.hellaswag.acc_norm", False),
        ("bench.wikitext.word_perplexity", True),
        ("bench.wikitext.bits_per_byte", True),
        ("bench.perplexity.acc", False),
        ("bench.own.my_loss", True),
        ("bench.gsm8k.exact_match.strict-match", False),
        ("word_perplexity", False),
    ],
)
def test_which_direction_is_better_follows_from_the_name(metric: str, lower: bool) -> None:
    assert lower_is_better(metric) is lower


def test_a_record_is_read_back() -> None:
    event = BenchmarkFinished(result=result(float("nan")), after_end=True)
    record = Record(seq=3, time=1.0, step=9, timeline=2, event=event)
    again = decode_record(encode(record))
    assert again is not None
    assert isinstance(again.event, BenchmarkFinished)
    assert again.event.result.checkpoint == "step-000004"
    assert again.event.result.scores["acc"].value != again.event.result.scores["acc"].value


def test_a_note_with_a_result_is_described_by_its_text() -> None:
    note = AddNote(text="benchmark words", result=result())
    assert command_words(note) == ["note", "benchmark words"]
    assert parse_command(command_words(note)) == AddNote(text="benchmark words")
