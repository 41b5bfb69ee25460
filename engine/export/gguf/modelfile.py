"""Write the Modelfile with which Ollama runs a GGUF file."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError

from .chat_form import ChatForm, ConversationRefused, NotFixed, chat_form, trims

_DATED = re.compile(r"strftime_now|date_string")
_TOOLS = re.compile(r"\btools\b")
_THINKS = re.compile(r"reasoning_content|enable_thinking|<think>")


def modelfile(file: str, tokenizer: Any, stops: Sequence[str]) -> tuple[str, list[str]]:
    """Return the text of a Modelfile, and what Ollama's template could not carry over.

    Args:
        file: Name of the GGUF file beside the Modelfile.
        tokenizer: Of the exported model, with its chat template if it has one.
        stops: Tokens that end an answer.
    """
    lines = [f"FROM ./{file}"]
    template, notes = _template(tokenizer)
    if template is not None:
        lines.append(f'TEMPLATE """{template}"""')
    lines += [f"PARAMETER stop {json.dumps(stop, ensure_ascii=False)}" for stop in stops]
    return "\n".join(lines) + "\n", notes


def go_template(form: ChatForm) -> str:
    """Return a chat form in the template language of Ollama, which is that of Go."""
    roles = [("user", form.user)]
    if form.system:
        roles.insert(0, ("system", form.system))
    text = ""
    if form.default_start:
        text = f"{{{{ if not .System }}}}{_literal(form.default_start)}{{{{ end }}}}"
    text += "{{ range $i, $_ := .Messages }}{{ $last := eq (len (slice $.Messages $i)) 1 }}"
    branch = "if"
    for role, (before, after) in roles:
        content = _literal(before) + "{{ .Content }}" + _literal(after)
        text += f'{{{{ {branch} eq .Role "{role}" }}}}{content}'
        branch = "else if"
    before, after = form.assistant
    text += f'{{{{ else if eq .Role "assistant" }}}}{_literal(before)}{{{{ .Content }}}}'
    text += f"{{{{ if not $last }}}}{_literal(after)}{{{{ end }}}}{{{{ end }}}}"
    text += f'{{{{ if and $last (ne .Role "assistant") }}}}{_literal(form.answer)}{{{{ end }}}}'
    return text + "{{ end }}"


def _template(tokenizer: Any) -> tuple[str | None, list[str]]:
    """Return the template for Ollama, None if there is none, and what it could not carry over."""
    source = tokenizer.chat_template
    if not source:
        return None, ["A chat template: the model has none, so Ollama continues plain text."]
    if not isinstance(source, str):
        source = source.get("default", "")

    def render(messages: list[dict[str, str]], ask: bool) -> str:
        try:
            text = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=ask
            )
        except (TemplateError, TypeError, ValueError, LookupError) as error:
            raise ConversationRefused(f"it refuses a conversation ({error})") from error
        return str(text)

    bos = tokenizer.bos_token if _adds_bos(tokenizer) else None
    try:
        form = chat_form(render, bos)
    except NotFixed as why:
        return None, [
            f"The chat template, because {why}: the Modelfile has no TEMPLATE, so Ollama uses what "
            "it recognizes of the template in the GGUF file. llama.cpp runs that one with --jinja."
        ]
    return go_template(form), _notes(source, form, trimming=trims(render))


def _adds_bos(tokenizer: Any) -> bool:
    """Return whether the tokenizer, and so llama.cpp, puts the BOS token before a text."""
    ids = tokenizer("a").input_ids
    return bool(ids) and ids[0] == tokenizer.bos_token_id and tokenizer.bos_token_id is not None


def _notes(source: str, form: ChatForm, *, trimming: bool) -> list[str]:
    notes = []
    if form.system is None:
        notes.append("System messages: the chat template refuses them.")
    if _TOOLS.search(source):
        notes.append("Tools: the TEMPLATE of the Modelfile writes messages only.")
    if _THINKS.search(source):
        notes.append("Switches for reasoning: the TEMPLATE writes what the default gives.")
    if _DATED.search(source):
        notes.append("The date of the conversation: the TEMPLATE has the date of this export.")
    if trimming:
        notes.append("White space around a message: the chat template drops it, Ollama does not.")
    return notes


def _literal(text: str) -> str:
    """Return a text as a template writes it, quoted where it would be read as something else.

    White space is kept: no action of the template has a marker that trims it.
    """
    if "{{" in text or "}}" in text or '"""' in text:
        return f"{{{{ {json.dumps(text)} }}}}"
    return text
