"""How often a conversation is rendered to find its targets, and that the targets stay right."""

from __future__ import annotations

from typing import Any

import pytest

from fttui.engine.data.chat.conversations import ChatOptions, Conversation, ConversationReader
from fttui.engine.data.findings import Findings
from tests.support.tokenizer import CHATML, tiny_tokenizer

END = "<|im_end|>"
LONG = 40
NAMED = (
    "{%- for m in messages -%}{{- '<|im_start|>' + m.role + '\\n' -}}"
    "{%- if m.role == 'assistant' -%}{% generation %}{{- m.content + '<|im_end|>' -}}"
    "{% endgeneration %}{%- else -%}{{- m.content + '<|im_end|>' -}}{%- endif -%}{{- '\\n' -}}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
QUIET = (
    "{%- for m in messages -%}{{- '<|im_start|>' + m.role + '\\n' -}}"
    "{%- if m.role == 'assistant' and '/quiet' in messages[loop.index0 - 1].content -%}"
    "{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}"
    "{{- m.content + '<|im_end|>\\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}"
    "{%- if '/quiet' in messages[-1].content and asks -%}{{- '<think>\\n\\n</think>\\n\\n' -}}"
    "{%- endif -%}{%- endif -%}"
)
"""Writes an empty reasoning block before the answers to some questions."""


class CountingTokenizer:
    """A tokenizer that counts how often it formats a conversation."""

    def __init__(self, template: str) -> None:
        self._tokenizer = tiny_tokenizer(template)
        self.messages = 0
        """Messages that were formatted, each time."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        self.messages += len(conversation)
        return self._tokenizer.apply_chat_template(conversation, **options)


def exchanges(count: int, first: str = "why") -> list[dict[str, str]]:
    return [
        turn
        for number in range(count)
        for turn in (
            {"role": "user", "content": f"{first} {number}?"},
            {"role": "assistant", "content": f"answer {number}"},
        )
    ]


def targets(template: str, turns: list[dict[str, str]]) -> tuple[list[str], CountingTokenizer]:
    tokenizer = CountingTokenizer(template)
    marks = [END, "<|im_start|>"]
    reader = ConversationReader(tokenizer, marks, END, ChatOptions(), Findings())
    text, spans = reader.read(Conversation(tuple(turns), (), 0, "t.jsonl:1"))
    return [text[one.start : one.end] for one in spans], tokenizer


@pytest.mark.parametrize("template", [CHATML, NAMED])
def test_a_long_conversation_is_rendered_a_fixed_number_of_times(template: str) -> None:
    found, tokenizer = targets(template, exchanges(LONG))
    assert found == [f"answer {number}{END}" for number in range(LONG)]
    assert tokenizer.messages <= 4 * 2 * LONG


@pytest.mark.parametrize("asks", [True, False])
def test_a_request_that_differs_between_turns_is_rendered_for_each(asks: bool) -> None:
    turns = exchanges(6)
    for number in (2, 3):
        turns[2 * number]["content"] += " /quiet"
    block = "" if asks else "<think>\n\n</think>\n\n"
    expected = [f"{block * (n in (2, 3))}answer {n}{END}" for n in range(6)]
    assert targets(QUIET.replace("asks", str(asks).lower()), turns)[0] == expected


def test_targets_do_not_depend_on_what_was_read_before() -> None:
    template = QUIET.replace("asks", "true")
    reader = ConversationReader(tiny_tokenizer(template), [END], END, ChatOptions(), Findings())
    quiet, plain = exchanges(2, "so /quiet"), exchanges(2)
    made = [
        reader.read(Conversation(tuple(turns), (), 0, "t.jsonl:1"))
        for turns in (quiet, plain, quiet, plain)
    ]
    assert made[:2] == made[2:]
    alone = ConversationReader(tiny_tokenizer(template), [END], END, ChatOptions(), Findings())
    assert alone.read(Conversation(tuple(plain), (), 0, "t.jsonl:1")) == made[1]


def test_white_space_before_an_end_mark_is_learned_with_it() -> None:
    template = CHATML.replace("<|im_end|>", "\\n<|turn_end|>")
    found, _ = targets(template, exchanges(2))
    assert found == [f"answer {number}\n<|turn_end|>" for number in range(2)]


def test_null_content_keeps_the_targets_that_a_template_names() -> None:
    template = NAMED.replace("m.content +", "(m.content or m.reasoning_content) +")
    turns: list[Any] = exchanges(2)
    turns[1] = {"role": "assistant", "content": None, "reasoning_content": "because"}
    assert targets(template, turns)[0] == [f"because{END}", f"answer 1{END}"]
