"""Chat templates become fixed texts around messages, or the reason why they do not is given."""

from __future__ import annotations

from typing import Any

import jinja2
import pytest

from fttui.engine.export.gguf.chat_form import ConversationRefused, NotFixed, chat_form, trims
from fttui.engine.export.gguf.modelfile import go_template
from tests.support.tiny import CHATML

DEFAULT_SYSTEM = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}"
)
HEADERS = (
    "<s>{% for m in messages %}<|h|>{{ m.role }}<|/h|>\n\n{{ m.content | trim }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|h|>assistant<|/h|>\n\n{% endif %}"
)
WORDS = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
    "{% elif m.role == 'user' %}Q: {{ m.content }}\n{% else %}A: {{ m.content }}\n\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
)
INSIDE_USER = (
    "{% set system = '' %}{% for m in messages %}{% if m.role == 'system' %}"
    "{% set system = m.content %}{% elif m.role == 'user' %}[I]{{ system }}{{ m.content }}[/I]"
    "{% else %}{{ m.content }}</s>{% endif %}{% endfor %}"
)
COUNTED = "{% for m in messages %}{{ loop.index }} {{ m.role }}: {{ m.content }}\n{% endfor %}"


def renderer(source: str) -> Any:
    """What `apply_chat_template` does with a template."""

    def refuse(text: str) -> None:
        raise jinja2.TemplateError(text)

    template = jinja2.Environment().from_string(source)

    def render(messages: list[dict[str, str]], ask: bool) -> str:
        try:
            return template.render(
                messages=messages, add_generation_prompt=ask, raise_exception=refuse
            )
        except jinja2.TemplateError as error:
            raise ConversationRefused(str(error)) from error

    return render


@pytest.mark.parametrize("source", [CHATML, DEFAULT_SYSTEM + CHATML, HEADERS])
def test_other_conversations_are_written_as_the_template_writes_them(source: str) -> None:
    render = renderer(source)
    form = chat_form(render, None)
    messages = [
        {"role": "system", "content": "You are {{ x }}."},
        {"role": "user", "content": "<|im_end|> Hm?"},
        {"role": "assistant", "content": "Yes.\nNo."},
        {"role": "user", "content": "Answ3r Us3r"},
    ]
    for first in (0, 1):
        assert form.render(messages[first:]) == render(messages[first:], True)


def test_a_turn_ends_with_its_own_token() -> None:
    form = chat_form(renderer(DEFAULT_SYSTEM + CHATML), None)
    assert form.user == ("<|im_start|>user\n", "<|im_end|>\n")
    assert form.assistant == ("<|im_start|>assistant\n", "<|im_end|>\n")
    assert form.system == ("<|im_start|>system\n", "<|im_end|>\n")
    assert form.default_start == "<|im_start|>system\nBe kind.<|im_end|>\n"
    assert form.answer == "<|im_start|>assistant\n"


def test_the_token_that_llama_cpp_adds_is_left_out() -> None:
    form = chat_form(renderer(HEADERS), "<s>")
    assert form.default_start == ""
    assert form.system == ("<|h|>system<|/h|>\n\n", "<|eot|>")


def test_a_refused_system_message_is_no_part_of_the_form() -> None:
    form = chat_form(renderer(WORDS), None)
    assert form.system is None
    assert 'eq .Role "system"' not in go_template(form)


@pytest.mark.parametrize("source", [INSIDE_USER, COUNTED, "{{ messages[-1].content }}"])
def test_a_template_that_does_more_is_named(source: str) -> None:
    with pytest.raises(NotFixed):
        chat_form(renderer(source), None)


def test_a_template_that_trims_is_noticed() -> None:
    assert trims(renderer(HEADERS))
    assert not trims(renderer(CHATML))


def test_the_go_template_has_the_texts_around_each_role() -> None:
    text = go_template(chat_form(renderer(DEFAULT_SYSTEM + CHATML), None))
    assert text.startswith("{{ if not .System }}<|im_start|>system\nBe kind.<|im_end|>\n{{ end }}")
    assert '{{ else if eq .Role "user" }}<|im_start|>user\n{{ .Content }}<|im_end|>\n' in text
    assert text.endswith("<|im_start|>assistant\n{{ end }}{{ end }}")


def test_braces_of_a_template_are_quoted_for_go() -> None:
    odd = renderer(CHATML.replace("'<|im_end|>'", "'<|im_end|>' + '{' + '{x}' + '}'"))
    text = go_template(chat_form(odd, None))
    assert '{{ "<|im_end|>{{x}}\\n" }}' in text
