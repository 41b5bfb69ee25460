"""Data from which nothing can be learned are refused with the cause, the figures and the step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace as replace_config

from fttui.engine.config.data_reasons import (
    BEYOND_POSITIONS,
    MASKED_TURNS,
    MIXED_MARGINS,
    NO_CANDIDATE,
    NO_SCORE,
    NO_TARGET,
    ROLE_NOT_FOUND,
    SAME_COMPLETIONS,
    SAME_TARGETS,
    UNLEARNED_TURNS,
)
from fttui.engine.config.data_reasons.reason import Reason
from fttui.engine.config.model_limits import UNLIMITED, ModelLimits
from fttui.engine.config.schema import RunConfig
from fttui.engine.data.findings import Findings
from fttui.engine.data.screening.input_limits import require_pad_row
from fttui.engine.data.screening.trainable import all_dropped, require_trainable, require_usable
from fttui.engine.data.tokens.examples import (
    IGNORED,
    Example,
    PairExample,
    PreferenceExample,
    RatedExample,
    TextExample,
)
from fttui.engine.errors import DataError


def config(task: str = "sft", contrastive: dict[str, Any] | None = None, **train: Any) -> RunConfig:
    kinds = {"kind": "infonce", **(contrastive or {})} if task == "contrastive" else {}
    values = {
        "model": {"id": "m"},
        "data": {"train": "d.jsonl"},
        "train": {"steps": 1, "batch": 2, **train},
        "task": task,
        "contrastive": kinds,
    }
    return msgspec.convert(values, RunConfig)


def text(number: int, prompt: list[int], target: list[int]) -> TextExample:
    return TextExample(f"t:{number}", [*prompt, *target], [*[IGNORED] * len(prompt), *target])


def pair(number: int, label: int | None = None, **changes: Any) -> PairExample:
    given = {"anchor": [1, number], "positive": [2, number], "label": label, **changes}
    return PairExample(f"p:{number}", **given)


def graded(number: int, margin: float | None) -> PreferenceExample:
    sides = (text(number, [number], [5, number]), text(number, [number], [6, number]))
    sides = (replace(sides[0], place=f"g:{number}"), sides[1])
    return PreferenceExample(f"g:{number}", *sides, margin)


def rated(number: int, *, desirable: bool) -> RatedExample:
    one = text(number, [1, number], [2, number])
    return RatedExample(one.id, one, desirable, one)


def checked(
    run: RunConfig, examples: list[Example], limits: ModelLimits = UNLIMITED
) -> dict[str, tuple[int, str]]:
    """Check the training examples and return what was found: count and place by reason."""
    findings = Findings()
    require_trainable(run, examples, [], limits, findings)
    return {one.reason.name: (one.count, one.place) for one in findings}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("margins", "expected"),
    [
        ([1.0, None, 2.0, None], {MIXED_MARGINS.name: (2, "g:1")}),
        ([None, None, 0.5], {MIXED_MARGINS.name: (1, "g:2")}),
        ([0.0, 1.0], {}),
        ([None, None], {}),
    ],
)
def test_pairs_with_and_without_a_margin_need_consent(
    margins: list[float | None], expected: dict[str, tuple[int, str]], *, streaming: bool
) -> None:
    run = config("reward")
    run = replace_config(run, data=replace_config(run.data, streaming=streaming))
    found = checked(run, [graded(number, margin) for number, margin in enumerate(margins)])
    assert found == expected
    assert MIXED_MARGINS.limit == 0


PAIRS = config("contrastive")


@pytest.mark.parametrize(
    ("run", "examples", "message"),
    [
        (
            PAIRS,
            [pair(n, label=7) for n in range(5)],
            r"none of the 5 pairs has a negative \(first: p:0\): all have the same label.*"
            r"mask_labels: false",
        ),
        (
            PAIRS,
            [pair(n, positive=[9]) for n in range(5)],
            r"none of the 5 pairs has a negative.*the same positive text.*data.columns",
        ),
        (
            PAIRS,
            [pair(0, label=1), pair(1, label=1, positive=[2, 0]), pair(2, label=1)],
            r"none of the 3 pairs.*the same label",
        ),
        (
            config("contrastive", {"hard_negatives": 1}),
            [pair(n, label=7, negatives=([2, n],)) for n in range(1)],
            r"none of the 1 pairs has a negative.*the same label",
        ),
        (PAIRS, [pair(0)], r"none of the 1 pairs has a negative.*the only pair"),
        (
            config("kto"),
            [rated(n, desirable=True) for n in range(6)],
            r"all 6 completions are rated desirable and none undesirable.*task: sft",
        ),
        (
            config("kto"),
            [rated(n, desirable=False) for n in range(6)],
            r"all 6 completions are rated undesirable and none desirable.*add desirable",
        ),
        (
            config("contrastive", {"kind": "cosent"}),
            [pair(n, score=0.5) for n in range(4)],
            "all 4 pairs have the score 0.5, so there is no difference",
        ),
    ],
)
def test_what_cannot_be_learned_is_refused(
    run: RunConfig, examples: list[Example], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        checked(run, examples)


@pytest.mark.parametrize(
    ("run", "examples"),
    [
        (PAIRS, [pair(n, label=n % 2) for n in range(4)]),
        (PAIRS, [pair(n) for n in range(2)]),
        (PAIRS, [pair(0, label=7), pair(1, label=7), pair(2)]),
        (config("contrastive", {"mask_labels": False}), [pair(n, label=7) for n in range(3)]),
        (PAIRS, [pair(n, label=7, negatives=([8, n],)) for n in range(3)]),
        (
            config("contrastive", {"mask_duplicates": False}),
            [pair(n, positive=[9]) for n in (0, 1)],
        ),
        (config("kto"), [rated(0, desirable=True), rated(1, desirable=False)]),
        (config("reward"), [graded(0, 1.0), graded(1, 0.0)]),
        (config("reward"), [graded(0, None), graded(1, None)]),
        (config(), [text(n, [n], [5, n]) for n in range(9)]),
        (config(), [text(0, [4], [5])] * 9),
        (config(), [text(n, [n], [5]) for n in range(3)]),
        (config("contrastive", {"kind": "cosine"}), [pair(0, score=0.1), pair(1, score=0.9)]),
    ],
)
def test_what_can_be_learned_passes_without_a_finding(
    run: RunConfig, examples: list[Example]
) -> None:
    assert checked(run, examples) == {}


def test_hard_negatives_of_other_pairs_count_unless_they_are_excluded() -> None:
    examples: list[Example] = [pair(0, label=7, negatives=([8],)), pair(1, label=7)]
    assert checked(config("contrastive", {"own_hard_only": False}), examples) == {}
    run = config("contrastive", {"own_hard_only": True})
    assert checked(run, examples) == {NO_CANDIDATE.name: (1, "p:1")}


def test_anchors_without_a_negative_are_counted() -> None:
    examples: list[Example] = [
        pair(0),
        pair(1, anchor=[2, 0], positive=[2, 0]),
        pair(2, anchor=[2, 2], positive=[2, 0]),
        pair(3, anchor=[2, 2], positive=[2, 0]),
        pair(4, positive=[2, 2]),
    ]
    assert checked(PAIRS, examples) == {NO_CANDIDATE.name: (2, "p:2")}


@pytest.mark.parametrize(
    "examples",
    [
        [text(n, [n], [5, 6]) for n in range(4)],
        [PreferenceExample(f"t:{n}", text(n, [n], [5]), text(n, [n], [6])) for n in range(4)],
    ],
)
def test_one_target_for_all_inputs_needs_consent(examples: list[Example]) -> None:
    task = "dpo" if isinstance(examples[0], PreferenceExample) else "sft"
    assert checked(config(task), examples) == {SAME_TARGETS.name: (4, "t:0")}
    assert SAME_TARGETS.limit == 0


def test_token_ids_beyond_the_embedding_are_refused() -> None:
    examples: list[Example] = [text(0, [1], [259]), text(1, [260], [2]), text(2, [1], [262])]
    assert checked(config(), examples, ModelLimits(vocab_rows=263)) == {}
    with pytest.raises(
        DataError,
        match=r"2 of 3 records have token ids up to 262 \(first: t:1\).*260 rows, for ids up to 259"
        r".*resize_token_embeddings",
    ):
        checked(config(), examples, ModelLimits(vocab_rows=260))


@pytest.mark.parametrize(
    "example",
    [
        pair(0, negatives=([9],)),
        PreferenceExample("x", text(0, [1], [2]), text(0, [1], [9])),
        RatedExample("x", text(0, [1], [2]), True, text(0, [9], [2])),
    ],
)
def test_every_sequence_of_a_record_is_looked_at(example: Example) -> None:
    with pytest.raises(DataError, match=r"1 of 1 records have token ids up to 9 "):
        require_usable(config(), [example], ModelLimits(vocab_rows=9))


def test_a_pad_token_beyond_the_embedding_is_refused() -> None:
    require_pad_row(None, ModelLimits(vocab_rows=5))
    require_pad_row(7, UNLIMITED)
    require_pad_row(4, ModelLimits(vocab_rows=5))
    with pytest.raises(DataError, match=r"pad token has the id 5.*5 rows.*eos_token"):
        require_pad_row(5, ModelLimits(vocab_rows=5))


def test_sequences_beyond_the_positions() -> None:
    examples: list[Example] = [text(0, [1] * 3, [2]), text(1, [1] * 6, [2, 3]), text(2, [1], [3])]
    assert checked(config(), examples, ModelLimits(positions=8)) == {}
    found = checked(config(), examples, ModelLimits(positions=7))
    assert found == {BEYOND_POSITIONS.name: (1, "t:1")}
    with pytest.raises(
        DataError,
        match=r"1 of 3 records have up to 8 tokens \(first: t:1, 8\).*table of 7 positions.*"
        r"data.max_length: 7",
    ):
        checked(config(), examples, ModelLimits(positions=7, fixed=True))


def test_evaluation_data_are_checked_as_well() -> None:
    limits = ModelLimits(vocab_rows=5)
    with pytest.raises(DataError, match="token ids up to 9"):
        require_trainable(config(), [], [text(0, [9], [1])], limits, Findings())
    scored = pair(0, score=4.0)
    run = config("contrastive", {"kind": "cosine"})
    with pytest.raises(DataError, match="1 of 1 scores are outside"):
        require_trainable(run, [], [scored], UNLIMITED, Findings())


def test_an_error_for_data_of_which_all_is_dropped_names_every_cause() -> None:
    findings = Findings()
    findings.counted("records", 5)
    findings.note(NO_TARGET, "d.jsonl:2", count=3)
    findings.note(SAME_COMPLETIONS, "d.jsonl:1", count=1)
    findings.note(NO_SCORE, "d.jsonl:5", count=1)
    findings.note(UNLEARNED_TURNS, "d.jsonl:4", count=2)
    lines = all_dropped("d.jsonl", findings, 32).splitlines()
    assert lines[0] == "d.jsonl: all records were dropped, so nothing can be learned:"
    assert [line.strip().split(" of")[0] for line in lines[1:4]] == ["3", "1", "1"]
    assert "among the first 32 tokens" in lines[4]
    assert len(lines) == 5


@pytest.mark.parametrize("reason", [ROLE_NOT_FOUND, MASKED_TURNS])
def test_records_without_a_turn_to_learn_are_not_explained_by_their_length(reason: Reason) -> None:
    findings = Findings()
    findings.counted("records", 3)
    findings.note(NO_TARGET, "d.jsonl:1", count=3)
    findings.note(reason, "d.jsonl:1", "roles user, bob", count=3)
    lines = all_dropped("d.jsonl", findings, 32).splitlines()
    assert reason.text in lines[1]
    assert "roles user, bob" in lines[1]
    assert not any("among the first" in line for line in lines)


@pytest.mark.parametrize("task", ["sft", "contrastive"])
def test_data_of_which_all_weights_are_zero_are_refused(task: str) -> None:
    def made(number: int, weight: float) -> Example:
        if task == "contrastive":
            return pair(number, weight=weight)
        # The tokens of the prompt have the weight of the record, but no loss.
        return replace(text(number, [1, number], [3, number]), weights=(1.0, 1.0, weight, weight))

    require_trainable(config(task), [made(4, 0.0), made(5, 0.5)], [], UNLIMITED, Findings())
    with pytest.raises(DataError, match=r"all other training records \(2\) have the weight 0"):
        require_trainable(config(task), [made(4, 0.0), made(5, 0.0)], [], UNLIMITED, Findings())
