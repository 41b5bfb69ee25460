"""Render conversations with the chat template of a tokenizer, in a form that it takes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ...errors import DataError
from .marks import Marking, before_first
from .messages import FORMS, MessageForm, Turns, arguments_of

_GENERATION = re.compile(r"\{%-?\s*generation\b")
Tools = Sequence[Mapping[str, Any]]


class TemplateTokenizer(Protocol):
    """The used part of a transformers tokenizer."""

    chat_template: Any
    special_tokens_map: Mapping[str, Any]

    def get_chat_template(self, chat_template: str | None, tools: Any) -> str:
        """Return the template for conversations with or without tools."""
        ...

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """Format a conversation for the model."""
        ...


@dataclass(frozen=True)
class Rendered:
    """A conversation as text, and the form of messages that gave it."""

    text: str
    form: MessageForm


@dataclass
class ChatTemplate:
    """The chat template of a tokenizer.

    The forms of messages are tried in the same order for every conversation, so that a conversation
    is rendered alike whatever was rendered before it.
    """

    tokenizer: TemplateTokenizer
    _reading: set[MessageForm] = field(default_factory=set)
    """Forms whose contents the template is known to write."""

    def render(self, turns: Turns, tools: Tools, place: str) -> Rendered:
        """Return a conversation as text.

        Args:
            turns: The messages.
            tools: The tools that the template may list.
            place: Where the record is stored, for error messages.

        Raises:
            DataError: There is no chat template, or it rejects the messages in every form.
        """
        if not self.tokenizer.chat_template:
            raise DataError(
                f"{place}: messages need a chat template, and this model's tokenizer has none; set "
                "data.template to a template, use an instruct model, or use data with text or "
                "prompt + completion"
            )
        first: Exception | None = None
        for form in FORMS:
            try:
                return self._checked(turns, tools, form)
            except Exception as error:  # noqa: BLE001  # templates raise any exception
                first = first or error
        raise DataError(
            f"{place}: the chat template rejects it: {first}; correct the roles and their order in "
            "this record, or set data.template to another template"
        )

    def text(
        self, turns: Turns, tools: Tools, form: MessageForm, *, opening: bool = False
    ) -> str | None:
        """Return messages as text in a known form; None if the template rejects them."""
        try:
            return self._apply(turns, tools, form, opening)
        except Exception:  # noqa: BLE001  # templates raise any exception
            return None

    def opener(self, turns: Turns, tools: Tools, form: MessageForm) -> str:
        """Return the text with which the template asks for an answer to these messages.

        Args:
            turns: The messages before the answer; there may be none.
            tools: The tools.
            form: The form of the messages.
        """
        asked = turns or [{"role": "user", "content": "a"}]
        plain = self.text(asked, tools, form)
        opened = self.text(asked, tools, form, opening=True)
        return _after(plain, opened) or self._header(asked, tools, form, plain)

    def _header(self, turns: Turns, tools: Tools, form: MessageForm, plain: str | None) -> str:
        """Return what a template without a generation prompt writes before an answer."""
        answer = Marking([*turns, {"role": "assistant", "content": "a"}]).marked([len(turns)])
        return before_first(_after(plain, self.text(answer, tools, form)))

    def generated(self, turns: Turns, tools: Tools, rendered: Rendered) -> list[tuple[int, int]]:
        """Return the spans between `{% generation %}` and `{% endgeneration %}` in the text."""
        template = self.tokenizer.get_chat_template(None, list(tools) or None)
        if "generation" not in template or not _GENERATION.search(template):
            return []
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            texts, spans = render_jinja_template(
                conversations=[rendered.form.of(turns)],
                tools=list(tools) or None,
                chat_template=template,
                return_assistant_tokens_mask=True,
                **self.tokenizer.special_tokens_map,
            )
        except Exception:  # noqa: BLE001  # templates raise any exception
            return []
        return [(a, b) for a, b in spans[0]] if texts[0] == rendered.text else []

    def ignores_tools(self, turns: Turns, tools: Tools, rendered: Rendered) -> bool:
        """Whether the text is the same without the tools."""
        return bool(tools) and self.text(turns, (), rendered.form) == rendered.text

    def _checked(self, turns: Turns, tools: Tools, form: MessageForm) -> Rendered:
        """Render in a form, and in another one if the template misreads this one silently."""
        text = self._apply(turns, tools, form, opening=False)
        if not form.parts and self._misreads_text(turns, tools, form):
            parts = replace(form, parts=True)
            again = self.text(turns, tools, parts)
            if again is not None and not self._misreads_text(turns, tools, parts):
                return Rendered(again, parts)
        if _written_as_python(turns, text):
            as_json = replace(form, json_arguments=True)
            again = self.text(turns, tools, as_json)
            if again is not None:
                return Rendered(again, as_json)
        return Rendered(text, form)

    def _misreads_text(self, turns: Turns, tools: Tools, form: MessageForm) -> bool:
        """Whether the template writes neither text content nor other content in its place."""
        if form in self._reading:
            return False
        marking = Marking(turns)
        texts = {
            number
            for number, string in enumerate(marking.strings)
            if string.kind == "content" and isinstance(turns[string.message].get("content"), str)
        }
        if not texts:
            return False
        made = self.text(marking.marked(), tools, form)
        if made is None or any(one.string in texts for one in marking.placed(made)):
            self._reading.add(form)
            return False
        return True

    def _apply(self, turns: Turns, tools: Tools, form: MessageForm, opening: bool) -> str:
        messages = form.of(turns)
        options = {"tokenize": False, "add_generation_prompt": opening}
        if tools:
            return str(self.tokenizer.apply_chat_template(messages, tools=list(tools), **options))
        try:
            return str(self.tokenizer.apply_chat_template(messages, tools=None, **options))
        except Exception:  # noqa: BLE001  # templates raise any exception
            # Some templates go through the tools without asking whether there are any.
            return str(self.tokenizer.apply_chat_template(messages, tools=[], **options))


def _written_as_python(turns: Turns, text: str) -> bool:
    """Whether arguments of tool calls were written as Python writes them, not as JSON."""
    return any(str(one) in text for one in arguments_of(turns) if isinstance(one, dict) and one)


def _after(plain: str | None, opened: str | None) -> str:
    if plain is None or opened is None or not opened.startswith(plain):
        return ""
    return opened[len(plain) :]
