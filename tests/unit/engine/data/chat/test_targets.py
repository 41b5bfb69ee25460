"""Which tokens of a conversation are learned, with many kinds of chat template."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest
from tokenizers import AddedToken

from fttui.engine.config import data_reasons as reasons
from fttui.engine.data.findings import Findings
from fttui.engine.data.records.formats import CompletionRecord, MessagesRecord
from fttui.engine.data.tokens.examples import IGNORED
from fttui.engine.data.tokens.tokenize import TokenizeOptions, tokenize_records
from tests.support.tokenizer import CHATML, tiny_tokenizer

END = "<|im_end|>"
HEAD = "<|im_start|>"


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str | None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


THREE = (user("a?"), assistant("one"), user("b?"), assistant("two"), user("c?"), assistant("three"))
CALL = {"type": "function", "function": {"name": "area", "arguments": {"of": "disc"}}}
TOOL = {"type": "function", "function": {"name": "area", "parameters": {"type": "object"}}}
CALLING = (
    user("a?"),
    assistant(None, tool_calls=[CALL]),
    {"role": "tool", "content": "3.14"},
    assistant("done"),
)


def learned(
    template: str,
    turns: tuple[dict[str, Any], ...] = THREE,
    *,
    tokens: tuple[str, ...] = (),
    tools: tuple[dict[str, Any], ...] = (),
    **options: Any,
) -> tuple[list[str], Findings]:
    """Return the runs of targets as text, and the findings."""
    tokenizer = tiny_tokenizer(template)
    tokenizer.add_tokens([AddedToken(token, special=True) for token in tokens])
    findings = Findings()
    settings = TokenizeOptions(**{"max_length": 4000, **options})
    record = MessagesRecord("a", turns, tools=tools, place="t.jsonl:3")
    examples = tokenize_records([record], tokenizer, settings, findings, lambda *_: None)
    labels = examples[0].labels if examples else []  # type: ignore[union-attr]  # text
    runs = groupby(labels, key=lambda label: label != IGNORED)
    return [tokenizer.decode(list(run)) for wanted, run in runs if wanted], findings


def chatml(assistant_turn: str, opener: str = HEAD + "assistant\\n", tail: str = "") -> str:
    """A ChatML template whose assistant turns are written by an expression."""
    return (
        "{%- for m in messages -%}{%- if m.role == 'assistant' -%}"
        f"{assistant_turn}"
        "{%- else -%}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' -}}"
        "{%- endif -%}{%- endfor -%}"
        f"{{%- if add_generation_prompt -%}}{{{{- '{opener}' -}}}}{{%- endif -%}}{tail}"
    )


PLAIN = "{{- '<|im_start|>assistant\\n' + (m.content or '') + '<|im_end|>\\n' -}}"
LAST_THINKS = (
    "{{- '<|im_start|>assistant\\n' + ('<think>\\n\\n</think>\\n\\n' if loop.last else '')"
    " + m.content + '<|im_end|>\\n' -}}"
)
OTHER_LAST_MARK = (
    "{{- '<|im_start|>assistant\\n' + m.content + ('<|done|>' if loop.last else '<|im_end|>') -}}"
)
INST = (
    "{%- for m in messages -%}{%- if m.role == 'user' -%}{{- '[INST] ' + m.content + ' [/INST]' -}}"
    "{%- else -%}{{- ' ' + m.content + '</s>' -}}{%- endif -%}{%- endfor -%}"
)
ONLY_BETWEEN = (
    "{%- for m in messages -%}{{- m.role + ': ' + m.content -}}"
    "{%- if not loop.last -%}{{- '<|sep|>' -}}{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|sep|>assistant: ' -}}{%- endif -%}"
)
GENERATION = chatml(
    "{{- '<|im_start|>assistant\\n' -}}{% generation %}{{- m.content + '<|im_end|>' -}}"
    "{% endgeneration %}{{- '\\n' -}}",
    opener="<|im_start|>assistant\\n<think>",
)
GENERATION_WITH_HEADER = chatml(
    "{% generation %}{{- '<|im_start|>assistant\\n' + m.content + '<|im_end|>\\n' -}}"
    "{% endgeneration %}"
)
GENERATION_WITHOUT_END = chatml(
    "{{- '<|im_start|>assistant\\n' -}}{% generation %}{{- m.content -}}{% endgeneration %}"
    "{{- '<|im_end|>\\n' -}}"
)
WORDED = (
    "{%- for m in messages -%}{{- '### ' + m.role + ':\\n' + m.content + '\\n@@@\\n' -}}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{- '### assistant:\\n' -}}{%- endif -%}"
)
CASES: dict[str, tuple[str, list[str]]] = {
    "plain": (CHATML, [f"{w}{END}" for w in ("one", "two", "three")]),
    "the generation prompt opens a think block": (
        chatml(PLAIN, opener=HEAD + "assistant\\n<think>\\n"),
        [f"{w}{END}" for w in ("one", "two", "three")],
    ),
    "the generation prompt opens and closes a think block": (
        chatml(PLAIN, opener=HEAD + "assistant\\n<think>\\n\\n</think>\\n\\n"),
        [f"{w}{END}" for w in ("one", "two", "three")],
    ),
    "the history has a closed think block, the generation prompt an open one": (
        chatml(
            "{{- '<|im_start|>assistant\\n</think>' + m.content + '<|im_end|>\\n' -}}",
            opener=HEAD + "assistant\\n<think>\\n",
        ),
        [f"</think>{w}{END}" for w in ("one", "two", "three")],
    ),
    "only the last turn has an empty think block": (
        chatml(LAST_THINKS),
        [f"one{END}", f"two{END}", f"<think>\n\n</think>\n\nthree{END}"],
    ),
    "another end mark at the end": (
        chatml(OTHER_LAST_MARK),
        [f"one{END}", f"two{END}", "three<|done|>"],
    ),
    "a second end mark once at the end": (
        chatml(PLAIN, tail="{%- if not add_generation_prompt -%}{{- '<|done|>' -}}{%- endif -%}"),
        [f"one{END}", f"two{END}", f"three{END}"],
    ),
    "an opener always at the end": (
        chatml(PLAIN, tail="{{- '<|im_start|>assistant\\n' -}}", opener=""),
        [f"{w}{END}" for w in ("one", "two", "three")],
    ),
    "no header and no generation prompt": (INST, ["one</s>", "two</s>", "three</s>"]),
    "end marks only between turns": (ONLY_BETWEEN, ["one<|sep|>", "two<|sep|>", "three"]),
    "the template marks its targets": (GENERATION, [f"{w}{END}" for w in ("one", "two", "three")]),
    "the template marks headers as well": (
        GENERATION_WITH_HEADER,
        [f"{w}{END}" for w in ("one", "two", "three")],
    ),
    "the template leaves its end marks unmarked": (
        GENERATION_WITHOUT_END,
        [f"{w}{END}" for w in ("one", "two", "three")],
    ),
    "an end mark that is no token": (WORDED, [f"{w}\n@@@" for w in ("one", "two", "three")]),
    "content as a list of parts": (
        "{%- for m in messages -%}{{- '<|im_start|>' + m.role + '\\n' -}}{%- for p in m.content -%}"
        "{%- if p.type == 'text' -%}{{- p.text -}}{%- endif -%}{%- endfor -%}"
        "{{- '<|im_end|>\\n' -}}{%- endfor -%}",
        [f"{w}{END}" for w in ("one", "two", "three")],
    ),
}


@pytest.mark.parametrize("kind", CASES)
def test_every_turn_is_learned_with_its_end_mark_and_nothing_else(kind: str) -> None:
    template, expected = CASES[kind]
    runs, findings = learned(template, tokens=("</s>", "<|done|>", "<|sep|>", "[INST]", "[/INST]"))
    assert [run.strip() for run in runs] == expected
    assert findings.count(reasons.UNLEARNED_TURNS) == 0


def test_a_last_turn_without_an_end_mark_is_counted() -> None:
    _, findings = learned(ONLY_BETWEEN, tokens=("<|sep|>",))
    (found,) = findings
    assert (found.reason, found.amount) == (reasons.NO_END_MARK, "1 of 3 turns (33 %)")
    assert found.place == "t.jsonl:3"


@pytest.mark.parametrize("text", ["user", "assistant", "e", "\n  x = 1\n", "<|im_end", "a?", "[x]"])
def test_contents_that_also_occur_elsewhere_are_found(text: str) -> None:
    turns = (user(text), assistant(text), user(f"{text}{text}"), assistant(text))
    assert learned(CHATML, turns)[0] == [f"{text}{END}"] * 2


def test_indentation_is_learned_whatever_the_offsets_leave_out() -> None:
    from tokenizers.processors import ByteLevel

    text = "    if x:\n        y = 1\n\n\treturn"
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.post_processor = ByteLevel(trim_offsets=True)
    record = MessagesRecord("a", (user("  a  \n"), assistant(text), user("b"), assistant(" \n z ")))
    (example,) = tokenize_records(
        [record], tokenizer, TokenizeOptions(4000), Findings(), lambda *_: None
    )
    labels = example.labels  # type: ignore[union-attr]  # text
    runs = groupby(labels, key=lambda label: label != IGNORED)
    found = [tokenizer.decode(list(run)) for wanted, run in runs if wanted]
    assert found == [f"{text}{END}", f" \n z {END}"]


def test_a_token_across_the_edge_of_a_completion_is_learned() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["=4"])
    record = CompletionRecord("a", "2+2=", "4!")
    (example,) = tokenize_records(
        [record], tokenizer, TokenizeOptions(99), Findings(), lambda *_: None
    )
    labels = [one for one in example.labels if one != IGNORED]  # type: ignore[union-attr]  # text
    assert tokenizer.decode(labels) == f"=4!{END}"


def test_a_bos_in_the_text_is_not_doubled() -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer = tiny_tokenizer()
    tokenizer.bos_token = HEAD
    bos = tokenizer.convert_tokens_to_ids(HEAD)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{HEAD} $A", special_tokens=[(HEAD, bos)]
    )
    records = [CompletionRecord("a", f"{HEAD}hi ", "yo"), CompletionRecord("b", "hi ", "yo")]
    for example in tokenize_records(
        records, tokenizer, TokenizeOptions(99), Findings(), lambda *_: None
    ):
        assert tokenizer.decode(example.input_ids) == f"{HEAD}hi yo{END}"  # type: ignore[union-attr]  # text
        kept = [one for one in example.labels if one != IGNORED]  # type: ignore[union-attr]
        assert tokenizer.decode(kept) == f"yo{END}"


def test_a_conversation_that_the_assistant_begins_has_no_header_as_target() -> None:
    template = "{{- '<|im_start|>system\\nBe kind.<|im_end|>\\n' -}}" + CHATML
    turns = (assistant("hello"), user("a?"), assistant("one"))
    assert learned(template, turns)[0] == [f"hello{END}", f"one{END}"]


@pytest.mark.parametrize(
    ("train_on", "expected"),
    [
        ("all", ["one", "two", "three"]),
        ("last", ["three"]),
        ("user", ["a?", "b?", "c?"]),
    ],
)
def test_the_turns_to_learn_can_be_chosen(train_on: str, expected: list[str]) -> None:
    runs, findings = learned(CHATML, train_on=train_on)
    assert runs == [f"{word}{END}" for word in expected]
    assert findings.total("turns") == len(expected)


def test_turns_that_the_data_mask_are_counted_and_not_learned() -> None:
    turns = (user("a?"), assistant("bad", learned=False), user("b?"), assistant("good"))
    runs, findings = learned(CHATML, turns)
    assert runs == [f"good{END}"]
    (found,) = findings
    assert (found.reason, found.count, found.total) == (reasons.MASKED_TURNS, 1, 2)


REASONED = (user("a?"), assistant("one", reasoning_content="hm"), user("b?"), assistant("two"))
INLINE = (user("a?"), assistant("<think>\nhm\n</think>\n\none"), user("b?"), assistant("two"))
DROPS_OLD = chatml(
    "{%- set c = m.content.split('</think>')[-1].lstrip('\\n') if not loop.last else m.content -%}"
    "{{- '<|im_start|>assistant\\n' + c + '<|im_end|>\\n' -}}"
)


@pytest.mark.parametrize(("template", "turns"), [(CHATML, REASONED), (DROPS_OLD, INLINE)])
def test_reasoning_that_the_template_leaves_out_is_counted(template: str, turns: Any) -> None:
    runs, findings = learned(template, turns)
    assert runs == [f"one{END}", f"two{END}"]
    (found,) = findings
    assert (found.reason, found.count) == (reasons.REASONING_LEFT_OUT, 1)
    assert not found.needs_consent(())


def test_reasoning_is_kept_or_dropped_by_setting() -> None:
    keeping = chatml(PLAIN)
    assert learned(keeping, INLINE)[0][0] == f"<think>\nhm\n</think>\n\none{END}"
    runs, findings = learned(keeping, INLINE, reasoning="drop")
    assert runs == [f"one{END}", f"two{END}"]
    assert not list(findings)


WITH_CALLS = chatml(
    "{{- '<|im_start|>assistant\\n' + (m.content or '') -}}{%- for c in m.tool_calls or [] -%}"
    "{{- '<call>' + c.function.name + ' ' + (c.function.arguments | tojson) + '</call>' -}}"
    "{%- endfor -%}{{- '<|im_end|>\\n' -}}"
)
LISTING = "{%- for t in tools or [] -%}{{- t | tojson + '\\n' -}}{%- endfor -%}"


def test_tools_are_rendered_and_calls_learned() -> None:
    runs, findings = learned(LISTING + WITH_CALLS, CALLING, tools=(TOOL,))
    assert runs == [f'<call>area {{"of": "disc"}}</call>{END}', f"done{END}"]
    assert not list(findings)


def test_tools_and_calls_that_the_template_leaves_out_need_consent() -> None:
    runs, findings = learned(CHATML.replace("message['content']", "(message['content'] or '')"),
                             CALLING, tools=(TOOL,))  # fmt: skip
    assert runs == [f"done{END}"]
    found = {one.reason: one.count for one in findings}
    assert found == {reasons.CALLS_LEFT_OUT: 1, reasons.TOOLS_LEFT_OUT: 1}
    assert all(one.needs_consent(()) for one in findings)


def test_null_content_is_given_as_empty_text_where_the_template_needs_text() -> None:
    template = WITH_CALLS.replace("(m.content or '')", "m.content")
    assert learned(template, CALLING)[0][0] == f'<call>area {{"of": "disc"}}</call>{END}'


def test_arguments_are_given_as_json_where_the_template_writes_them_as_they_are() -> None:
    template = WITH_CALLS.replace(
        "(c.function.arguments | tojson)", "c.function.arguments | string"
    )
    assert learned(template, CALLING)[0][0] == f'<call>area {{"of": "disc"}}</call>{END}'


def test_a_call_whose_text_changes_with_its_result_is_found() -> None:
    template = WITH_CALLS.replace(
        "'</call>'", "(', id 7' if not loop.last or m != messages[-1] else '') + '</call>'"
    )
    runs, findings = learned(template, CALLING)
    assert runs == [f'<call>area {{"of": "disc"}}, id 7</call>{END}', f"done{END}"]
    assert not list(findings)


def test_a_template_that_goes_on_after_a_result_without_a_header() -> None:
    template = (
        "{%- set ns = namespace(open=false) -%}{%- for m in messages -%}"
        "{%- if m.role == 'assistant' -%}{%- if not ns.open -%}{{- '<|im_start|>assistant\\n' -}}"
        "{%- endif -%}{{- m.content or '' -}}{%- for c in m.tool_calls or [] -%}"
        "{{- '<call>' + c.function.name + '</call>' -}}{%- endfor -%}"
        "{%- if m.tool_calls -%}{%- set ns.open = true -%}{%- else -%}{{- '<|im_end|>' -}}"
        "{%- endif -%}{%- elif m.role == 'tool' -%}{{- '<result>' + m.content + '</result>' -}}"
        "{%- else -%}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' -}}"
        "{%- endif -%}{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
    )
    assert learned(template, CALLING)[0] == ["<call>area</call>", f"done{END}"]


SYSTEM_IN_LAST = (
    "{%- set s = messages[0].content if messages[0].role == 'system' else '' -%}"
    "{%- for m in messages -%}{%- if m.role == 'user' -%}"
    "{{- '[INST]' + (s + '\\n' if s and loop.index0 == messages|length - 2 else '') + m.content"
    " + '[/INST]' -}}"
    "{%- elif m.role == 'assistant' -%}{{- m.content + '</s>' -}}{%- endif -%}{%- endfor -%}"
)


def test_a_system_message_that_moves_to_the_last_user_turn_loses_no_target() -> None:
    turns = ({"role": "system", "content": "be kind"}, *THREE)
    runs, findings = learned(SYSTEM_IN_LAST, turns, tokens=("</s>", "[INST]", "[/INST]"))
    assert runs == ["one</s>", "two</s>", "three</s>"]
    assert not list(findings)


def test_messages_that_the_template_leaves_out_need_consent() -> None:
    template = chatml(PLAIN).replace("{%- else -%}", "{%- elif m.role == 'user' -%}")
    _, findings = learned(template, ({"role": "system", "content": "be kind"}, *THREE))
    (found,) = findings
    assert (found.reason, found.detail) == (reasons.MESSAGES_LEFT_OUT, "role system")
    assert found.needs_consent(())


def test_the_reason_of_the_template_is_named() -> None:
    template = "{{ raise_exception('only one system message') }}"
    _, (found,) = learned(template)
    assert (found.reason, found.place) == (reasons.REJECTED_RECORDS, "t.jsonl:3")
    assert found.detail.startswith("the chat template rejects this conversation: only one system")


VICUNA = (
    "{%- for m in messages -%}{%- if m.role == 'user' -%}{{- 'USER: ' + m.content + ' ' -}}"
    "{%- else -%}{{- 'ASSISTANT: ' + (m.content or '') -}}{%- for c in m.tool_calls or [] -%}"
    "{{- '<call>' + c.function.name + '</call>' -}}{%- endfor -%}{{- '</s>' -}}{%- endif -%}"
    "{%- endfor -%}"
)


@pytest.mark.parametrize("text", ["<think>\nhm\n</think>\nyo", "  def f():\n    pass\n", "yo", ""])
def test_a_template_without_a_generation_prompt_learns_whole_contents(text: str) -> None:
    turns = (user("a?"), assistant(text), user("b?"), assistant("two"))
    assert learned(VICUNA, turns, tokens=("</s>",))[0] == [f"{text}</s>", "two</s>"]


def test_a_template_without_a_generation_prompt_learns_how_a_call_begins() -> None:
    turns = (user("a?"), assistant(None, tool_calls=[CALL]), user("b?"), assistant("two"))
    assert learned(VICUNA, turns, tokens=("</s>",))[0] == ["<call>area</call></s>", "two</s>"]


def test_an_empty_turn_has_its_end_mark_as_target_and_no_header() -> None:
    template = chatml(PLAIN, opener=HEAD + "assistant\\n<think>\\n")
    turns = (user("a?"), assistant(""), user("b?"), assistant("two"))
    assert learned(template, turns)[0] == [END, f"two{END}"]


def test_a_template_that_goes_through_no_tools_is_given_an_empty_list() -> None:
    template = "{%- for t in tools -%}{{- t | tojson -}}{%- endfor -%}" + CHATML
    assert learned(template)[0] == [f"{word}{END}" for word in ("one", "two", "three")]


def test_a_call_directly_behind_a_prompt_is_learned_from_its_first_token() -> None:
    template = INST.replace(
        "{{- ' ' + m.content + '</s>' -}}",
        "{{- m.content or '' -}}{%- for c in m.tool_calls or [] -%}"
        "{{- '[CALLS][' + c.function.name + ']' -}}{%- endfor -%}{{- '</s>' -}}",
    )
    turns = (user("a?"), assistant(None, tool_calls=[CALL]), user("b?"), assistant("two"))
    marks = ("</s>", "[INST]", "[/INST]", "[CALLS]")
    assert learned(template, turns, tokens=marks)[0] == ["[CALLS][area]</s>", "two</s>"]


def test_a_conversation_is_rendered_alike_whatever_was_read_before_it() -> None:
    kind = (
        "('object' if c.function.arguments is mapping and messages[0].content != 'x' else "
        "(raise_exception('text only') if c.function.arguments is mapping else 'text'))"
    )
    template = WITH_CALLS.replace("(c.function.arguments | tojson)", kind)
    records = [
        MessagesRecord("odd", (user("x"), *CALLING[1:])),
        MessagesRecord("plain", CALLING),
    ]
    tokenizer, settings = tiny_tokenizer(template), TokenizeOptions(4000)
    both = tokenize_records(records, tokenizer, settings, Findings(), lambda *_: None)
    alone = tokenize_records(records[1:], tokenizer, settings, Findings(), lambda *_: None)
    assert both[1] == alone[0]
    assert "area object" in tokenizer.decode(alone[0].input_ids)  # type: ignore[union-attr]  # text


def test_an_eos_at_the_end_of_a_text_is_not_doubled_by_the_tokenizer() -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer = tiny_tokenizer()
    eos = tokenizer.convert_tokens_to_ids(END)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, eos)]
    )
    record = CompletionRecord("a", "hi ", f"yo{END}")
    (example,) = tokenize_records(
        [record], tokenizer, TokenizeOptions(99), Findings(), lambda *_: None
    )
    assert tokenizer.decode(example.input_ids) == f"hi yo{END}"  # type: ignore[union-attr]  # text
