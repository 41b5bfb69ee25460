"""Named templates of other tools render what their formats say."""

from __future__ import annotations

from typing import Any

import pytest

from fttui.engine.config.foreign.templates import AXOLOTL, LLAMA_FACTORY

jinja2 = pytest.importorskip("jinja2", reason="comes with transformers")

TALK = [
    {"role": "user", "content": " U1\n"},
    {"role": "assistant", "content": "A'1"},
    {"role": "user", "content": "U2"},
    {"role": "assistant", "content": "A2"},
]
RULES = [{"role": "system", "content": "S"}]


def rendered(text: str, messages: list[dict[str, str]], **options: Any) -> str:
    def refuse(reason: str) -> None:
        raise ValueError(reason)

    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)  # as transformers has it
    tokens = {"bos_token": "<B>", "eos_token": "<E>", "raise_exception": refuse}
    return environment.from_string(text).render(messages=messages, **tokens, **options)


@pytest.mark.parametrize(
    ("text", "with_rules", "without"),
    [
        (
            LLAMA_FACTORY["mistral"],
            "<B>[INST] S\n\n U1\n[/INST] A'1<E>[INST] U2[/INST] A2<E>",
            "<B>[INST]  U1\n[/INST] A'1<E>[INST] U2[/INST] A2<E>",
        ),
        (
            LLAMA_FACTORY["llama2"],
            "<B>[INST] <<SYS>>\nS\n<</SYS>>\n\n U1\n [/INST]A'1<E><B>[INST] U2 [/INST]A2<E>",
            "<B>[INST]  U1\n [/INST]A'1<E><B>[INST] U2 [/INST]A2<E>",
        ),
        (
            LLAMA_FACTORY["deepseek3"],
            "<B>S<｜User｜> U1\n<｜Assistant｜>A'1<E><｜User｜>U2<｜Assistant｜>A2<E>",
            "<B><｜User｜> U1\n<｜Assistant｜>A'1<E><｜User｜>U2<｜Assistant｜>A2<E>",
        ),
        (
            LLAMA_FACTORY["zephyr"],
            "<|system|>\nS<E><|user|>\n U1\n<E><|assistant|>\nA'1<E><|user|>\nU2<E><|assistant|>\n"
            "A2<E>",
            "<|system|>\nYou are Zephyr, a helpful assistant.<E><|user|>\n U1\n<E><|assistant|>\n"
            "A'1<E><|user|>\nU2<E><|assistant|>\nA2<E>",
        ),
        (
            AXOLOTL["alpaca"],
            "<B>S\n\n### Instruction:\n U1\n\n\n### Response:\nA'1<E>\n\n### Instruction:\nU2\n\n"
            "### Response:\nA2<E>",
            "<B>### Instruction:\n U1\n\n\n### Response:\nA'1<E>\n\n### Instruction:\nU2\n\n"
            "### Response:\nA2<E>",
        ),
        (
            LLAMA_FACTORY["llama3"],
            "<B><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\n U1\n<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nA'1<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nU2<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nA2<|eot_id|>",
            "<B><|start_header_id|>user<|end_header_id|>\n\n U1\n<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nA'1<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nU2<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nA2<|eot_id|>",
        ),
    ],
    ids=["mistral", "llama2", "deepseek3", "zephyr", "alpaca", "llama3"],
)
def test_messages_stand_in_the_format_of_the_name(text: str, with_rules: str, without: str) -> None:
    assert rendered(text, RULES + TALK) == with_rules
    assert rendered(text, TALK) == without


TEXTS = {
    f"{tool}-{name}": text
    for tool, table in (("axolotl", AXOLOTL), ("lf", LLAMA_FACTORY))
    for name, text in table.items()
    if "{%" in text
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_asking_for_an_answer_is_what_stands_before_one(text: str) -> None:
    asked = rendered(text, RULES + TALK[:3], add_generation_prompt=True)
    whole = rendered(text, RULES + TALK)
    # Alpaca of axolotl writes the empty lines only between two messages.
    assert "".join(whole.split()).startswith("".join(asked.split()))
    assert all(one["content"].strip() in whole for one in RULES + TALK)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_role_is_written_or_refused(text: str) -> None:
    odd = [*TALK, {"role": "tool", "content": "result"}]
    if "raise_exception" in text:
        with pytest.raises(ValueError, match="tool"):
            rendered(text, odd)
    else:
        assert "tool" in rendered(text, odd)


def test_names_in_the_collection_of_trl_are_there() -> None:
    pytest.importorskip("trl")
    from fttui.engine.run.identity.model_content import configured_template

    assert all(configured_template(text) for text in AXOLOTL.values() if "{%" not in text)
