from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import pytest

from fttui.engine.config.data_reasons import (
    CUT,
    EMPTY_PAIR,
    NO_TARGET,
    REJECTED_RECORDS,
    SEVERAL_EOS,
    SURPLUS_NEGATIVES,
    UNLEARNED_TURNS,
)
from fttui.engine.data.findings import Findings
from fttui.engine.data.records.formats import (
    CompletionRecord,
    MessagesRecord,
    PairRecord,
    TextRecord,
)
from fttui.engine.data.tokens import encoding
from fttui.engine.data.tokens.examples import IGNORED, PairExample, TextExample
from fttui.engine.data.tokens.tokenize import CHUNK, TokenizeOptions, tokenize_records
from fttui.engine.errors import DataError
from tests.support.tokenizer import CHATML, tiny_tokenizer

TALK = (
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "yo"},
    {"role": "user", "content": "ok"},
    {"role": "assistant", "content": "bye"},
)


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


@dataclass
class Tokenized:
    """Examples, and what was noted while they were made."""

    examples: list[Any]
    findings: Findings


def tokenize(records, tokenizer, **options):
    settings, findings = TokenizeOptions(**{"max_length": 500, **options}), Findings()
    made = tokenize_records(records, tokenizer, settings, findings, lambda done, total: None)
    return Tokenized(made, findings)


def targets(example, tokenizer):
    """The text that is learned."""
    return tokenizer.decode([label for label in example.labels if label != IGNORED])


def test_chat_learns_what_the_assistant_wrote_and_its_end_mark(tokenizer):
    (example,) = tokenize([MessagesRecord("a", TALK)], tokenizer).examples
    assert isinstance(example, TextExample)
    assert tokenizer.decode(example.input_ids) == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyo<|im_end|>\n"
        "<|im_start|>user\nok<|im_end|>\n<|im_start|>assistant\nbye<|im_end|>\n"
    )
    assert targets(example, tokenizer) == "yo<|im_end|>bye<|im_end|>"
    assert example.length == len(example.labels) == len(example.input_ids)


def test_chat_completion_learns_only_the_completion(tokenizer):
    record = CompletionRecord("a", TALK[:3], TALK[3:])
    (example,) = tokenize([record], tokenizer).examples
    assert targets(example, tokenizer) == "bye<|im_end|>"


def test_everything_is_learned_where_asked_for(tokenizer):
    records = [MessagesRecord("a", TALK), CompletionRecord("b", "in", "out")]
    chat, raw = tokenize(records, tokenizer, completion_only=False).examples
    assert chat.labels == chat.input_ids
    assert raw.labels == raw.input_ids


def test_template_that_rewrites_earlier_turns_learns_the_last_one():
    # As reasoning models do: of past assistant turns only the first letter stays.
    tokenizer = tiny_tokenizer(
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + ':' }}"
        "{{ m['content'] if loop.last or m['role'] == 'user' else m['content'][0] }}"
        "{{ '<|im_end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant:' }}{% endif %}"
    )
    result = tokenize([MessagesRecord("a", TALK, place="t.jsonl:7")], tokenizer)
    (example,) = result.examples
    assert targets(example, tokenizer) == "bye<|im_end|>"
    (found,) = result.findings
    assert (found.reason, found.amount) == (UNLEARNED_TURNS, "1 of 2 turns (50 %)")
    assert found.where == "first: t.jsonl:7"


def test_text_learns_all_and_ends_with_eos(tokenizer):
    (example,) = tokenize([TextRecord("a", "abc")], tokenizer).examples
    assert example.labels == example.input_ids
    assert tokenizer.decode(example.input_ids) == "abc<|im_end|>"


def test_prompt_and_completion_texts_are_joined_as_they_are(tokenizer):
    (example,) = tokenize([CompletionRecord("a", "2+2=", "4")], tokenizer).examples
    assert tokenizer.decode(example.input_ids) == "2+2=4<|im_end|>"
    assert targets(example, tokenizer) == "4<|im_end|>"


def test_cut_text_keeps_an_eos_that_is_no_target(tokenizer):
    result = tokenize(
        [TextRecord("a", "x" * 20), TextRecord("b", "y" * 9)], tokenizer, max_length=10
    )
    cut, whole = result.examples
    assert result.findings.count(CUT) == 1
    assert cut.input_ids == [*tokenizer("x" * 9)["input_ids"], tokenizer.eos_token_id]
    assert cut.labels == [*cut.input_ids[:-1], IGNORED]
    assert whole.labels == whole.input_ids
    assert whole.length == 10


def test_records_without_a_target_are_dropped_and_counted(tokenizer):
    records = [
        CompletionRecord("prompt fills it", "p" * 30, "answer"),
        CompletionRecord("no answer", "p", ""),
        TextRecord("empty", ""),
        MessagesRecord("no assistant", TALK[:1]),
        CompletionRecord("fine", "p", "a"),
    ]
    result = tokenize(records, tokenizer, max_length=16)
    assert [example.id for example in result.examples] == ["fine"]
    assert result.findings.count(NO_TARGET) == 4


def test_eos_of_the_tokenizer_is_not_doubled():
    from tokenizers.processors import TemplateProcessing

    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|im_start|> $A <|im_end|>",
        special_tokens=[
            (mark, tokenizer.convert_tokens_to_ids(mark)) for mark in ("<|im_start|>", "<|im_end|>")
        ],
    )
    (example,) = tokenize([TextRecord("a", "abc")], tokenizer).examples
    assert tokenizer.decode(example.input_ids) == "<|im_start|>abc<|im_end|>"
    assert targets(example, tokenizer) == "abc<|im_end|>"


def test_pairs_end_with_eos_however_long(tokenizer):
    record = PairRecord("a", "anchor", "p" * 50, ("n", "m", "o"), label=5)
    result = tokenize([record], tokenizer, max_length=12, instruction="Q: ", hard_negatives=2)
    (pair,) = result.examples
    assert isinstance(pair, PairExample)
    assert tokenizer.decode(pair.anchor) == "Q: anchor<|im_end|>"
    assert tokenizer.decode(pair.positive) == "p" * 11 + "<|im_end|>"
    assert [tokenizer.decode(ids) for ids in pair.negatives] == ["n<|im_end|>", "m<|im_end|>"]
    assert (pair.label, result.findings.count(CUT), pair.length) == (5, 1, 10 + 12 + 2 + 2)


@pytest.mark.parametrize(
    ("instruction", "max_length", "rest"),
    [
        ("", 500, "anchor<|im_end|>"),
        ("Q: ", 500, "anchor<|im_end|>"),
        ("Q: ", 5, "a<|im_end|>"),
    ],
)
def test_the_instruction_of_an_anchor_is_told_apart(tokenizer, instruction, max_length, rest):
    record = PairRecord("a", "anchor", "p", (), label=None)
    result = tokenize([record], tokenizer, max_length=max_length, instruction=instruction)
    (pair,) = result.examples
    assert tokenizer.decode(pair.anchor[pair.prompt :]) == rest


def test_pairs_with_an_empty_side_are_dropped(tokenizer):
    records = [PairRecord("a", " ", "x"), PairRecord("b", "x", ""), PairRecord("c", "x", "y")]
    result = tokenize(records, tokenizer)
    assert [pair.id for pair in result.examples] == ["c"]
    (found,) = result.findings
    assert (found.reason, found.count, found.detail) == (EMPTY_PAIR, 2, "empty anchor")


def test_order_and_progress_over_chunks(tokenizer):
    records = [TextRecord(str(number), "ab") for number in range(CHUNK + 3)]
    seen = []
    examples = tokenize_records(
        *(records, tokenizer, TokenizeOptions(8), Findings()),
        lambda done, total: seen.append((done, total)),
    )
    assert [example.id for example in examples] == [record.id for record in records]
    assert seen == [(CHUNK, CHUNK + 3), (CHUNK + 3, CHUNK + 3)]


def test_messages_without_a_template_are_refused():
    with pytest.raises(DataError, match=r"^a: messages need a chat template.*instruct model"):
        tokenize([MessagesRecord("a", TALK)], tiny_tokenizer(chat_template=None))


STRICT = (
    "{% if messages[0].content == 'no' %}{{ raise_exception('roles must alternate') }}{% endif %}"
    + CHATML
)


def test_a_conversation_the_template_rejects_is_left_out_and_named():
    refused = MessagesRecord("b", ({"role": "user", "content": "no"}, *TALK[1:]), place="d.jsonl:2")
    result = tokenize([MessagesRecord("a", TALK), refused], tiny_tokenizer(STRICT))
    assert [one.id for one in result.examples] == ["a"]
    (found,) = [one for one in result.findings if one.reason is REJECTED_RECORDS]
    assert (found.count, found.place) == (1, "d.jsonl:2")
    assert "roles must alternate; correct the roles" in found.detail
    assert found.needs_consent(())


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{% if messages %}", "syntax error in line 1"),
        ("{{ messages | random }}", "chooses at random"),
    ],
)
def test_a_template_with_a_fault_of_its_own_is_refused_without_blaming_a_record(template, says):
    with pytest.raises(DataError, match=f"^the chat template .*{says}") as refused:
        tokenize([MessagesRecord("a", TALK)], tiny_tokenizer(template))
    assert "roles" not in str(refused.value)


@pytest.mark.parametrize("template", ["{{ messages[0].thought.text }}", "{{ 1 / 0 }}"])
def test_a_template_that_fails_is_not_taken_for_one_that_rejects_the_roles(template):
    result = tokenize([MessagesRecord("a", TALK)], tiny_tokenizer(template))
    (found,) = [one for one in result.findings if one.reason is REJECTED_RECORDS]
    assert "correct the template" in found.detail
    assert "roles" not in found.detail


def test_a_text_longer_than_the_model_reads_is_cut_without_a_warning(caplog, monkeypatch):
    tokenizer = tiny_tokenizer()
    tokenizer.model_max_length = 16
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    result = tokenize([TextRecord("a", "x" * 99)], tokenizer, max_length=12)
    assert result.examples[0].length == 12
    assert not caplog.records


@pytest.mark.parametrize(
    "record",
    [
        TextRecord("b", "half \ud83d", place="d.jsonl:7"),
        MessagesRecord(
            "b", (*TALK[:3], {"role": "assistant", "content": "\ud83d"}), place="d.jsonl:7"
        ),
        PairRecord("b", "anchor", "\udc80", place="d.jsonl:7"),
    ],
)
def test_a_text_that_the_tokenizer_refuses_is_left_out_and_named_by_its_place(tokenizer, record):
    good = PairRecord("a", "q", "p") if isinstance(record, PairRecord) else TextRecord("a", "good")
    result = tokenize([good, record, good], tokenizer)
    assert [one.id for one in result.examples] == ["a", "a"]
    (found,) = [one for one in result.findings if one.reason is REJECTED_RECORDS]
    assert (found.count, found.place) == (1, "d.jsonl:7")
    assert "surrogate" in found.detail


def test_many_eos_tokens_at_the_end_are_found_in_linear_time(tokenizer):
    text = tokenizer.eos_token * 200_000
    (example,) = tokenize([TextRecord("a", "good" + text)], tokenizer).examples
    assert example.length == len("good") + 1


def test_a_record_without_targets_says_what_it_lacks(tokenizer):
    call = {"type": "function", "function": {"name": "dew", "arguments": {}}}
    asked = {"role": "user", "content": "a?"}
    called = {"role": "assistant", "content": "", "tool_calls": [call]}
    for turns, lacks in (
        ((asked,), "no message has the role assistant"),
        ((asked, called), "the chat template does not write its tool calls or its reasoning"),
    ):
        result = tokenize([MessagesRecord("a", turns)], tokenizer)
        details = [one.detail for one in result.findings if one.reason is NO_TARGET]
        assert details == [f"the record has no text to learn: {lacks}"]


def test_a_pair_whose_anchor_is_cut_away_behind_the_instruction_is_dropped(tokenizer):
    pairs = [PairRecord("a", "kiwi", "fruit"), PairRecord("b", "fig", "fruit")]
    result = tokenize(pairs, tokenizer, instruction="x" * 20, max_length=16)
    assert result.examples == []
    assert result.findings.count(NO_TARGET) == result.findings.count(CUT) == 2
    (one, _) = tokenize(pairs, tokenizer, instruction="x" * 10, max_length=16).examples
    assert (one.prompt, one.length) == (10, 15 + 6)


def test_a_record_without_an_answer_says_that_nothing_was_cut(tokenizer):
    for completion_only in (True, False):
        records = [MessagesRecord("empty", (), place="d.jsonl:1"), MessagesRecord("fine", TALK)]
        result = tokenize(records, tokenizer, completion_only=completion_only)
        assert [example.id for example in result.examples] == ["fine"]
        (found,) = (one for one in result.findings if one.reason is NO_TARGET)
        assert (found.count, found.detail) == (1, "the record has no text to learn")
    cut = tokenize([CompletionRecord("a", "p" * 30, "answer")], tokenizer, max_length=16)
    assert [one.detail for one in cut.findings if one.reason is NO_TARGET] == [""]


@pytest.mark.parametrize("text", ["word ", "x", "\u00e9\u4e2d ", "<|im_end|>"])
@pytest.mark.parametrize("kind", ["text", "chat", "pair"])
def test_the_beginning_of_a_very_long_text_is_learned_as_that_of_the_whole(
    tokenizer, monkeypatch, text, kind
):
    long = text * 4_000

    def made():
        record = {
            "text": TextRecord("a", long),
            "chat": MessagesRecord("a", (*TALK[:1], {"role": "assistant", "content": long})),
            "pair": PairRecord("a", long, "p"),
        }[kind]
        return tokenize([record], tokenizer, max_length=24)

    whole = made()
    monkeypatch.setattr(encoding, "_LONG_TEXT", 1_000)
    monkeypatch.setattr(encoding, "_LONGEST_TOKEN", 2)
    monkeypatch.setattr(encoding, "_AT_ONCE", 1_500)
    short = made()
    assert short.examples == whole.examples
    assert [(one.reason, one.count) for one in short.findings] == [
        (one.reason, one.count) for one in whole.findings
    ]


def test_texts_that_end_with_several_eos_are_counted(tokenizer):
    eos = tokenizer.eos_token
    records = [TextRecord("a", "x"), TextRecord("b", f"x{eos}"), TextRecord("c", f"x{eos}{eos}")]
    result = tokenize(records, tokenizer)
    assert result.findings.count(SEVERAL_EOS) == 1


def test_negatives_beyond_those_used_are_counted(tokenizer):
    pairs = [PairRecord("a", "q", "p", ("x", "y", "z")), PairRecord("b", "r", "s", ("x",))]
    result = tokenize(pairs, tokenizer, hard_negatives=1)
    (found,) = [one for one in result.findings if one.reason is SURPLUS_NEGATIVES]
    assert (found.count, found.detail) == (1, "3 negatives, of which 1 are used")
    without = tokenize(pairs, tokenizer, hard_negatives=0)
    assert without.findings.count(SURPLUS_NEGATIVES) == 0
