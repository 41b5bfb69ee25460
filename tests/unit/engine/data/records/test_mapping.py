from __future__ import annotations

import json

import pytest

from fttui.engine.config.checks import check_config
from fttui.engine.config.schema import DataConfig, ModelConfig, RunConfig, TrainConfig
from fttui.engine.data.findings import Findings
from fttui.engine.data.reading import records_of
from fttui.engine.data.records.formats import (
    CompletionRecord,
    MessagesRecord,
    PairRecord,
    PreferenceRecord,
    RatedRecord,
    label_number,
)
from fttui.engine.data.records.reader import RecordReader
from fttui.engine.data.sources import SourceRecord
from fttui.engine.errors import DataError

ASKED = {"role": "user", "content": "q"}
GOOD = {"role": "assistant", "content": "g"}
BAD = {"role": "assistant", "content": "b"}


def config(task, **data):
    return RunConfig(
        model=ModelConfig(id="m"),
        data=DataConfig(train="d.jsonl", **data),
        train=TrainConfig(steps=1),
        task=task,
    )


def read(row, task, **data):
    rows = [SourceRecord(json.loads(json.dumps(row)), "d.jsonl:1")]
    reader = RecordReader(config(task, **data), "d.jsonl", Findings())
    return records_of(reader, "d.jsonl", rows)[0]


@pytest.mark.parametrize(
    ("columns", "form"),
    [
        ({"prompt": "frage", "completion": "antwort"}, "auto"),
        ({"prompt": "{frage}", "completion": "antwort"}, "auto"),
    ],
)
def test_mapped_columns_are_read_as_the_fields(columns, form):
    (record,) = read({"frage": "q", "antwort": "g"}, "sft", columns=columns, format=form)
    assert record == CompletionRecord("d:1", "q", "g")


def test_mapped_prompts_are_turns_in_format_messages():
    columns = {"prompt": "frage", "completion": "antwort"}
    (record,) = read({"frage": "q", "antwort": "g"}, "sft", columns=columns, format="messages")
    assert record == MessagesRecord("d:1", (ASKED, GOOD))


def test_a_missing_column_is_named():
    with pytest.raises(DataError, match=r"d.jsonl:1: .*no column 'frage'; found fragen"):
        read({"fragen": "q"}, "sft", columns={"text": "frage"})


@pytest.mark.parametrize(
    ("row", "prompt"),
    [
        ({"ask": "q", "more": "m"}, "q with m"),
        ({"ask": "q", "more": " "}, "only q"),
        ({"ask": "q", "more": None}, "only q"),
        ({"ask": "q"}, "only q"),
        ({"ask": "", "more": ""}, "only "),
    ],
)
def test_the_first_text_with_all_its_columns_is_used(row, prompt):
    columns = {"prompt": ["{ask} with {more}", "only {ask}"], "completion": "said"}
    (record,) = read({**row, "said": "a"}, "sft", columns=columns)
    assert (record.prompt, record.completion) == (prompt, "a")


def test_columns_can_be_left_unused():
    row = {"messages": [ASKED, GOOD], "images": ["x"]}
    assert len(read(row, "sft", columns={"images": None})) == 1


def test_a_label_beside_two_sentences_is_not_guessed():
    row = {"sentence1": "a", "sentence2": "b", "label": 0}
    with pytest.raises(DataError, match=r"d.jsonl:1: .*set data.label: score"):
        read(row, "contrastive")
    assert read(row, "contrastive", label="score") == [PairRecord("d:1", "a", "b", score=0.0)]
    number = label_number(0)
    assert read(row, "contrastive", label="class") == [PairRecord("d:1", "a", "b", label=number)]
    assert read(row, "contrastive", columns={"label": None}) == [PairRecord("d:1", "a", "b")]


def test_a_fraction_beside_two_sentences_is_a_score():
    row = {"premise": "a", "hypothesis": "b", "label": 0.4}
    assert read(row, "contrastive") == [PairRecord("d:1", "a", "b", score=0.4)]


@pytest.mark.parametrize("label", [None, "", float("nan")])
def test_a_missing_label_is_no_class(label):
    row = {"anchor": "a", "positive": "b", "label": label}
    assert read(row, "contrastive") == [PairRecord("d:1", "a", "b")]


def test_every_positive_makes_a_pair_and_they_are_no_negatives_of_each_other():
    one, other = read({"query": "a", "pos": ["b", "c"], "neg": ["n"]}, "contrastive")
    assert (one.positive, other.positive) == ("b", "c")
    assert one.negatives == other.negatives == ("n",)
    assert one.label == other.label is not None


def test_a_label_beside_a_text_is_asked_about():
    row = {"text": "q", "label": "g"}
    with pytest.raises(DataError, match=r"d.jsonl:1: .*set data.label: answer"):
        read(row, "sft")
    assert read(row, "sft", label="answer") == [MessagesRecord("d:1", (ASKED, GOOD))]


@pytest.mark.parametrize(
    "row",
    [
        {"conversations": [{"from": "human", "value": "q"}], "chosen": "g", "rejected": "b"},
        {
            "conversations": [{"from": "human", "value": "q"}],
            "chosen": {"from": "gpt", "value": "g"},
            "rejected": {"from": "gpt", "value": "b"},
        },
        {"messages": [ASKED, GOOD], "rejected_response": "b"},
        {"question": "q", "response_chosen": "g", "response_rejected": "b"},
    ],
)
def test_preferences_of_other_tools_are_read(row):
    (record,) = read(row, "dpo")
    assert isinstance(record, PreferenceRecord)
    assert (record.chosen.prompt, record.chosen.completion) == ((ASKED,), (GOOD,))
    assert (record.rejected.prompt, record.rejected.completion) == ((ASKED,), (BAD,))


@pytest.mark.parametrize("label", [True, 1, "good", "true"])
def test_a_conversation_with_a_rating_is_rated(label):
    (record,) = read({"messages": [ASKED, GOOD], "label": label}, "kto")
    assert isinstance(record, RatedRecord)
    assert (record.text.prompt, record.text.completion) == ((ASKED,), (GOOD,))
    assert record.desirable
    (bad,) = read({"messages": [ASKED, GOOD], "kto_tag": -1}, "kto")
    assert isinstance(bad, RatedRecord)
    assert not bad.desirable


def test_unknown_fields_and_labels_of_other_tasks_are_named():
    problems = check_config(config("sft", columns={"promt": "q"}, label="score"))
    assert [one.key for one in problems if "data." in one.key] == ["data.columns", "data.label"]


SYSTEM = {"role": "system", "content": "s"}


@pytest.mark.parametrize(
    "row",
    [
        {"system": "s", "conversations": [{"from": "human", "value": "q"}, GOOD]},
        {"system": "s", "messages": [SYSTEM, ASKED, GOOD]},
        {"system_prompt": "s", "question": "q", "response": "g"},
    ],
)
def test_a_column_holds_the_system_message(row):
    assert read(row, "sft") == [MessagesRecord("d:1", (SYSTEM, ASKED, GOOD))]


def test_two_different_system_messages_are_refused():
    with pytest.raises(DataError, match=r"d.jsonl:1: .*two different system messages"):
        read({"system": "t", "messages": [SYSTEM, ASKED, GOOD]}, "sft")


def test_a_history_stands_before_the_question():
    row = {"query": "q", "response": "g", "history": [["a", "b"]]}
    (record,) = read(row, "sft", system="s")
    assert isinstance(record, MessagesRecord)
    assert [one["content"] for one in record.messages] == ["s", "a", "b", "q", "g"]


def test_roles_are_mapped_by_the_configuration():
    row = {"conversations": [{"from": "narrator", "value": "q"}, GOOD]}
    with pytest.raises(DataError, match=r"set data.roles: {'narrator': user}"):
        read(row, "sft")
    expected = [MessagesRecord("d:1", (ASKED, GOOD))]
    assert read(row, "sft", roles={"narrator": "user"}) == expected


def test_columns_that_change_what_is_learned_need_consent():
    findings = Findings()
    reader = RecordReader(config("sft"), "d.jsonl", findings)
    row = {"prompt": "q", "completion": "g", "system": "s", "reasoning": "", "url": "u"}
    records_of(reader, "d.jsonl", [SourceRecord(row, "d.jsonl:1")])
    reader.use.note(findings)
    assert [(one.reason.name, one.detail) for one in findings] == [
        ("unused-columns", "url"),
        ("ignored-columns", "system"),
    ]
    with pytest.raises(DataError, match=r"ignored-columns"):
        findings.require_consent([])


def test_two_lists_of_messages_are_compared_as_openai_writes_them():
    row = {
        "input": {"messages": [ASKED], "tools": []},
        "preferred_output": [GOOD],
        "non_preferred_output": [BAD],
    }
    sides = (CompletionRecord("d:1", (ASKED,), (side,)) for side in (GOOD, BAD))
    assert read(row, "dpo") == [PreferenceRecord("d:1", *sides)]


@pytest.mark.parametrize(("better", "sides"), [(0, ("g", "b")), (1, ("b", "g"))])
def test_the_better_one_of_two_numbered_answers_is_chosen(better, sides):
    row = {"prompt": "q", "response_0": "g", "response_1": "b", "better_response_id": better}
    (record,) = read(row, "dpo")
    assert (record.chosen.completion, record.rejected.completion) == sides


def test_unknown_columns_are_refused_with_a_setting_to_paste():
    with pytest.raises(DataError, match=r"data.columns: {instruction: COLUMN, output: COLUMN}"):
        read({"ask": "q", "tell": "g"}, "sft")
    read({"ask": "q", "tell": "g"}, "sft", columns={"instruction": "ask", "output": "tell"})


@pytest.mark.parametrize(
    "score", [float("inf"), float("-inf"), "inf", "1e999", float("nan"), "NaN"]
)
def test_a_score_that_is_not_finite_is_none(score):
    (found,) = read({"anchor": "a", "positive": "b", "score": score}, "contrastive")
    assert found.score is None


def test_a_score_beyond_all_floats_is_refused():
    with pytest.raises(DataError, match="column 'score': got int"):
        read({"anchor": "a", "positive": "b", "score": 10**400}, "contrastive")
