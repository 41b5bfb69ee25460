from __future__ import annotations

import re

import pytest

from fttui.engine.config.data_reasons.rows import (
    INVALID_ROWS,
    MATCH_NEGATIVES,
    NOT_MATCHING,
    OTHER_FORM,
    PADDING_NULLS,
    PROMPT_IGNORED,
    READ_AS_FORM,
    SYSTEM_UNUSED,
    UNLABELLED,
)
from fttui.engine.data.findings import Findings
from fttui.engine.data.reading import records_of
from fttui.engine.data.records.formats import (
    CompletionRecord,
    MessagesRecord,
    PairRecord,
    PreferenceRecord,
    RatedRecord,
    TextRecord,
)
from fttui.engine.data.records.reader import RecordReader
from fttui.engine.data.sources import SourceRecord
from fttui.engine.errors import DataError

from .test_mapping import config

SYSTEM = {"role": "system", "content": "s"}
ASKED = {"role": "user", "content": "q"}
GOOD = {"role": "assistant", "content": "g"}
BAD = {"role": "assistant", "content": "b"}
SCHEMA = {"name": "dew", "parameters": {"type": "object", "properties": {}}}
TOOL = {"type": "function", "function": SCHEMA}
ALPACA = {"instruction": "q", "input": "", "output": "g"}
CHAT = {"messages": [ASKED, GOOD]}


class Reading:
    """Rows of `d.jsonl` read by a task."""

    def __init__(self, task, rows, file="d.jsonl", **data):
        self.findings = Findings()
        reader = RecordReader(config(task, **data), file, self.findings)
        placed = [SourceRecord(row, f"{file}:{n}") for n, row in enumerate(rows, start=1)]
        self.records, self.decision = records_of(reader, file, placed)
        reader.use.note(self.findings)

    def found(self, reason):
        """Number of units, first place and detail of a finding."""
        one = next((one for one in self.findings if one.reason is reason), None)
        return one and (one.count, one.place, one.detail)


def read(task, *rows, **data):
    return Reading(task, rows, **data).records


# Roles


@pytest.mark.parametrize("key", ["role", "from"])
def test_an_unknown_role_is_refused_with_its_place_and_the_setting(key):
    rows = {"messages": [{key: "narrator", "content": "q"}, GOOD]}
    with pytest.raises(DataError, match=r"d\.jsonl:1: .*'narrator' is unknown.*data\.roles"):
        read("sft", rows)


@pytest.mark.parametrize(
    ("roles", "role"),
    [
        ({"narrator": "user"}, "user"),
        ({"narrator": "human"}, "user"),
        ({"narrator": "narrator"}, "narrator"),
        ({"*": "*"}, "narrator"),
        ({"*": "user"}, "user"),
    ],
)
def test_roles_of_the_data_and_of_the_template_are_named(roles, role):
    (record,) = read("sft", {"messages": [{"role": "narrator", "content": "q"}, GOOD]}, roles=roles)
    assert isinstance(record, MessagesRecord)
    assert [one["role"] for one in record.messages] == [role, "assistant"]


def test_the_role_that_is_learned_is_known():
    row = {"messages": [ASKED, {"role": "critic", "content": "g"}]}
    (record,) = read("sft", row, train_on="critic")
    assert isinstance(record, MessagesRecord)
    assert record.messages[1]["role"] == "critic"


@pytest.mark.parametrize(
    ("task", "row"),
    [
        (
            "dpo",
            {
                "prompt": [{"role": "narrator", "content": "q"}],
                "chosen": [GOOD],
                "rejected": [BAD],
            },
        ),
        ("dpo", {"messages": [{"from": "narrator", "value": "q"}], "chosen": "g", "rejected": "b"}),
        (
            "dpo",
            {
                "chosen": [{"role": "narrator", "content": "q"}, GOOD],
                "rejected": [{"role": "narrator", "content": "q"}, BAD],
            },
        ),
        ("kto", {"messages": [{"role": "narrator", "content": "q"}, GOOD], "label": True}),
        ("sft", {"prompt": [{"role": "narrator", "content": "q"}], "completion": [GOOD]}),
        ("sft", {"query": "q", "response": "g", "history": [{"role": "narrator", "content": "a"}]}),
    ],
)  # fmt: skip
def test_roles_are_mapped_wherever_messages_stand(task, row):
    with pytest.raises(DataError, match=r"d\.jsonl:1: .*'narrator' is unknown"):
        read(task, row)
    (record,) = read(task, row, roles={"narrator": "user"})
    assert "narrator" not in str(record)


# System messages, histories and tools of preferences

WITH_CONTEXT = {"system": "s", "history": [["a", "b"]], "tools": [SCHEMA]}
PAST = (SYSTEM, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, ASKED)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [ASKED], "chosen": [GOOD], "rejected": [BAD]},
        {"chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]},
        {"prompt": "q", "chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]},
        {"prompt": "q", "chosen": [GOOD], "rejected": [BAD]},
        {"question": "q", "chosen": "g", "rejected": "b"},
        {"instruction": "q", "input": "", "chosen": "g", "rejected": "b"},
        {"conversations": [ASKED], "chosen": GOOD, "rejected": BAD},
        {"messages": [ASKED, GOOD], "rejected_response": "b"},
        {"messages": [ASKED, GOOD], "chosen": "g", "rejected": "b"},
    ],
)
def test_system_message_history_and_tools_belong_to_preferences(row):
    result = Reading("dpo", [{**row, **WITH_CONTEXT}])
    sides = [CompletionRecord("d:1", PAST, (one,), tools=(TOOL,)) for one in (GOOD, BAD)]
    assert result.records == [PreferenceRecord("d:1", *sides)]
    assert list(result.findings) == []


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [ASKED], "completion": [GOOD], "label": 1},
        {"messages": [ASKED, GOOD], "label": 1},
        {"question": "q", "answer": "g", "label": 1},
        {"prompt": "q", "response": "g", "label": 1},
        {"instruction": "q", "input": "", "output": "g", "kto_tag": True},
    ],
)
def test_system_message_history_and_tools_belong_to_ratings(row):
    result = Reading("kto", [{**row, **WITH_CONTEXT}])
    text = CompletionRecord("d:1", PAST, (GOOD,), tools=(TOOL,))
    assert result.records == [RatedRecord("d:1", text, True)]
    assert list(result.findings) == []


def test_the_tools_of_openai_preferences_are_read():
    row = {
        "input": {"messages": [ASKED], "tools": [TOOL]},
        "preferred_output": [GOOD],
        "non_preferred_output": [BAD],
    }
    (record,) = read("dpo", row)
    assert isinstance(record, PreferenceRecord)
    assert record.chosen.tools == record.rejected.tools == (TOOL,)


@pytest.mark.parametrize("task", ["dpo", "kto"])
def test_the_configured_system_message_stands_before_preferences(task):
    row = {"prompt": [ASKED], "chosen": [GOOD], "rejected": [BAD]}
    (record,) = read(task, row, system="s")
    assert isinstance(record, PreferenceRecord)
    assert record.chosen.prompt == (SYSTEM, ASKED)


@pytest.mark.parametrize(
    ("task", "row"),
    [
        ("sft", {"text": "t"}),
        ("sft", {"prompt": "q", "completion": "g"}),
        ("dpo", {"prompt": "q", "chosen": "g", "rejected": "b"}),
    ],
)
def test_texts_without_turns_get_no_system_message_and_are_counted(task, row):
    assert Reading(task, [row, row], system="s").found(SYSTEM_UNUSED) == (2, "d.jsonl:1", "")
    assert Reading(task, [row]).found(SYSTEM_UNUSED) is None


def test_a_prompt_that_the_conversations_do_not_contain_is_counted():
    row = {"prompt": "other", "chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]}
    result = Reading("dpo", [{**row, "prompt": " q\n"}, row])
    assert result.found(PROMPT_IGNORED) == (1, "d.jsonl:2", "")


def test_whole_conversations_beside_messages_stay_as_they_are():
    row = {"messages": [ASKED, GOOD], "chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]}
    (record,) = read("dpo", row)
    assert isinstance(record, PreferenceRecord)
    assert (record.chosen.prompt, record.chosen.completion) == ((ASKED,), (GOOD,))


def test_a_conversation_that_ends_with_another_answer_is_refused():
    row = {"messages": [ASKED, GOOD], "chosen": "other", "rejected": "b"}
    with pytest.raises(DataError, match=r"d\.jsonl:1: .*none of the completions of the row"):
        read("dpo", row)
    with pytest.raises(DataError, match=r"d\.jsonl:1: .*does not end with a turn of the assistant"):
        read("kto", {"messages": [ASKED], "label": True})


def test_transcripts_are_conversations():
    row = {"chosen": "\n\nHuman: q\n\nAssistant: g", "rejected": "\n\nHuman: q\n\nAssistant: b"}
    sides = [CompletionRecord("d:1", (ASKED,), (one,)) for one in (GOOD, BAD)]
    assert read("dpo", row) == [PreferenceRecord("d:1", *sides)]


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ({"messages": [ASKED, GOOD], "label": 3}, "messages, label"),
        ({"text": "t", "label": "class"}, "text, label"),
        ({"prompt": "q", "chosen": "g", "rejected": None}, r"\(without a value: rejected\)"),
    ],
)
def test_a_refusal_names_the_columns_of_the_file_and_asks_for_no_rating_of_other_tasks(
    row, columns
):
    with pytest.raises(DataError, match=f"d.jsonl: the columns .*{columns}"):
        read("dpo", row)


@pytest.mark.parametrize(
    ("prompt", "good", "bad"),
    [([ASKED], "g", "b"), ([ASKED], GOOD, "b"), ("q", "g", [BAD]), ("q", [GOOD], "b")],
)
def test_texts_beside_messages_are_turns(prompt, good, bad):
    text, other = (CompletionRecord("d:1", (ASKED,), (one,)) for one in (GOOD, BAD))
    compared = {"prompt": prompt, "chosen": good, "rejected": bad}
    assert read("dpo", compared) == [PreferenceRecord("d:1", text, other)]
    if good != "g" or prompt != "q":
        answered = {"prompt": prompt, "completion": good}
        assert read("sft", answered) == [text]
        assert read("kto", {**answered, "label": 1}) == [RatedRecord("d:1", text, True)]


# Nulls of columnar files


@pytest.mark.parametrize(
    ("task", "row"),
    [
        ("sft", {"messages": [ASKED, GOOD]}),
        ("dpo", {"prompt": [ASKED], "chosen": [GOOD], "rejected": [BAD]}),
    ],
)
def test_nulls_that_tables_add_to_tools_are_counted_once_a_record(task, row):
    tools = [{"name": "dew", "parameters": {"type": "object", "properties": {}, "to": None}}] * 2
    rows = [{**row, "tools": tools}, {**row, "tools": [SCHEMA]}, {**row, "tools": tools}]
    result = Reading(task, rows, file="d.parquet")
    assert result.found(PADDING_NULLS) == (2, "d.parquet:1", "")
    assert "None" not in re.sub(r"(label|margin)=None", "", str(result.records[0]))
    assert Reading(task, rows).found(PADDING_NULLS) is None


def test_nulls_in_json_text_are_kept():
    call = {"role": "assistant", "function_call": {"name": "dew", "arguments": '{"to": null}'}}
    result = Reading("sft", [{"messages": [ASKED, call]}], file="d.parquet")
    (record,) = result.records
    assert isinstance(record, MessagesRecord)
    assert record.messages[1]["tool_calls"][0]["function"]["arguments"] == {"to": None}
    assert result.found(PADDING_NULLS) is None


# Ratings


def rated(*labels, **data):
    rows = [{"prompt": "q", "completion": "g", "label": label} for label in labels]
    return [one.desirable for one in read("kto", *rows, **data) if isinstance(one, RatedRecord)]


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (True, False),
        (1, 0),
        (1.0, 0.0),
        (1, -1),
        ("1", "0"),
        ("1.0", "-1.0"),
        ("Good", "bad "),
        ("desirable", "undesirable"),
        ("thumbs_up", "Thumbs-Down"),
        ("👍", "👎🏽"),
        ("chosen", "rejected"),
    ],
)
def test_ratings_of_every_scale_are_known(good, bad):
    assert rated(good, bad, good) == [True, False, True]


def test_zero_beside_minus_one_is_asked_about():
    with pytest.raises(DataError, match=r"labels 0 \(d.jsonl:3\) and -1 \(d.jsonl:1\).*yes_labels"):
        rated(-1, 1, 0)
    assert rated(-1, 1, 0, yes_labels=[1]) == [False, True, False]


@pytest.mark.parametrize("label", [3, "neutral", 0.5, "5"])
def test_other_ratings_are_asked_about(label):
    with pytest.raises(DataError, match=r"d\.jsonl:2: .*unknown; set data.yes_labels"):
        rated(1, label)
    assert rated(1, label, yes_labels=[label]) == [False, True]


# The format of a source


def test_rows_of_two_forms_of_one_format_are_all_read():
    result = Reading("sft", [ALPACA, CHAT, ALPACA, CHAT])
    assert result.records == [MessagesRecord(f"d:{n}", (ASKED, GOOD)) for n in range(1, 5)]
    assert list(result.findings) == []


@pytest.mark.parametrize(
    "odd",
    [{"text": "t"}, {"messages": [ASKED, GOOD], "completion": "g", "prompt": None}, {"url": "u"}],
)
def test_the_first_row_does_not_decide_alone(odd):
    rows = [odd, *[{"prompt": "q", "completion": "g"}] * 9]
    result = Reading("sft", rows)
    assert result.records[-9:] == [CompletionRecord(f"d:{n}", "q", "g") for n in range(2, 11)]
    assert result.decision.form == "prompt_completion"
    assert (result.decision.fitting, result.decision.rows) == (9, 10)
    assert result.found(OTHER_FORM)[:2] == (1, "d.jsonl:1")


def test_a_column_that_is_null_in_the_first_rows_is_known():
    empty = {"prompt": "q", "completion": "g", "messages": None}
    full = {"prompt": None, "completion": None, "messages": [ASKED, GOOD]}
    result = Reading("sft", [empty, full, full])
    assert result.decision.form == "messages"
    assert result.found(READ_AS_FORM) == (1, "d.jsonl:1", "format prompt_completion")


def test_rows_of_another_form_are_left_out_with_consent():
    result = Reading("sft", [CHAT, CHAT, {"text": "t"}, {"text": "u"}, {"text": None}])
    assert len(result.records) == 2
    assert result.found(OTHER_FORM) == (3, "d.jsonl:3", "format text")
    assert result.decision.line == (
        "2 of 5 sampled rows have this format; "
        "others: 2 rows with format text; 1 row with no columns"
    )
    with pytest.raises(DataError, match=r"3 of 3 records \(100 %\) left out.*d\.jsonl:3"):
        result.findings.require_consent([])


GATE = {"role": "user", "content": "Which gate?"}
INVALID = [
    {"messages": "x"},
    {"messages": [GATE, {"role": "oracle", "content": "four"}]},
    {"messages": [GATE, [{"role": "assistant", "content": "four"}]]},
    {"messages": [GATE, {"role": "assistant", "content": 4}]},
    {"messages": [GATE, {"role": "assistant", "content": [{"type": "text", "text": None}]}]},
    {"messages": [GATE, {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}]},
    {"messages": [GATE, {"role": "assistant", "content": "four", "weight": -1}]},
    CHAT | {"tools": "{not JSON"},
    CHAT | {"weight": "heavy"},
]


@pytest.mark.parametrize("row", INVALID)
def test_a_row_with_a_value_that_cannot_be_read_is_left_out_and_needs_consent(row):
    result = Reading("sft", [CHAT, row, CHAT])
    assert len(result.records) == 2
    count, place, detail = result.found(INVALID_ROWS)
    assert (count, place) == (1, "d.jsonl:2")
    assert "got" in detail or "expected" in detail
    with pytest.raises(DataError, match="invalid-rows"):
        result.findings.require_consent(())


@pytest.mark.parametrize("row", INVALID)
def test_data_of_which_most_rows_cannot_be_read_are_refused_with_the_first_of_them(row):
    with pytest.raises(DataError, match=r"^d\.jsonl:2: column .*; 2 of 3 rows cannot be read$"):
        read("sft", CHAT, row, row)


@pytest.mark.parametrize(
    ("task", "good", "bad"),
    [
        (
            "sft",
            {"instruction": "a", "instances": [{"output": "b"}]},
            {"instruction": "a", "instances": [{"output": "b"}, {"output": "c"}]},
        ),
        (
            "contrastive",
            {"anchor": "a", "positive": "b"},
            {"anchor": 2, "positive": "b"},
        ),
        (
            "dpo",
            {"prompt": "a", "chosen": "b", "rejected": "c"},
            {"prompt": "a", "chosen": ["b"], "rejected": 1},
        ),
        (
            "kto",
            {"prompt": "a", "completion": "b", "label": True},
            {"prompt": "a", "completion": 1, "label": True},
        ),
        (
            "reward",
            {"chosen": "b", "rejected": "c"},
            {"chosen": "b", "rejected": "c", "margin": "x"},
        ),
    ],
)
def test_rows_with_wrong_values_are_left_out_in_every_task(task, good, bad):
    result = Reading(task, [good, bad, good])
    assert len(result.records) == 2
    assert result.found(INVALID_ROWS)[:2] == (1, "d.jsonl:2")


def test_labels_that_can_mean_several_things_are_decided_for_all_rows():
    rows = [{"prompt": "a", "completion": "b", "label": "good"}] * 9
    with pytest.raises(DataError, match=r"d\.jsonl:10: .*'so-so' is unknown"):
        read("kto", *rows, {"prompt": "a", "completion": "b", "label": "so-so"})


def test_a_row_without_a_mapped_column_is_left_out():
    columns = {"prompt": "ask", "completion": "tell"}
    rows = [{"ask": "q"}, {"ask": "q", "tell": "g"}]
    result = Reading("sft", rows, columns=columns)
    assert result.records == [CompletionRecord("d:2", "q", "g")]
    assert result.found(OTHER_FORM)[:2] == (1, "d.jsonl:1")


def test_a_configured_format_without_a_row_names_what_is_missing():
    with pytest.raises(
        DataError, match=r"no row could be read as a record:\n.*first: d\.jsonl:1, no column text"
    ):
        read("sft", {"words": "t"}, format="text")


def test_a_column_that_another_one_replaces_is_not_read_in_silence():
    row = {"prompt": "template", "ask": "q", "completion": "g"}
    result = Reading("sft", [row], columns={"prompt": "ask"})
    assert result.records == [CompletionRecord("d:1", "q", "g")]
    assert "prompt (of the file)" in [one.detail for one in result.findings]


def test_messages_in_json_text_are_read():
    row = {"prompt": '[{"role": "user", "content": "q"}]', "completion": "g"}
    (record,) = read("sft", {**row, "completion": '[{"role": "assistant", "content": "g"}]'})
    assert record == CompletionRecord("d:1", (ASKED,), (GOOD,))
    assert read("sft", {"prompt": "[1, 2]", "completion": "g"}) == [
        CompletionRecord("d:1", "[1, 2]", "g")
    ]


def test_texts_beside_answers_need_consent():
    row = {"text": "t", "instruction": "q", "output": "g"}
    result = Reading("sft", [row])
    assert result.records == [TextRecord("d:1", "t")]
    with pytest.raises(DataError, match="ignored-columns"):
        result.findings.require_consent([])


# Labels of pairs


def pairs(*labels, a="sentence1", b="sentence2", name="label", **data):
    rows = [{a: f"a{n}", b: f"b{n}", name: label} for n, label in enumerate(labels)]
    return Reading("contrastive", rows, **data)


@pytest.mark.parametrize(
    ("names", "name", "label"),
    [
        (("sentence1", "sentence2"), "label", 1),
        (("sentence1", "sentence2"), "gold_label", "entailment"),
        (("question1", "question2"), "is_duplicate", 1),
        (("premise", "hypothesis"), "label", 0),
        (("premise", "hypothesis"), "label", "neutral"),
        (("sentence_A", "sentence_B"), "entailment_judgment", "NEUTRAL"),
        (("text1", "text2"), "labels", True),
    ],
)
def test_a_label_of_two_texts_is_asked_about(names, name, label):
    with pytest.raises(DataError, match=r"d\.jsonl:1: .*set data\.label: match"):
        pairs(label, a=names[0], b=names[1], name=name)


@pytest.mark.parametrize(
    ("yes", "no"),
    [(1, 0), (True, False), ("1", "0"), ("entailment", "contradiction"), ("duplicate", "neutral")],
)
def test_matching_texts_are_pairs_and_the_others_are_left_out(yes, no):
    result = pairs(yes, no, None, label="match")
    assert result.records == [PairRecord("d:1", "a0", "b0")]
    assert result.found(NOT_MATCHING) == (1, "d.jsonl:2", "")
    assert result.found(UNLABELLED) == (1, "d.jsonl:3", "")


def test_numbers_of_inference_classes_are_asked_about():
    names = {"a": "premise", "b": "hypothesis"}
    with pytest.raises(DataError, match=r"d\.jsonl:1: .*data\.yes_labels.*\[0\]"):
        pairs(0, 1, 2, label="match", **names)
    result = pairs(0, 1, 2, -1, label="match", yes_labels=[0], **names)
    assert result.records == [PairRecord("d:1", "a0", "b0")]
    assert result.found(NOT_MATCHING) == (3, "d.jsonl:2", "")


def test_texts_that_do_not_match_are_negatives_of_their_anchor():
    rows = [
        {"sentence1": "a", "sentence2": "n", "label": 0},
        {"sentence1": "a", "sentence2": "b", "label": 1},
        {"sentence1": "c", "sentence2": "d", "label": 0},
    ]
    result = Reading("contrastive", rows, label="match")
    assert result.records == [PairRecord("d:1", "a", "b", ("n",))]
    assert result.found(MATCH_NEGATIVES) == (1, "d.jsonl:1", "")
    assert result.found(NOT_MATCHING) == (1, "d.jsonl:3", "")


@pytest.mark.parametrize("labels", [(5.0, 3.8), ("5.000", "3.800"), (1, 0.5)])
def test_one_fraction_makes_all_labels_of_a_source_scores(labels):
    scores = [one.score for one in pairs(*labels).records if isinstance(one, PairRecord)]
    assert scores == [float(one) for one in labels]


@pytest.mark.parametrize("name", ["similarity", "similarity_score", "relatedness_score"])
def test_similarities_are_scores(name):
    assert pairs(0.5, name=name).records == [PairRecord("d:1", "a0", "b0", score=0.5)]


def test_an_unknown_column_that_looks_like_a_label_needs_consent():
    result = pairs(*(0, 1) * 4, name="verdict")
    with pytest.raises(DataError, match=r"ignored-columns"):
        result.findings.require_consent([])
    pairs(*range(8), name="number").findings.require_consent([])


def test_answers_to_be_scored_need_no_prompt_and_may_have_a_margin():
    graded = {"chosen": "good", "rejected": "bad", "margin": "0.5"}
    rows = [graded, {"chosen": "g", "rejected": "b"}]
    first, second = read("reward", *rows)
    assert (first.chosen.prompt, first.chosen.completion, first.margin) == ("", "good", 0.5)
    assert second.margin is None
    reading = Reading("reward", rows)
    assert not list(reading.findings), "the margin is read"
    talks = {"chosen": [ASKED, GOOD], "rejected": [ASKED, BAD], "margin": 2}
    (talk,) = read("reward", talks)
    assert (len(talk.chosen.prompt), talk.margin) == (1, 2.0)


def test_a_transcript_without_a_last_answer_is_no_text_to_be_scored():
    turns = "\n\nHuman: Why?\n\nAssistant: "
    rows = [{"chosen": f"{turns}So.", "rejected": f"{turns}No."}] * 4
    odd = {"chosen": f"{turns}So.\n\nHuman: thanks", "rejected": f"{turns}No."}
    reading = Reading("reward", [*rows, odd])
    assert len(reading.records) == 4
    assert reading.findings.count(OTHER_FORM) == 1


def test_a_margin_that_is_no_number_is_refused_and_other_tasks_do_not_read_it():
    row = {"prompt": "q", "chosen": "g", "rejected": "b", "margin": "much"}
    with pytest.raises(DataError, match="1: column 'margin': got 'much', expected a number"):
        read("reward", row)
    (record,) = read("dpo", row)
    assert record.margin is None
