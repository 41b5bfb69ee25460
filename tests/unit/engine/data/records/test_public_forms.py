"""Rows in the forms of public data sets, with contents of our own, and how they must be read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fttui.engine.data.records.formats import (
    CompletionRecord,
    MessagesRecord,
    PairRecord,
    PreferenceRecord,
    RatedRecord,
    TextRecord,
    label_number,
)
from fttui.engine.errors import DataError

from .test_reader import Reading

Q = {"role": "user", "content": "Which gate?"}
A = {"role": "assistant", "content": "Gate four."}
B = {"role": "assistant", "content": "No idea."}
S = {"role": "system", "content": "Be brief."}
ASK, TELL, WORSE, RULE = "Which gate?", "Gate four.", "No idea.", "Be brief."
HUMAN, GPT = {"from": "human", "value": ASK}, {"from": "gpt", "value": TELL}
SCHEMA = {"name": "tide", "description": "Height", "parameters": {"at": {"type": "str"}}}
TOOL = {"type": "function", "function": SCHEMA}
CALL = {"name": "tide", "arguments": {"at": "nine"}}
CALLED = {"role": "assistant", "tool_calls": [{"type": "function", "function": CALL}]}


def chat(*turns: dict[str, Any], tools: tuple[dict[str, Any], ...] = ()) -> MessagesRecord:
    return MessagesRecord("d:1", turns, tools=tools)


def preferred(*prompt: dict[str, Any], good: Any = A, bad: Any = B) -> PreferenceRecord:
    sides = (CompletionRecord("d:1", prompt, (one,)) for one in (good, bad))
    return PreferenceRecord("d:1", *sides)


def compared(prompt: str) -> PreferenceRecord:
    return PreferenceRecord("d:1", *(CompletionRecord("d:1", prompt, t) for t in (TELL, WORSE)))


def score(value: float) -> PairRecord:
    return PairRecord("d:1", ASK, TELL, score=value)


PAIR = PairRecord("d:1", ASK, TELL)
READ: dict[str, tuple[str, dict[str, Any], Any, dict[str, Any]]] = {
    # Instructions and conversations
    "Dolly": (
        "sft",
        {"instruction": ASK, "context": "", "response": TELL, "category": "open_qa"},
        chat(Q, A),
        {},
    ),
    "OpenOrca": (
        "sft",
        {"id": "d:1", "system_prompt": RULE, "question": ASK, "response": TELL},
        chat(S, Q, A),
        {},
    ),
    "SlimOrca": (
        "sft",
        {
            "conversations": [
                {"from": "system", "value": RULE, "weight": None},
                HUMAN | {"weight": 0.0},
                GPT | {"weight": 1.0},
            ]
        },
        chat(S, Q, A),
        {},
    ),
    "Capybara": (
        "sft",
        {"source": "x", "conversation": [{"input": ASK, "output": TELL}]},
        chat(Q, A),
        {},
    ),
    "Tulu": ("sft", {"id": "d:1", "messages": [Q, A], "source": "x"}, chat(Q, A), {}),
    "Magpie": (
        "sft",
        {"uuid": "u", "instruction": ASK, "response": TELL, "conversations": [HUMAN, GPT]},
        chat(Q, A),
        {},
    ),
    "MetaMath": (
        "sft",
        {"type": "x", "query": ASK, "original_question": "Gate?", "response": TELL},
        chat(Q, A),
        {},
    ),
    "NuminaMath": (
        "sft",
        {"source": "x", "problem": ASK, "solution": TELL, "messages": [Q, A]},
        chat(Q, A),
        {},
    ),
    "GSM8K": ("sft", {"question": ASK, "answer": TELL}, chat(Q, A), {}),
    "WildChat": (
        "sft",
        {
            "conversation_hash": "h",
            "turn": 1,
            "conversation": [Q | {"language": None, "redacted": None}, A | {"toxic": None}],
        },
        chat(Q, A),
        {},
    ),
    "prompt as messages, answer as text": (
        "sft",
        {"input": [S, Q], "output": TELL, "category": "x"},
        chat(S, Q, A),
        {},
    ),
    "conversations as JSON text": (
        "sft",
        {"system": RULE, "conversations": json.dumps([HUMAN, GPT]), "tools": "[]"},
        chat(S, Q, A),
        {},
    ),
    "FineWeb": ("sft", {"text": "t", "id": "d:1", "url": "u"}, TextRecord("d:1", "t"), {}),
    # Tools
    "xLAM": (
        "sft",
        {
            "id": "d:1",
            "query": ASK,
            "answers": json.dumps([CALL]),
            "tools": json.dumps([SCHEMA]),
        },
        chat(Q, CALLED, tools=(TOOL,)),
        {},
    ),
    "Hermes function calling": (
        "sft",
        {
            "id": "d:1",
            "conversations": [{"from": "system", "value": RULE}, HUMAN, GPT],
            "tools": json.dumps([TOOL]),
            "category": "x",
        },
        chat(S, Q, A, tools=(TOOL,)),
        {},
    ),
    "ToolACE": (
        "sft",
        {
            "system": RULE,
            "conversations": [{"from": "user", "value": ASK}, {"from": "assistant", "value": TELL}],
        },
        chat(S, Q, A),
        {},
    ),
    "Glaive as conversations": (
        "sft",
        {
            "conversations": [
                HUMAN,
                {"from": "function_call", "value": json.dumps(CALL)},
                {"from": "observation", "value": "2 m"},
                GPT,
            ],
            "tools": json.dumps([SCHEMA]),
        },
        chat(Q, CALLED, {"role": "tool", "content": "2 m"}, A, tools=(TOOL,)),
        {},
    ),
    # Preferences and ratings
    "UltraFeedback binarized": (
        "dpo",
        {
            "prompt": ASK,
            "prompt_id": "p",
            "chosen": [Q, A],
            "rejected": [Q, B],
            "messages": [Q, A],
            "score_chosen": 8.0,
            "score_rejected": 4.0,
        },
        preferred(Q),
        {},
    ),
    "DPO mix": (
        "dpo",
        {"dataset": "x", "chosen": [Q, A], "rejected": [Q, B], "chosen_rating": 5.0},
        preferred(Q),
        {},
    ),
    "Capybara preferences": (
        "dpo",
        {"source": "x", "chosen": [Q, A, Q, A], "rejected": [Q, A, Q, B], "new_generations": None},
        preferred(Q, A, Q),
        {},
    ),
    "Orca pairs": (
        "dpo",
        {"system": RULE, "question": ASK, "chosen": TELL, "rejected": WORSE},
        preferred(S, Q),
        {},
    ),
    "HH-RLHF": (
        "dpo",
        {
            "chosen": f"\n\nHuman: {ASK}\n\nAssistant: {TELL}",
            "rejected": f"\n\nHuman: {ASK}\n\nAssistant: {WORSE}",
        },
        preferred(Q),
        {},
    ),
    "SafeRLHF": (
        "dpo",
        {
            "prompt": ASK,
            "response_0": WORSE,
            "response_1": TELL,
            "better_response_id": 1,
            "safer_response_id": 0,
        },
        compared(ASK),
        {},
    ),
    "HelpSteer3": (
        "dpo",
        {
            "domain": "general",
            "context": [Q],
            "response1": TELL,
            "response2": WORSE,
            "overall_preference": -2,
        },
        preferred(Q),
        {},
    ),
    "Arena": (
        "dpo",
        {
            "model_a": "m",
            "model_b": "n",
            "winner": "model_b",
            "conversation_a": [Q, B],
            "conversation_b": [Q, A],
        },
        preferred(Q),
        {},
    ),
    "LLaMA-Factory, ranked": (
        "dpo",
        {"instruction": ASK, "input": "", "chosen": TELL, "rejected": WORSE},
        preferred(Q),
        {},
    ),
    "LLaMA-Factory, ranked conversations": (
        "dpo",
        {
            "conversations": [HUMAN],
            "chosen": GPT,
            "rejected": {"from": "gpt", "value": WORSE},
        },
        preferred(Q),
        {},
    ),
    "LLaMA-Factory v1, ranked conversations": (
        "dpo",
        {"chosen_messages": [Q, A], "rejected_messages": [Q, B]},
        preferred(Q),
        {},
    ),
    "a conversation and its two ends": (
        "dpo",
        {"messages": [Q], "chosen_messages": [A], "rejected_messages": [B]},
        preferred(Q),
        {},
    ),
    "ms-swift": (
        "dpo",
        {"messages": [Q, A], "rejected_messages": [Q, B]},
        preferred(Q),
        {},
    ),
    "OpenAI": (
        "dpo",
        {
            "input": {"messages": [Q], "tools": [], "parallel_tool_calls": True},
            "preferred_output": [A],
            "non_preferred_output": [B],
        },
        preferred(Q),
        {},
    ),
    "KTO mix": (
        "kto",
        {"prompt": [Q], "completion": [A], "label": True},
        RatedRecord("d:1", CompletionRecord("d:1", (Q,), (A,)), True),
        {},
    ),
    "LLaMA-Factory, tagged": (
        "kto",
        {"conversations": [HUMAN, GPT], "kto_tag": False, "tools": "[]"},
        RatedRecord("d:1", CompletionRecord("d:1", (Q,), (A,)), False),
        {},
    ),
    "HelpSteer": (
        "kto",
        {"prompt": ASK, "response": TELL, "helpfulness": 4, "verbosity": 2},
        RatedRecord("d:1", CompletionRecord("d:1", (Q,), (A,)), True),
        {"columns": {"label": "helpfulness"}, "yes_labels": [3, 4]},
    ),
    # Pairs
    "FlagEmbedding": (
        "contrastive",
        {"query": ASK, "pos": [TELL], "neg": [WORSE, "Bread."], "pos_scores": [0.9]},
        PairRecord("d:1", ASK, TELL, (WORSE, "Bread.")),
        {},
    ),
    "MS MARCO": (
        "contrastive",
        {"query": ASK, "positive": TELL, "negative_1": WORSE, "negative_2": "Bread."},
        PairRecord("d:1", ASK, TELL, (WORSE, "Bread.")),
        {},
    ),
    "AllNLI triplets": (
        "contrastive",
        {"anchor": ASK, "positive": TELL, "negative": WORSE},
        PairRecord("d:1", ASK, TELL, (WORSE,)),
        {},
    ),
    "GooAQ": ("contrastive", {"question": ASK, "answer": TELL}, PAIR, {}),
    "STS-B": ("contrastive", {"sentence1": ASK, "sentence2": TELL, "score": 0.4}, score(0.4), {}),
    "STS-B of GLUE": (
        "contrastive",
        {"sentence1": ASK, "sentence2": TELL, "label": 3.8, "idx": 0},
        score(3.8),
        {},
    ),
    "SICK": (
        "contrastive",
        {"sentence_A": ASK, "sentence_B": TELL, "relatedness_score": 4.5},
        score(4.5),
        {},
    ),
    "QQP": (
        "contrastive",
        {"question1": ASK, "question2": TELL, "label": 1, "idx": 0},
        PAIR,
        {"label": "match"},
    ),
    "Quora": (
        "contrastive",
        {"id": "d:1", "qid1": 1, "question1": ASK, "question2": TELL, "is_duplicate": "1"},
        PAIR,
        {"label": "match"},
    ),
    "SNLI": (
        "contrastive",
        {"premise": ASK, "hypothesis": TELL, "label": 0},
        PAIR,
        {"label": "match", "yes_labels": [0]},
    ),
    "SNLI as published": (
        "contrastive",
        {"gold_label": "entailment", "sentence1": ASK, "sentence2": TELL, "pairID": "p"},
        PAIR,
        {"label": "match"},
    ),
    "classes of texts": (
        "contrastive",
        {"text1": ASK, "text2": TELL, "label": "travel"},
        PairRecord("d:1", ASK, TELL, label=label_number("travel")),
        {"label": "class"},
    ),
}


@pytest.mark.parametrize("name", READ)
def test_the_form_is_read(name: str) -> None:
    task, row, record, settings = READ[name]
    result = Reading(task, [row], **settings)
    assert result.records == [record]
    result.findings.require_consent([])


ASKED_ABOUT = {
    "SNLI": (
        "contrastive",
        {"premise": ASK, "hypothesis": TELL, "label": 2},
        r"data\.label: match",
    ),
    "QQP": (
        "contrastive",
        {"question1": ASK, "question2": TELL, "label": 0},
        r"data\.label: match",
    ),
    "IMDB": ("sft", {"text": "t", "label": 1}, r"data\.label: answer"),
    "HelpSteer": (
        "kto",
        {"prompt": ASK, "completion": TELL, "label": 3},
        r"data\.yes_labels",
    ),
    "oasst1": (
        "sft",
        {"message_id": "m", "parent_id": "p", "text": ASK, "role": "prompter"},
        "ignored-columns",
    ),
    "alpaca with texts": (
        "sft",
        {"instruction": ASK, "input": "", "output": TELL, "text": f"{ASK}\n{TELL}"},
        "ignored-columns",
    ),
    "FlagEmbedding with prompts": (
        "contrastive",
        {"query": ASK, "pos": [TELL], "neg": [WORSE], "prompt": "Find the passage."},
        "ignored-columns",
    ),
    "Glaive": ("sft", {"system": RULE, "chat": f"USER: {ASK} ASSISTANT: {TELL}"}, "data.columns"),
    "Nectar": (
        "dpo",
        {"prompt": ASK, "answers": [{"answer": TELL, "rank": 1.0}], "turns": 1},
        "data.columns",
    ),
    "SQuAD": (
        "sft",
        {"context": "c", "question": ASK, "answers": {"text": [TELL], "answer_start": [0]}},
        "data.columns",
    ),
    "a tie": (
        "dpo",
        {"conversation_a": [Q, A], "conversation_b": [Q, B], "winner": "tie"},
        "data.columns",
    ),
    "a comparison without a number": (
        "dpo",
        {"prompt": ASK, "response1": TELL, "response2": WORSE, "overall_preference": float("nan")},
        "data.columns",
    ),
}
"""Forms that can mean several things, or that no format holds, and the step that is named."""


@pytest.mark.parametrize("name", ASKED_ABOUT)
def test_the_form_is_refused_with_a_step(name: str) -> None:
    task, row, step = ASKED_ABOUT[name]
    with pytest.raises(DataError, match=step):
        Reading(task, [row]).findings.require_consent([])
