"""What a chat template leaves out of a conversation is counted by reason, whatever it is."""

from __future__ import annotations

import pytest

from fttui.engine.config import data_reasons as reasons
from tests.unit.engine.data.chat.test_targets import (
    CALL,
    CALLING,
    END,
    PLAIN,
    THREE,
    TOOL,
    assistant,
    chatml,
    learned,
    user,
)

SIZE = {"type": "function", "function": {"name": "size", "arguments": {"of": "ball"}}}
RESULT = {"role": "tool", "content": "3.14"}
TWO_CALLS = (user("a?"), assistant(None, tool_calls=[CALL, SIZE]), RESULT, assistant("done"))


def calls(written: str, of: str = "m.tool_calls or []") -> str:
    """A ChatML template that writes tool calls by an expression of `c`, a function."""
    return chatml(
        "{{- '<|im_start|>assistant\\n' + (m.content or '') -}}"
        f"{{%- for call in {of} -%}}{{%- set c = call.function -%}}{{{{- {written} -}}}}"
        "{%- endfor -%}{{- '<|im_end|>\\n' -}}"
    )


WHOLE_CALL = "'<call>' + c.name + (c.arguments | tojson) + '</call>'"


@pytest.mark.parametrize(
    ("template", "run"),
    [
        (calls(WHOLE_CALL, "(m.tool_calls or [])[:1]"), '<call>area{"of": "disc"}</call>'),
        (calls(WHOLE_CALL, "(m.tool_calls or [])[1:]"), '<call>size{"of": "ball"}</call>'),
        (calls("'<' + c.name + '>'"), "<area><size>"),
    ],
    ids=["only the first", "only the second", "no arguments"],
)
def test_a_template_that_writes_a_part_of_the_calls(template: str, run: str) -> None:
    runs, findings = learned(template, TWO_CALLS)
    assert runs == [f"{run}{END}", f"done{END}"]
    (found,) = findings
    assert (found.reason, found.count, found.total) == (reasons.CALLS_LEFT_OUT, 1, 4)
    assert found.needs_consent(())


def test_a_template_that_writes_a_part_of_the_content_parts() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    turns = (user("a?"), {"role": "assistant", "content": parts})
    first_part = "m.content if m.content is string else m.content[0].text"
    template = chatml("{{- '<|im_start|>assistant\\n' + (%s) + '<|im_end|>\\n' -}}" % first_part)  # noqa: UP031  # braces
    runs, findings = learned(template, turns)
    assert runs == [f"one{END}"]
    assert [one.reason for one in findings] == [reasons.MESSAGES_LEFT_OUT]


@pytest.mark.parametrize("left_out", ["user", "assistant"])
def test_text_that_vanishes_because_of_what_it_says_is_counted(left_out: str) -> None:
    secret = {
        "user": (user("#skip"), assistant("one")),
        "assistant": (user("a?"), assistant("#skip")),
    }
    template = (
        "{%- for m in messages -%}{{- '<|im_start|>' + m.role + '\\n'"
        " + ('' if m.content == '#skip' else m.content) + '<|im_end|>\\n' -}}{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
    )
    _, findings = learned(template, (*secret[left_out], user("b?"), assistant("two")))
    found = {one.reason: one.count for one in findings}
    lost = (reasons.MESSAGES_LEFT_OUT, reasons.UNLEARNED_TURNS)
    assert any(reason in found for reason in lost)


@pytest.mark.parametrize("text", ["a", "size"])
def test_text_that_is_read_as_a_list_of_parts_is_given_as_one(text: str) -> None:
    template = (
        "{%- for m in messages -%}{{- '<|im_start|>' + m.role + '\\n' -}}"
        "{%- if m.reasoning_content -%}{{- m.reasoning_content -}}{%- endif -%}"
        "{{- (m.content | map(attribute='text') | join('|')) + '<|im_end|>' -}}{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
    )
    parts = {"role": "assistant", "content": [{"type": "text", "text": "one"}]}
    turns = (user(text), assistant(text, reasoning_content="hm"), user("b?"), parts)
    runs, findings = learned(template, turns)
    assert runs == [f"hm{text}{END}", f"one{END}"]
    assert not list(findings)


def test_a_message_whose_ends_decide_how_it_is_written_is_found() -> None:
    template = chatml(
        "{%- if m.content.startswith('Sure') and m.content.endswith('.') -%}"
        "{{- '<|im_start|>assistant\\n' + m.content + '<|im_end|>\\n' -}}"
        "{%- else -%}{{- '<|im_start|>assistant\\n(' + m.content + ')<|im_end|>\\n' -}}"
        "{%- endif -%}"
    )
    turns = (user("a?"), assistant("Sure, one."), user("b?"), assistant("Sure, two."))
    runs, findings = learned(template, turns)
    assert runs == [f"Sure, one.{END}", f"Sure, two.{END}"]
    assert not list(findings)


DROPS_REASONING = chatml("{{- '<|im_start|>assistant\\n' + m.content + '<|im_end|>\\n' -}}")


@pytest.mark.parametrize("keeps", [True, False])
def test_reasoning_whose_tags_the_template_writes_itself_is_not_left_out(keeps: bool) -> None:
    template = chatml(
        "{%- set parts = m.content.split('</think>') -%}"
        "{%- set thought = parts[0].split('<think>')[-1].strip() -%}"
        + ("" if keeps else "{%- set thought = '' -%}")
        + "{{- '<|im_start|>assistant\\n<think>\\n' + thought + '\\n</think>\\n\\n'"
        " + parts[-1].strip() + '<|im_end|>\\n' -}}"
    )
    turns = (user("a?"), assistant("<think>\nhm so\n</think>\n\none"))
    _, findings = learned(template, turns)
    lost = [reasons.LAST_REASONING_LEFT_OUT]
    assert [one.reason for one in findings] == ([] if keeps else lost)


def test_reasoning_of_the_last_answer_needs_consent() -> None:
    turns = (
        user("a?"),
        assistant("one", reasoning_content="hm"),
        user("b?"),
        assistant("two", reasoning_content="so"),
    )
    _, findings = learned(DROPS_REASONING, turns)
    found = {one.reason: (one.count, one.total, one.needs_consent(())) for one in findings}
    assert found == {
        reasons.LAST_REASONING_LEFT_OUT: (1, 2, True),
        reasons.REASONING_LEFT_OUT: (1, 4, False),
    }
    assert not list(learned(DROPS_REASONING, turns, reasoning="drop")[1])


def test_reasoning_of_a_turn_that_is_not_learned_needs_no_consent() -> None:
    turns = (user("a?"), assistant("one", reasoning_content="hm", learned=False))
    _, findings = learned(DROPS_REASONING, turns)
    assert findings.count(reasons.LAST_REASONING_LEFT_OUT) == 0
    assert findings.count(reasons.REASONING_LEFT_OUT) == 1


def test_a_role_that_no_message_has_is_refused_with_the_roles_found() -> None:
    _, findings = learned(chatml(PLAIN), train_on="asistant")
    found = next(one for one in findings if one.reason is reasons.ROLE_NOT_FOUND)
    assert found.needs_consent(())
    assert (found.amount, found.detail) == ("1 of 1 records (100 %)", "roles user, assistant")
    assert "train_on" in found.line


@pytest.mark.parametrize("train_on", ["user", "all", "last"])
def test_a_role_that_messages_have_is_accepted(train_on: str) -> None:
    _, findings = learned(chatml(PLAIN), train_on=train_on)
    assert findings.count(reasons.ROLE_NOT_FOUND) == 0


def test_the_share_of_messages_left_out_refers_to_all_messages() -> None:
    template = chatml(PLAIN).replace("{%- else -%}", "{%- elif m.role == 'user' -%}")
    systems = ({"role": "system", "content": "be kind"}, {"role": "system", "content": "be brief"})
    _, findings = learned(template, (*systems, user("a?"), assistant("one")))
    (found,) = findings
    assert found.amount == "2 of 4 messages (50 %)"


ASCII_CALL = "'<call>' + c.name + (c.arguments | tojson(ensure_ascii=true)) + '</call>'"
NESTED_CALL = "(c.arguments | tojson(ensure_ascii=true)) | tojson(ensure_ascii=true)"
INDENTED_CALL = "c.name + (c.arguments | tojson(indent=2, sort_keys=true))"


@pytest.mark.parametrize(
    ("written", "run"),
    [
        (ASCII_CALL, '<call>area{"of": "d\\u00efsc"}</call>'),
        ("c.name + (%s)" % NESTED_CALL, 'area"{\\"of\\": \\"d\\\\u00efsc\\"}"'),  # noqa: UP031  # braces
        (INDENTED_CALL, 'area{\n  "of": "dïsc"\n}'),
        ("c.name + (c.arguments | string)", 'area{"of": "dïsc"}'),
    ],
    ids=["ascii", "json inside of json", "indented", "python"],
)
def test_arguments_are_found_however_they_are_escaped(written: str, run: str) -> None:
    call = {"type": "function", "function": {"name": "area", "arguments": {"of": "dïsc"}}}
    turns = (user("a?"), assistant("so", tool_calls=[call]), RESULT, assistant("done"))
    # A call that changes later cannot be found by comparing beginnings of the text.
    later = calls(written).replace(
        "'<|im_end|>\\n' -}}{%- else", "(' ' if loop.last else '') + '<|im_end|>\\n' -}}{%- else"
    )
    runs, findings = learned(later, turns)
    assert runs[0] == f"so{run}{END}"
    assert not list(findings)


def test_the_prompt_is_that_of_each_conversation_and_turn() -> None:
    from fttui.engine.data.findings import Findings
    from fttui.engine.data.records.formats import MessagesRecord
    from fttui.engine.data.tokens.examples import IGNORED
    from fttui.engine.data.tokens.tokenize import TokenizeOptions, tokenize_records
    from tests.support.tokenizer import tiny_tokenizer

    template = (
        "{%- set who = 'judge' if '#judge' in messages[0].content else 'assistant' -%}"
        "{%- for m in messages -%}{{- '<|im_start|>' + "
        "(who if m.role == 'assistant' else m.role) + ': ' + m.content + '<|im_end|>' -}}"
        "{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|im_start|>' + who + ': ' -}}"
        "{%- endif -%}"
    )
    records = [
        MessagesRecord("a", (user("a?"), assistant("one"), user("b?"), assistant("two"))),
        MessagesRecord("b", (user("#judge"), assistant("one"), user("b?"), assistant("two"))),
    ]
    tokenizer = tiny_tokenizer(template)
    for example in tokenize_records(
        records, tokenizer, TokenizeOptions(400), Findings(), lambda *_: None
    ):
        kept = [one for one in example.labels if one != IGNORED]  # type: ignore[union-attr]  # text
        assert tokenizer.decode(kept) == f"one{END}two{END}"


TAGS = {
    "seed": ("<seed:think>", "</seed:think>"),
    "kimi": ("◁think▷", "◁/think▷"),
    "reasoning": ("<reasoning>", "</reasoning>"),
    "mistral": ("[THINK]", "[/THINK]"),
    "command": ("<|START_THINKING|>", "<|END_THINKING|>"),
    "gemma": ("<|channel>thought\n", "<channel|>"),
    "harmony": (
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
    ),
}


@pytest.mark.parametrize("name", TAGS)
def test_reasoning_in_the_content_is_counted_where_a_template_strips_it(name: str) -> None:
    opens, closes = TAGS[name]
    stripped = "(m.content.split('%s')[-1] | trim)" % closes  # noqa: UP031  # braces
    template = chatml("{{- '<|im_start|>assistant\\n' + %s + '<|im_end|>\\n' -}}" % stripped)  # noqa: UP031  # braces
    turns = (user("a?"), assistant(f"{opens}hm{closes}one"), user("b?"), assistant("two"))
    runs, findings = learned(template, turns)
    assert runs == [f"one{END}", f"two{END}"]
    assert [one.reason for one in findings] == [reasons.REASONING_LEFT_OUT]


@pytest.mark.parametrize("name", TAGS)
def test_reasoning_in_the_content_is_dropped_by_setting(name: str) -> None:
    opens, closes = TAGS[name]
    turns = (user("a?"), assistant(f"{opens}\nhm\n{closes}\n\none"))
    assert learned(chatml(PLAIN), turns, reasoning="drop")[0] == [f"one{END}"]


INST_CALLS = (
    "{%- for m in messages -%}{%- if m.role == 'user' -%}{{- '[INST] ' + m.content + '[/INST]' -}}"
    "{%- elif m.role == 'tool' -%}{{- '[RESULT]' + m.content + '[/RESULT]' -}}"
    "{%- elif m.tool_calls -%}{{- '[CALLS] ' -}}{%- for call in m.tool_calls -%}"
    "{{- call.function | tojson -}}{%- endfor -%}{{- '</s>' -}}"
    "{%- else -%}{{- ' ' + m.content + '</s>' -}}{%- endif -%}{%- endfor -%}"
)


def test_a_call_is_learned_from_its_beginning_where_answers_begin_otherwise() -> None:
    marks = ("</s>", "[INST]", "[/INST]", "[CALLS]", "[RESULT]", "[/RESULT]")
    runs, findings = learned(INST_CALLS, CALLING, tokens=marks)
    assert runs[0] == '[CALLS] {"name": "area", "arguments": {"of": "disc"}}</s>'
    assert runs[1].strip() == "done</s>"
    assert not list(findings)


def test_a_call_is_learned_from_its_beginning_where_the_prompt_asks_for_an_answer() -> None:
    template = calls(WHOLE_CALL).replace(
        "{{- '<|im_start|>assistant\\n' -}}{%- endif",
        "{{- '<|im_start|>assistant\\n<|reply|>' -}}{%- endif",
    )
    runs, _ = learned(template, CALLING, tokens=("<|reply|>",))
    assert runs == [f'<call>area{{"of": "disc"}}</call>{END}', f"done{END}"]


TEXT_BEHIND_RESULT = (
    "{%- for m in messages -%}{%- if m.role == 'tool' -%}"
    "{%- elif m.role == 'assistant' -%}{{- '<|im_start|>assistant\\n' -}}"
    "{%- for call in m.tool_calls or [] -%}{{- '<call>' + call.function.name + ':' +"
    " call.function.arguments.of + '</call>' -}}"
    "{%- if not loop.last or not loop.nextitem -%}{%- set next = messages[loop.index0 + 2] -%}"
    "{%- if next is defined and next.role == 'tool' -%}"
    "{{- '<result>' + call.function.name + '=' + next.content + '</result>' -}}{%- endif -%}"
    "{%- endif -%}{%- endfor -%}{{- (m.content or '') + '<|im_end|>\\n' -}}"
    "{%- else -%}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' -}}{%- endif -%}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)


def test_text_behind_a_tool_result_is_learned_and_the_result_is_not() -> None:
    turns = (user("a?"), assistant("so", tool_calls=[CALL]), RESULT, user("b?"), assistant("two"))
    runs, findings = learned(TEXT_BEHIND_RESULT, turns, tokens=("</call>", "<result>", "</result>"))
    assert runs == ["<call>area:disc</call>", f"so{END}", f"two{END}"]
    assert not list(findings)


def test_the_name_of_a_function_in_its_result_is_not_learned() -> None:
    template = calls("'to=' + c.name + ' ' + (c.arguments | tojson) + '<|call|>'").replace(
        "{%- else -%}{{- '<|im_start|>'",
        "{%- elif m.role == 'tool' -%}{{- '<|im_start|>' + messages[loop.index0 - 1]"
        ".tool_calls[0].function.name + '\\n' + m.content + '<|im_end|>\\n' -}}"
        "{%- else -%}{{- '<|im_start|>'",
    )
    runs, _ = learned(template, CALLING, tokens=("<|call|>",))
    assert runs == [f'to=area {{"of": "disc"}}<|call|>{END}', f"done{END}"]


def test_tags_that_the_list_of_tools_explains_end_calls() -> None:
    listing = (
        "{{- 'Call with <call>NAME</call>.\\n' -}}{%- for t in tools or [] -%}{{- t | tojson -}}"
        "{%- endfor -%}"
    )
    runs, findings = learned(
        listing + calls(WHOLE_CALL).replace("<|im_start|>", "@"),
        CALLING,
        tools=(TOOL,),
        tokens=("<call>", "</call>"),
    )
    assert runs == [f'<call>area{{"of": "disc"}}</call>{END}', f"done{END}"]
    assert not list(findings)


def test_the_token_of_the_next_role_ends_a_turn_where_no_other_mark_does() -> None:
    template = (
        "{%- for m in messages -%}{{- '<|' + m.role + '|>' + m.content -}}{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}"
        "{%- elif messages[-1].role == 'assistant' -%}{{- '<|user|>' -}}{%- endif -%}"
    )
    runs, findings = learned(template, THREE, tokens=("<|user|>", "<|assistant|>"))
    assert runs == ["one<|user|>", "two<|user|>", "three<|user|>"]
    assert not list(findings)


def test_the_token_that_always_asks_for_an_answer_ends_no_turn() -> None:
    template = (
        "{%- for m in messages -%}{{- '<|' + m.role + '|>' + m.content -}}{%- endfor -%}"
        "{{- '<|assistant|>' -}}"
    )
    runs, findings = learned(template, THREE, tokens=("<|user|>", "<|assistant|>"))
    assert runs == ["one", "two", "three"]
    assert findings.count(reasons.NO_END_MARK) == 3


@pytest.mark.parametrize(
    ("end", "line"), [("", "\n"), ("\n@@@", "\n"), (" <step>", "\n"), (" <step>", " ")]
)
def test_words_that_always_ask_for_an_answer_end_no_turn(end: str, line: str) -> None:
    template = (
        "{%- for m in messages -%}{{- '### ' + m.role + ':\\n' + m.content + 'END' -}}"
        "{%- endfor -%}{{- '### assistant:\\n' -}}"
    ).replace("END", f"{end}{line}".replace("\n", "\\n"))
    runs, findings = learned(template, THREE)
    assert runs == [f"{word}{end}" for word in ("one", "two", "three")]
    assert findings.count(reasons.NO_END_MARK) == (0 if end else 3)


def test_what_closes_a_call_is_learned_where_end_marks_differ() -> None:
    template = calls("'<CALL>' + c.name + '</CALL>'").replace(
        "{%- endfor -%}{{- '<|im_end|>\\n' -}}",
        "{%- endfor -%}{{- ' @1' if loop.last else '\\n@2\\n' -}}",
    )
    runs, _ = learned(template, CALLING)
    assert runs[0] == "<CALL>area</CALL>"


def test_what_closes_a_call_is_learned_where_no_token_does() -> None:
    template = calls("'call:' + c.name + '{of:<|q|>' + c.arguments.of + '<|q|>}[end]'").replace(
        "{%- endfor -%}{{- '<|im_end|>\\n' -}}", "{%- endfor -%}{{- '\\n' -}}"
    )
    runs, _ = learned(template, CALLING, tokens=("<|q|>",))
    assert runs[0] == "call:area{of:<|q|>disc<|q|>}[end]"


def test_a_call_without_an_end_mark_is_counted() -> None:
    template = INST_CALLS.replace("{%- endfor -%}{{- '</s>' -}}", "{%- endfor -%}")
    _, findings = learned(
        template, CALLING, tokens=("</s>", "[INST]", "[/INST]", "[CALLS]", "[RESULT]")
    )
    assert findings.count(reasons.NO_END_MARK) == 1


GENERATION = (
    "{%- for m in messages -%}{{- '<|im_start|>' + m.role + '\\n' -}}"
    "{%- if m.role == 'assistant' -%}{{- m.reasoning_content or '' -}}"
    "{% generation %}{{- m.content + '<|im_end|>' -}}{% endgeneration %}"
    "{%- else -%}{{- m.content + '<|im_end|>' -}}{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)


def test_text_of_the_assistant_outside_of_generation_is_counted() -> None:
    turns = (user("a?"), assistant("one", reasoning_content="hm "), user("b?"), assistant("two"))
    runs, findings = learned(GENERATION, turns)
    assert runs == [f"one{END}", f"two{END}"]
    (found,) = findings
    assert (found.reason, found.count) == (reasons.UNLEARNED_TURNS, 1)


@pytest.mark.parametrize("taken", ["m.content[:3]", "(m.content | string)[:3]", "m.content[1:]"])
def test_a_template_that_writes_a_part_of_a_text_is_not_given_parts_to_write(taken: str) -> None:
    template = chatml("{{- '<|im_start|>assistant\n' + (%s | string) + '<|im_end|>\n' -}}" % taken)  # noqa: UP031  # braces
    runs, findings = learned(template, (user("a?"), assistant("a long answer")))
    assert not any("type" in run for run in runs)
    assert any(one.needs_consent(()) for one in findings)


@pytest.mark.parametrize("written", ["m.content", "m.content | tojson"])
def test_a_list_of_parts_is_never_learned_as_the_text_of_a_list(written: str) -> None:
    """The template refuses texts, so that only parts are left, and writes them as data."""
    template = (
        "{%- for m in messages -%}{%- if m.content is string -%}{{- raise_exception('parts') -}}"
        "{%- endif -%}{{- '<|im_start|>' + m.role + '\n' -}}{{- " + written + " -}}"
        "{{- '<|im_end|>\n' -}}{%- endfor -%}"
    )
    runs, findings = learned(template, (user("a?"), assistant("a long answer")))
    assert not any("type" in run for run in runs)
    assert any(one.needs_consent(()) for one in findings)


REWRITTEN = ["m.content | lower", "m.content | replace('o', '0')", "m.content.split() | join(' ')"]


@pytest.mark.parametrize("written", REWRITTEN)
def test_a_template_that_changes_texts_is_counted(written: str) -> None:
    template = chatml("{{- '<|im_start|>assistant\n' + (%s) + '<|im_end|>\n' -}}" % written)  # noqa: UP031  # braces
    _, findings = learned(template, (user("Ask"), assistant("Some  gOod answer")))
    changed = [one for one in findings if one.reason is reasons.CHANGED_TEXT]
    lost = [one for one in findings if one.reason is reasons.UNLEARNED_TURNS]
    assert [one.count for one in (changed or lost)] == [1]
    assert all(one.needs_consent(()) for one in findings)


@pytest.mark.parametrize(
    "text", ["plain", 'quo"ted', "two\nlines", "\u00e9t\u00e9", "<think>a</think>b"]
)
@pytest.mark.parametrize("written", ["m.content", "m.content | tojson"])
def test_a_template_that_writes_texts_as_they_are_changes_none(text: str, written: str) -> None:
    template = chatml("{{- '<|im_start|>assistant\n' + (%s) + '<|im_end|>\n' -}}" % written)  # noqa: UP031  # braces
    _, findings = learned(template, (user("a?"), assistant(text)))
    assert reasons.CHANGED_TEXT not in {one.reason for one in findings}


def test_white_space_that_the_template_removes_is_counted() -> None:
    template = chatml("{{- '<|im_start|>assistant\n' + (m.content | trim) + '<|im_end|>\n' -}}")
    _, findings = learned(template, (user("a?"), assistant(" yes\n"), user("b?"), assistant("no")))
    (found,) = findings
    assert (found.reason, found.count) == (reasons.TRIMMED_TEXT, 1)
    assert not found.needs_consent(())


@pytest.mark.parametrize("completion_only", [True, False])
def test_keys_of_messages_that_the_template_does_not_write_are_counted(
    completion_only: bool,
) -> None:
    turns = (user("a?") | {"context": "the book", "id": 7}, assistant("yes"))
    _, findings = learned(chatml(PLAIN), turns, completion_only=completion_only)
    found = {one.reason: (one.count, one.detail) for one in findings}
    assert found == {
        reasons.IGNORED_KEYS: (1, "context"),
        reasons.UNREAD_MESSAGE_KEYS: (1, "id"),
    }
    with_context = chatml(PLAIN).replace("+ m.content +", "+ m.content + (m.context or '') +")
    _, findings = learned(with_context, turns, completion_only=completion_only)
    assert [one.reason for one in findings] == [reasons.UNREAD_MESSAGE_KEYS]


@pytest.mark.parametrize("completion_only", [True, False])
def test_what_a_template_leaves_out_is_counted_whatever_is_learned(completion_only: bool) -> None:
    template = chatml(PLAIN).replace("{%- else -%}", "{%- elif m.role == 'user' -%}")
    turns = ({"role": "system", "content": "be kind"}, *THREE)
    _, findings = learned(template, turns, completion_only=completion_only)
    assert [one.reason for one in findings] == [reasons.MESSAGES_LEFT_OUT]
