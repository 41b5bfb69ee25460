"""Weights of records and turns, from the row to the batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fttui.engine.config.tasks import Format
from fttui.engine.data.batches.collate import (
    collate_packed,
    collate_pairs,
    collate_preferences,
    collate_text,
)
from fttui.engine.data.findings import Findings
from fttui.engine.data.records.formats import MessagesRecord, to_record
from fttui.engine.data.records.messages import MessageRules
from fttui.engine.data.tokens.examples import (
    IGNORED,
    PackedExample,
    PairExample,
    PreferenceExample,
    TextExample,
    has_weight,
)
from fttui.engine.data.tokens.tokenize import TokenizeOptions, tokenize_records
from fttui.engine.data.tokens.weight_notes import note_weight
from fttui.engine.errors import DataError
from fttui.engine.losses.weights import token_weights, weight_of_targets
from tests.support.tokenizer import tiny_tokenizer

TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "yo", "weight": 0.5},
    {"role": "user", "content": "ok"},
    {"role": "assistant", "content": "bye"},
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny_tokenizer()


def example(values: dict[str, Any], form: Format, tokenizer: Any, **options: Any) -> Any:
    record = to_record(values, form, "a:1", "a.jsonl:1", MessageRules(weighted=True))
    findings = Findings()
    settings = TokenizeOptions(max_length=500, **options)
    (made,) = tokenize_records([record], tokenizer, settings, findings, lambda done, total: None)
    noted = [(one.reason.name, one.count, one.place) for one in findings]
    assert noted == ([("weighted", 1, "a.jsonl:1")] if has_weight(made) else [])
    return made


def said(found: TextExample, tokenizer: Any) -> dict[float, str]:
    """The learned text by its weight."""
    texts: dict[float, list[int]] = {}
    for label, weight in zip(found.labels, found.weights or (), strict=True):
        if label != IGNORED:
            texts.setdefault(weight, []).append(label)
    return {weight: tokenizer.decode(ids) for weight, ids in texts.items()}


def test_turns_have_weights_of_their_own_times_that_of_the_record(tokenizer: Any) -> None:
    found = example({"messages": TALK, "weight": 3}, "messages", tokenizer)
    assert said(found, tokenizer) == {1.5: "yo<|im_end|>", 3.0: "bye<|im_end|>"}
    plain = example({"messages": TALK[2:]}, "messages", tokenizer)
    assert plain.weights is None


def test_the_weight_of_a_turn_needs_turns_that_are_learned_by_themselves(tokenizer: Any) -> None:
    with pytest.raises(DataError, match=r"a.jsonl:1: a turn has a weight, but data\.comp"):
        example({"messages": TALK}, "messages", tokenizer, completion_only=False)


def test_a_text_has_the_weight_of_its_record(tokenizer: Any) -> None:
    found = example({"text": "hi yo", "weight": "0,25"}, "text", tokenizer)
    assert set(found.weights) == {0.25}
    pair = example({"anchor": "a", "positive": "b", "weight": 2}, "pairs", tokenizer)
    assert pair.weight == 2
    sides = {"prompt": "a", "chosen": "b", "rejected": "c", "weight": 2}
    assert example(sides, "preference", tokenizer).weight == 2


@pytest.mark.parametrize("weight", [-1, float("nan"), float("inf"), True, "heavy", [1]])
def test_what_is_no_factor_on_a_loss_is_refused_with_its_place(weight: Any) -> None:
    with pytest.raises(DataError, match=r"a.jsonl:1: column 'weight': got .* a finite number of 0"):
        to_record({"text": "x", "weight": weight}, "text", "a:1", "a.jsonl:1")


@pytest.mark.parametrize("weight", [None, "", 1, 1.0])
def test_no_weight_is_one(weight: Any) -> None:
    assert to_record({"text": "x", "weight": weight}, "text", "a:1", "a.jsonl:1").weight == 1


@pytest.mark.parametrize("weight", [-0.5, float("nan"), "heavy"])
def test_the_weight_of_a_turn_is_checked_too(weight: Any) -> None:
    talk = [TALK[0], TALK[1] | {"weight": weight}]
    with pytest.raises(DataError, match="a weight of 0 or 1 for a message, or a factor"):
        to_record({"messages": talk}, "messages", "a", "a:1", MessageRules(weighted=True))


def test_a_turn_may_have_its_weight_in_the_column_loss_weight() -> None:
    rules = MessageRules(weighted=True)
    for given in (0.5, "0.5"):
        talk = [TALK[0], {"role": "assistant", "content": "yo", "loss_weight": given}]
        record = to_record({"messages": talk}, "messages", "a", "a:1", rules)
        assert isinstance(record, MessagesRecord)
        assert record.messages[1]["loss_weight"] == 0.5
    talk[1]["weight"] = 0.25
    with pytest.raises(DataError, match="one weight for a message"):
        to_record({"messages": talk}, "messages", "a", "a:1", rules)
    talk = [TALK[0], {"role": "assistant", "content": "yo", "loss_weight": "heavy"}]
    with pytest.raises(DataError, match="a loss_weight of 0 or 1 for a message, or a factor"):
        to_record({"messages": talk}, "messages", "a", "a:1", rules)


def test_records_of_weight_zero_are_counted_by_themselves() -> None:
    findings = Findings()
    for weight in (0, 0.5, 1):
        record = to_record({"text": "x", "weight": weight}, "text", "a", "a:1")
        note_weight(record, "all", findings)
    assert [(one.reason.name, one.count) for one in findings] == [
        ("weighted", 1),
        ("weight-zero", 1),
    ]


@pytest.mark.parametrize(
    ("train_on", "counted"), [("all", True), ("last", False), ("user", False), ("tool", False)]
)
def test_only_weights_of_turns_to_learn_are_counted(train_on: str, counted: bool) -> None:
    first = {"role": "assistant", "content": "a", "weight": 0.5}
    last = {"role": "assistant", "content": "b"}
    talk = [TALK[0], first, TALK[0], last]
    record = to_record({"messages": talk}, "messages", "a", "a:1", MessageRules(weighted=True))
    findings = Findings()
    note_weight(record, train_on, findings)
    assert bool(list(findings)) == counted


def text(*ids: int, weights: tuple[float, ...] | None = None) -> TextExample:
    return TextExample("x", list(ids), [IGNORED, *ids[1:]], weights=weights)


def test_batches_have_weights_only_if_a_record_has_one() -> None:
    plain, heavy = text(1, 2, 3), text(4, 5, weights=(2.0, 2.0))
    assert "weights" not in collate_text([plain], 0)
    batch = collate_text([plain, heavy], 0)
    assert batch["weights"].tolist() == [[1, 1, 1], [2, 2, 0]]
    assert weight_of_targets(batch) == 2 + 2
    row = collate_packed([PackedExample((plain, heavy)), PackedExample((plain,))], 0)
    assert row["weights"].tolist() == [[1, 1, 1, 2, 2], [1, 1, 1, 0, 0]]
    assert weight_of_targets(row) == 2 + 2 + 2
    one = PreferenceExample("p", plain, plain, weight=0.5)
    assert collate_preferences([one], 0)["record_weights"].tolist() == [0.5]


def test_both_texts_of_a_pair_have_its_weight_and_negatives_have_none() -> None:
    pairs = [PairExample("a", [1, 2], [3, 4], ([5],), weight=3), PairExample("b", [1], [2])]
    batch = collate_pairs(pairs, 0, 1)
    weights = token_weights(batch)
    assert weights is not None
    assert weights.squeeze(1).tolist() == [3, 1, 3, 1, 0]
    assert weight_of_targets(batch) == 6.0
    assert torch.equal(batch["record_weights"], torch.tensor([3.0, 1.0]))
