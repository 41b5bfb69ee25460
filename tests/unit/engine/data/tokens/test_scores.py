"""Scores are used as stored or mapped by a stated range; losses that cannot use them refuse."""

from __future__ import annotations

import pytest

from fttui.engine.config.data_reasons import NO_SCORE, UNUSED_NEGATIVES
from fttui.engine.config.schema import ContrastiveConfig
from fttui.engine.data.findings import Findings
from fttui.engine.data.records.formats import PairRecord
from fttui.engine.data.tokens.examples import PairExample
from fttui.engine.data.tokens.scores import (
    mapped,
    require_different_scores,
    require_scores,
    score_facts,
    stored,
)
from fttui.engine.data.tokens.tokenize import TokenizeOptions, tokenize_records
from fttui.engine.errors import DataError
from tests.support.tokenizer import tiny_tokenizer

COSENT, COSINE = ContrastiveConfig(kind="cosent"), ContrastiveConfig(kind="cosine")
FIVE = ContrastiveConfig(kind="cosine", score_range=(0, 5))


def scored(*scores: float | None) -> list[PairExample]:
    return [
        PairExample(f"p:{number}", [1], [2], score=score)
        for number, score in enumerate(scores, start=1)
    ]


def test_a_range_is_mapped_to_0_and_1_and_back() -> None:
    assert [mapped(score, (0, 5)) for score in (0, 2, 5)] == [0.0, 0.4, 1.0]
    assert [mapped(score, (-1, 1)) for score in (-1, 0)] == [0.0, 0.5]
    assert mapped(4.2, None) == stored(4.2, None) == 4.2
    assert stored(mapped(4.2, (1, 7)), (1, 7)) == pytest.approx(4.2)


@pytest.mark.parametrize(
    ("config", "scores"),
    [
        (COSINE, (0.0, 1.0, 0.3)),
        (COSINE, (-1.0, 1.0)),
        (COSENT, (0.0, 5.0, 100.0)),
        (FIVE, (mapped(0, (0, 5)), mapped(5, (0, 5)))),
        (ContrastiveConfig(kind="infonce"), (None, None)),
    ],
)
def test_scores_that_the_loss_can_use_pass(
    config: ContrastiveConfig, scores: tuple[float | None, ...]
) -> None:
    require_scores(config, scored(*scores))


@pytest.mark.parametrize(
    ("config", "scores", "text"),
    [
        (
            COSINE,
            (0.5, 4.0, 5.0),
            r"2 of 3 scores are outside -1 … 1 \(first: p:2: 4; all scores: 0.5 to 5\).*"
            r"contrastive.score_range.*cosent",
        ),
        (
            FIVE,
            (0.0, 1.4),
            r"1 of 2 scores are outside 0 … 5 \(first: p:2: 7; all scores: 0 to 7\)",
        ),
        (
            ContrastiveConfig(kind="infonce"),
            (None, 0.0, 1.0),
            r"2 of 3 pairs have a score \(0 to 1; first: p:2\).*kind infonce.*kind: cosent",
        ),
    ],
)
def test_scores_that_the_loss_cannot_use_are_refused(
    config: ContrastiveConfig, scores: tuple[float | None, ...], text: str
) -> None:
    with pytest.raises(DataError, match=text):
        require_scores(config, scored(*scores))


def test_equal_scores_are_refused() -> None:
    require_different_scores(COSENT, scored(0.2, 0.2, 0.4))
    require_different_scores(COSENT, scored(0.2))
    with pytest.raises(DataError, match="all 3 pairs have the score 4,"):
        require_different_scores(FIVE, scored(0.8, 0.8, 0.8))


def test_the_facts_name_the_scores_as_stored_and_their_use() -> None:
    assert score_facts(FIVE, scored(0.0, 0.8)) == {
        "scores": "0 to 4, mean 2; 0 … 5 mapped to 0 … 1"
    }
    assert score_facts(COSENT, scored(1.0, 2.0)) == {
        "scores": "1 to 2, mean 1.5; only their order is used"
    }
    assert score_facts(ContrastiveConfig(kind="infonce"), scored(None)) == {}


def test_pairs_without_a_score_are_dropped_and_unused_negatives_counted() -> None:
    records = [
        PairRecord("a", "one", "two", score=3.0, place="p.csv:1"),
        PairRecord("b", "three", "four", place="p.csv:2"),
        PairRecord("c", "five", "six", ("seven",), score=5.0, place="p.csv:3"),
    ]
    findings = Findings()
    options = TokenizeOptions(max_length=16, scored=True, score_range=(0, 5))
    found = tokenize_records(records, tiny_tokenizer(), options, findings, lambda *_: None)
    assert [(one.id, one.score) for one in found if isinstance(one, PairExample)] == [
        ("a", 0.6),
        ("c", 1.0),
    ]
    places = {one.reason: (one.count, one.place) for one in findings}
    assert places == {NO_SCORE: (1, "p.csv:2"), UNUSED_NEGATIVES: (1, "p.csv:3")}
