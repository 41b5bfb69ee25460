"""What a row says against its record: missing values, scores, a second conversation, media."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fttui.engine.config.data_reasons import rows as row_reasons
from fttui.engine.data.records.formats import CompletionRecord, MessagesRecord, PairRecord
from fttui.engine.errors import DataError

from .test_reader import Reading

Q = {"role": "user", "content": "Which gate?"}
A = {"role": "assistant", "content": "Gate four."}
OTHER = {"role": "assistant", "content": "It is closed."}
CHAT = {"messages": [Q, A]}


@pytest.mark.parametrize("word", ["NA", "nan", "null", "None", "N/A", "NaN", "<NA>", " NA "])
@pytest.mark.parametrize(
    ("task", "row", "column"),
    [
        ("sft", {"prompt": "a", "completion": "b"}, "completion"),
        ("sft", {"instruction": "a", "input": "b", "output": "c"}, "input"),
        ("sft", {"text": "a"}, "text"),
        ("contrastive", {"anchor": "a", "positive": "b"}, "positive"),
        ("dpo", {"prompt": "a", "chosen": "b", "rejected": "c"}, "rejected"),
        ("kto", {"prompt": "a", "completion": "b", "label": True}, "prompt"),
    ],
)
def test_words_for_missing_values_are_counted_where_they_are_learned(
    task: str, row: dict[str, Any], column: str, word: str
) -> None:
    read = Reading(task, [row, row | {column: word}])
    detail = f"column '{column}': {word.strip()}"
    assert read.found(row_reasons.MISSING_WORDS) == (1, "d.jsonl:2", detail)


@pytest.mark.parametrize(
    "row",
    [
        {"text": "None of these"},
        {"text": "a", "source": "nan"},
        {"text": "a", "id": "NA"},
        {"messages": [Q, A], "tools": "null"},
    ],
)
def test_such_words_elsewhere_are_not_counted(row: dict[str, Any]) -> None:
    assert Reading("sft", [row]).found(row_reasons.MISSING_WORDS) is None


def test_such_words_are_counted_in_messages_and_under_other_names() -> None:
    chat = {"messages": [Q, {"role": "assistant", "content": "nan"}]}
    assert Reading("sft", [chat]).found(row_reasons.MISSING_WORDS)[2] == "a message: nan"
    columns = {"prompt": "{a}: ", "completion": "b"}
    joined = Reading("sft", [{"a": "nan", "b": "x"}], columns=columns)
    assert joined.found(row_reasons.MISSING_WORDS)[2] == "column 'a': nan"
    unused = Reading("sft", [{"text": "a", "b": "nan"}], columns={"b": None})
    assert unused.found(row_reasons.MISSING_WORDS) is None


@pytest.mark.parametrize(
    ("better", "worse", "good", "bad", "contradicts"),
    [
        ("chosen_score", "rejected_score", 1.0, 5, True),
        ("score_chosen", "score_rejected", 5, 1.0, False),
        ("chosen-rating", "rejected-rating", "2,5", "4", True),
        ("chosen_avg_rating", "rejected_avg_rating", 3, 3, False),
        ("Chosen_Reward", "Rejected_Reward", -2.5, -1, True),
        ("chosen_rank", "rejected_rank", 1, 2, False),
        ("chosen_score", "rejected_score", 1, None, False),
    ],
)
@pytest.mark.parametrize("task", ["dpo", "kto"])
def test_scores_that_prefer_the_rejected_completion_are_counted(
    task: str, better: str, worse: str, good: Any, bad: Any, contradicts: bool
) -> None:
    row = {"prompt": "q", "chosen": "a", "rejected": "b", better: good, worse: bad}
    found = Reading(task, [row]).found(row_reasons.CONTRADICTING_SCORES)
    assert (found is not None) == contradicts


@pytest.mark.parametrize(
    ("task", "row", "column"),
    [
        ("sft", CHAT | {"conversations": [Q, OTHER]}, "conversations"),
        ("sft", CHAT | {"prompt": "Which gate?", "completion": "It is closed."}, "completion"),
        ("sft", CHAT | {"instruction": "Which gate?", "output": "It is closed."}, "output"),
        ("sft", CHAT | {"text": "Which gate? It is closed."}, "text"),
        ("sft", {"prompt": "a", "completion": "b", "response": "c"}, "response"),
        (
            "dpo",
            {"prompt": "q", "chosen": "a", "rejected": "b", "messages": [Q, OTHER]},
            "messages",
        ),
    ],
)
def test_a_second_conversation_with_other_texts_needs_consent(
    task: str, row: dict[str, Any], column: str
) -> None:
    read = Reading(task, [row])
    assert read.found(row_reasons.SECOND_CONVERSATION) == (1, "d.jsonl:1", column)
    assert any(one.needs_consent([]) for one in read.findings)


@pytest.mark.parametrize(
    ("task", "row"),
    [
        ("sft", CHAT | {"conversations": [{"from": "human", "value": "Which  gate?"}]}),
        ("sft", CHAT | {"prompt": "Which gate?", "completion": "Gate four."}),
        ("sft", CHAT | {"text": "### Which gate?\nGate four.</s>"}),
        ("sft", CHAT | {"problem": "Which gate?", "solution": "It is 4.", "answer": "4"}),
        ("dpo", {"chosen": [Q, A], "rejected": [Q, OTHER], "messages": [Q, A], "prompt": "Which"}),
        ("contrastive", {"anchor": "a", "positive": "b", "answer": "c"}),
    ],
)
def test_the_same_texts_in_further_columns_need_no_consent(task: str, row: dict[str, Any]) -> None:
    assert Reading(task, [row]).found(row_reasons.SECOND_CONVERSATION) is None


def test_a_prompt_that_the_messages_lack_needs_consent() -> None:
    found = Reading("sft", [CHAT | {"prompt": "Answer as a pirate."}]).found(
        row_reasons.PROMPT_IGNORED
    )
    assert found == (1, "d.jsonl:1", "column 'prompt'")
    assert Reading("sft", [CHAT | {"prompt": "gate?"}]).found(row_reasons.PROMPT_IGNORED) is None


def test_of_several_conversations_one_is_named_in_the_refusal() -> None:
    row = {"conversation": [Q, A], "conversations": [Q, OTHER]}
    with pytest.raises(DataError, match="messages: conversations, conversation: null"):
        Reading("sft", [row])
    columns = {"messages": "conversations", "conversation": None}
    assert Reading("sft", [row], columns=columns).records == [MessagesRecord("d:1", (Q, OTHER))]


@pytest.mark.parametrize(
    "column",
    [
        *("image", "images", "image_path", "image_url", "Image", "img", "photo", "image_bytes"),
        *("audio", "audio_path", "audios", "video_file", "videos", "pixel_values", "picture"),
    ],
)
def test_media_beside_a_text_need_consent_under_every_usual_name(column: str) -> None:
    read = Reading("sft", [{"text": "a"}, {"text": "a", column: "a.bin"}])
    assert read.found(row_reasons.MEDIA_COLUMNS) == (1, "d.jsonl:2", column)
    assert row_reasons.MEDIA_COLUMNS.limit == 0
    left_out = Reading("sft", [{"text": "a", column: "a.bin"}], columns={column: None})
    for without in (left_out, Reading("sft", [{"text": "a", column: None}])):
        assert without.records
        assert without.found(row_reasons.MEDIA_COLUMNS) is None


@pytest.mark.parametrize("column", ["video_id", "imagination", "audience", "speech", "imager"])
def test_other_columns_are_no_media(column: str) -> None:
    assert Reading("sft", [{"text": "a", column: "b"}]).found(row_reasons.MEDIA_COLUMNS) is None


@pytest.mark.parametrize(
    ("text", "score"), [("0,5", 0.5), (",25", 0.25), ("-0,125", -0.125), ("4,5", 4.5), ("3", 3.0)]
)
def test_a_decimal_comma_is_read(text: str, score: float) -> None:
    row = {"sentence1": "a", "sentence2": "b", "score": text}
    assert Reading("contrastive", [row]).records == [PairRecord("d:1", "a", "b", score=score)]


def test_a_comma_that_may_separate_thousands_is_refused() -> None:
    row = {"sentence1": "a", "sentence2": "b", "score": "1,234"}
    with pytest.raises(DataError, match=r"'1,234', expected a number with a decimal point"):
        Reading("contrastive", [row])


def test_the_only_instance_of_an_instruction_is_read() -> None:
    row = {"instruction": "Add.", "instances": [{"input": "1 and 2", "output": "3"}]}
    asked = {"role": "user", "content": "Add.\n1 and 2"}
    answered = {"role": "assistant", "content": "3"}
    assert Reading("sft", [row]).records == [MessagesRecord("d:1", (asked, answered))]
    for entries in ([], [{"output": "3"}, {"output": "4"}], [{"input": "a"}]):
        with pytest.raises(DataError, match=r"'instances' has \d entries.*instances\.0\.output"):
            Reading("sft", [row | {"instances": entries}])


def test_texts_inside_columns_are_named_by_their_path() -> None:
    row = {"context": "c", "question": "q", "answers": {"text": ["a", "b"], "answer_start": [1]}}
    with pytest.raises(DataError, match=r"named by their path: answers\.text\.0"):
        Reading("sft", [row])
    columns = {"prompt": "{context}\n{question}\n", "completion": "answers.text.0"}
    read = Reading("sft", [row, row | {"answers": {"text": []}}], columns=columns)
    assert read.records == [CompletionRecord("d:1", "c\nq\n", "a")]
    assert read.found(row_reasons.OTHER_FORM)[:2] == (1, "d.jsonl:2")
    inner = {"prompt": "{de.text} = ", "completion": "en"}
    dotted = {"de.text": "Tor", "de": {"text": "x"}, "en": "gate"}
    assert Reading("sft", [dotted], columns=inner).records == [
        CompletionRecord("d:1", "Tor = ", "gate")
    ]


def said(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [Q, {"role": "assistant", "content": list(parts)}]


def test_parts_of_text_and_of_reasoning_are_read() -> None:
    text = said({"type": "output_text", "text": "Gate"}, {"type": "text", "text": " four."})
    assert Reading("sft", [{"messages": text}]).records == [MessagesRecord("d:1", (Q, A))]
    forms = ({"thinking": "hm"}, {"type": "reasoning", "text": "hm"})
    for thought in (*forms, {"type": "reasoning", "value": "hm"}):
        thought = {"type": "thinking", **thought}
        row = {"messages": said(thought, {"type": "text", "text": "Gate four."})}
        answer = A | {"reasoning_content": "hm"}
        assert Reading("sft", [row]).records == [MessagesRecord("d:1", (Q, answer))]


def test_calls_as_last_parts_are_read() -> None:
    part = {"type": "tool_call", "value": '{"name": "f", "arguments": {"a": 1}}'}
    row = {"messages": said({"type": "reasoning", "value": "hm"}, part, part)}
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    answer = {"role": "assistant", "content": "", "reasoning_content": "hm"}
    expected = MessagesRecord("d:1", (Q, answer | {"tool_calls": [call, call]}))
    assert Reading("sft", [row]).records == [expected]
    text = {"type": "text", "value": "Gate four."}
    with pytest.raises(DataError, match="expected tool calls as the last parts of a message"):
        Reading("sft", [{"messages": said(part, text)}])


def test_calls_as_parts_are_refused_with_the_form_to_write() -> None:
    row = {"messages": said({"type": "tool_use", "name": "f", "input": {}})}
    with pytest.raises(DataError, match="expected tool calls as tool_calls"):
        Reading("sft", [row])


@pytest.mark.parametrize(
    ("task", "row", "columns", "read"),
    [
        (
            "dpo",
            {"prompt": "q", "chosen": ["a"], "rejected": ["b", "c"]},
            {"chosen": "chosen.0", "rejected": "rejected.0"},
            "chosen",
        ),
        (
            "contrastive",
            {"query": ["Find", "q"], "pos": ["Find", "p"]},
            {"anchor": "query.1", "positive": "pos.1"},
            "query",
        ),
        (
            "sft",
            {"conversations": ["q", "a"]},
            {"prompt": "conversations.0", "completion": "conversations.1"},
            "conversations",
        ),
    ],
)
def test_lists_of_texts_are_refused_with_the_path_of_one(
    task: str, row: dict[str, Any], columns: dict[str, str], read: str
) -> None:
    with pytest.raises(DataError, match=rf"name one text of the list.*{{FIELD: {read}\.0}}"):
        Reading(task, [row])
    assert Reading(task, [row], columns=columns).records


@pytest.mark.parametrize("answer", [True, 4, 0.5])
def test_an_answer_that_is_no_text_is_refused_with_the_setting(answer: Any) -> None:
    row = {"question": "q", "answer": answer}
    with pytest.raises(DataError, match=r'\{FIELD: "\{answer\}"\} to write it as text'):
        Reading("sft", [row])
    columns = {"instruction": "question", "output": "{answer}"}
    turns = ({"role": "user", "content": "q"}, {"role": "assistant", "content": str(answer)})
    assert Reading("sft", [row], columns=columns).records == [MessagesRecord("d:1", turns)]


@pytest.mark.parametrize("column", ["available_tools", "target_functions", "chat_template_kwargs"])
def test_columns_that_change_the_rendering_need_consent(column: str) -> None:
    found = Reading("sft", [CHAT | {column: "[]x"}]).found(row_reasons.IGNORED_COLUMNS)
    assert found == (1, "d.jsonl:1", column)


@pytest.mark.parametrize("system", [None, "Be brief."])
def test_reasoning_in_a_column_of_its_own_is_read_if_it_is_named(system: str | None) -> None:
    row = {"question": "Which gate?", "trace": "hm", "answer": "Gate four."}
    read = Reading("sft", [row], columns={"reasoning": "trace"}, system=system)
    turns = (Q, A | {"reasoning_content": "hm"})
    front = ({"role": "system", "content": system},) if system else ()
    assert read.records == [MessagesRecord("d:1", (*front, *turns))]
    assert list(read.findings) == []
    named = Reading("sft", [{"question": "q", "reasoning": "hm", "answer": "a"}])
    assert named.found(row_reasons.IGNORED_COLUMNS) == (1, "d.jsonl:1", "reasoning")


LONG = "Which gate is open today?"


@pytest.mark.parametrize(
    ("task", "row", "repeats"),
    [
        ("sft", {"prompt": LONG, "completion": f" {LONG} Four."}, True),
        ("sft", {"prompt": LONG, "completion": "Four."}, False),
        ("sft", {"prompt": "I", "completion": "I see"}, False),
        ("dpo", {"prompt": LONG, "chosen": f"{LONG} a", "rejected": f"{LONG} b"}, True),
        ("dpo", {"prompt": LONG, "chosen": f"{LONG} a", "rejected": "b"}, False),
        ("dpo", {"prompt": [Q], "chosen": [Q, A], "rejected": [Q, OTHER]}, False),
        ("kto", {"prompt": LONG, "completion": f"{LONG} a", "label": True}, True),
    ],
)
def test_completions_that_repeat_the_prompt_are_counted(
    task: str, row: dict[str, Any], repeats: bool
) -> None:
    found = Reading(task, [row]).found(row_reasons.PROMPT_REPEATED)
    assert found == ((1, "d.jsonl:1", "") if repeats else None)


def test_preferences_with_different_prompts_are_counted() -> None:
    other = {"role": "user", "content": "Which train?"}
    rows = [
        {"chosen": [Q, A], "rejected": [other, OTHER]},
        {"chosen": [Q, A], "rejected": [Q, OTHER]},
        {"chosen": [Q, A, Q, A], "rejected": [Q, A, other, OTHER]},
        {"chosen": [Q, A, Q, A], "rejected": [Q, OTHER, other, OTHER]},
        {"chosen": [Q, A, Q, A], "rejected": [Q, A]},
        {"chosen": [{"role": "system", "content": "x"}, Q, A], "rejected": [Q, A]},
    ]
    read = Reading("dpo", rows)
    assert read.found(row_reasons.DIFFERENT_PROMPTS) == (4, "d.jsonl:1", "")
    assert read.found(row_reasons.EARLY_DIFFERENCE) == (1, "d.jsonl:4", "")


@pytest.mark.parametrize(
    ("negatives", "detail"),
    [
        (["x", "b"], "a negative is the positive"),
        (["a"], "a negative is the anchor"),
        (["x"], None),
    ],
)
def test_negatives_that_repeat_a_text_of_their_pair_are_counted(
    negatives: list[str], detail: str | None
) -> None:
    row = {"anchor": "a", "positive": "b", "negatives": negatives}
    found = Reading("contrastive", [row]).found(row_reasons.OWN_NEGATIVES)
    assert found == (detail and (1, "d.jsonl:1", detail))


@pytest.mark.parametrize(
    ("task", "plain", "chat"),
    [
        (
            "sft",
            {"prompt": "a", "completion": "b"},
            {"prompt": [Q], "completion": [A]},
        ),
        (
            "dpo",
            {"prompt": "a", "chosen": "b", "rejected": "c"},
            {"prompt": [Q], "chosen": [A], "rejected": [OTHER]},
        ),
        (
            "kto",
            {"prompt": "a", "completion": "b", "label": True},
            {"prompt": [Q], "completion": [A], "label": True},
        ),
    ],
)
def test_plain_texts_among_conversations_need_consent(
    task: str, plain: dict[str, Any], chat: dict[str, Any]
) -> None:
    first_plain = Reading(task, [plain, chat, plain])
    first_chat = Reading(task, [chat, chat, plain])
    mixed = row_reasons.MIXED_TEXTS
    assert first_plain.found(mixed) == (1, "d.jsonl:2", "a conversation among plain texts")
    assert first_chat.found(mixed) == (1, "d.jsonl:3", "plain text among conversations")
    assert Reading(task, [chat, chat]).found(mixed) is None
    with pytest.raises(DataError, match="mixed-texts"):
        first_chat.findings.require_consent(())


@pytest.mark.parametrize("column", ["relevance", "is_match", "Grade"])
def test_a_grade_beside_a_pair_needs_consent(column: str) -> None:
    rows = [{"query": "q", "document": "d", column: 0}]
    found = Reading("contrastive", rows).found(row_reasons.IGNORED_COLUMNS)
    assert found == (1, "d.jsonl:1", column)


def test_a_text_that_is_the_json_of_messages_is_a_conversation() -> None:
    row = {"text": json.dumps([Q, A])}
    assert Reading("sft", [row]).records == [MessagesRecord("d:1", (Q, A))]


@pytest.mark.parametrize("key", ["input_schema", "inputSchema"])
def test_the_schema_of_a_tool_is_its_parameters(key: str) -> None:
    schema = {"type": "object", "properties": {}}
    (record,) = Reading("sft", [CHAT | {"tools": [{"name": "f", key: schema}]}]).records
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    assert record == MessagesRecord("d:1", (Q, A), tools=(tool,))
