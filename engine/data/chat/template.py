"""Render conversations with a tokenizer's chat template, and find how it opens an answer.

The message forms that the template may accept are tried until one of them succeeds.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Protocol

from ...errors import DataError
from .marks import Marking, before_first, unmarked
from .messages import FORMS, MessageForm, Turns, arguments_of, further_keys

_GENERATION = re.compile(r"\{%-?\s*generation\b")
_RANDOM = re.compile(r"\|\s*random\b")
_PART_AS_DATA = re.compile(r"""['"]text\\?['"]\s*:\s*\\?['"]$""")
"""What stands before a text that was written as a part, such as `{'type': 'text', 'text': '`."""
_OF_ROLES = re.compile(r"\brole|alternat|\border\b|\bfirst message|\bsystem\b", re.I)
"""Words of errors that a chat template raises about the roles of messages."""
_LONGEST_KEY = 20
"""Number of characters before a text in which the key of its part is looked for."""
Tools = Sequence[Mapping[str, Any]]
Span = tuple[int, int]


class RejectedConversation(DataError):
    """The chat template does not take one conversation, but perhaps others."""


class TemplateTokenizer(Protocol):
    """The used part of a transformers tokenizer."""

    chat_template: Any
    special_tokens_map: Mapping[str, Any]

    def get_chat_template(self, chat_template: str | None, tools: Any) -> str:
        """Return the template for conversations with or without tools; `chat_template` names it.

        None as the name is the template that the tokenizer uses by itself.
        """
        ...

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """Format a conversation for the model."""
        ...


@dataclass(frozen=True)
class Rendered:
    """A conversation as text, and the form of messages that gave it."""

    text: str
    form: MessageForm
    generated: tuple[Span, ...] = ()
    """The spans of the text between `{% generation %}` and `{% endgeneration %}`."""


@dataclass
class ChatTemplate:
    """The chat template of a tokenizer.

    The forms of messages are tried in the same order for every conversation, so that a conversation
    is rendered alike whatever was rendered before it.
    """

    tokenizer: TemplateTokenizer
    _reading: set[MessageForm] = field(default_factory=set)
    """Forms whose contents the template is known to write."""
    _openers: list[str] = field(default_factory=list)
    """Texts with which the template has asked for answers, the longest first."""
    _first_openers: dict[tuple[str, MessageForm], str] = field(default_factory=dict)
    """Texts with which the template asks for a first answer, by the tools and the form."""
    _named_alike: bool = False
    """Whether a conversation with named targets was rendered as the tokenizer renders it."""

    def render(self, turns: Turns, tools: Tools, place: str) -> Rendered:
        """Return a conversation as text.

        Args:
            turns: The messages.
            tools: The tools that the template may list.
            place: Where the record is stored, for error messages.

        Raises:
            RejectedConversation: The chat template rejects the messages in every form.
            DataError: There is no chat template, or it has an error that no message can avoid.
        """
        if not self.tokenizer.chat_template:
            raise DataError(
                f"{place}: messages need a chat template, and this model's tokenizer has none; set "
                "data.template to a template, use an instruct model, or use data with text or "
                "prompt + completion"
            )
        self._require_same_text()
        first: Exception | None = None
        for form in FORMS:
            try:
                return self._checked(turns, tools, form)
            except Exception as error:  # noqa: BLE001  # templates raise any exception
                first = first or error
        raise self._refusal(place, first)

    def unread_keys(self, turns: Turns, tools: Tools, rendered: Rendered) -> list[str]:
        """Return the further keys of messages whose values do not change the text."""
        found = dict.fromkeys(key for turn in turns for key in further_keys(turn))
        if not found or self._same_without(found, turns, tools, rendered):
            return list(found)
        return [key for key in found if self._same_without([key], turns, tools, rendered)]

    def _same_without(
        self, keys: Collection[str], turns: Turns, tools: Tools, rendered: Rendered
    ) -> bool:
        kept = [{key: part for key, part in turn.items() if key not in keys} for turn in turns]
        return self.text(kept, tools, rendered.form) == rendered.text

    def _require_same_text(self) -> None:
        """Refuse a template whose text differs from one rendering to the next.

        Raises:
            DataError: The template chooses at random.
        """
        if _RANDOM.search(str(self.tokenizer.chat_template)):
            raise DataError(
                "the chat template chooses at random (filter random), so that a record has another "
                "text each time; remove it, or set data.template to another template"
            )

    def _refusal(self, place: str, error: Exception | None) -> DataError:
        """Return the error for a conversation that the template does not render in any form."""
        from jinja2.exceptions import TemplateError, TemplateSyntaxError

        if isinstance(error, TemplateSyntaxError):
            return DataError(
                f"the chat template has a syntax error in line {error.lineno}: {error.message}; "
                "correct it, or set data.template to another template"
            )
        if type(error) is TemplateError:  # raise_exception() in the template
            what = "the roles and their order in" if _OF_ROLES.search(str(error)) else "or remove"
            return RejectedConversation(
                f"{place}: the chat template rejects this conversation: {error}; correct {what} "
                "this record, or set data.template to another template"
            )
        return RejectedConversation(
            f"{place}: the chat template fails for this conversation with "
            f"{type(error).__name__}: {error}; correct the template (data.template), or give the "
            "messages of this record the keys that the template reads"
        )

    def text(
        self, turns: Turns, tools: Tools, form: MessageForm, *, opening: bool = False
    ) -> str | None:
        """Return messages, given to the template in `form`, as text; None if it rejects them.

        With `opening`, the text ends with the generation prompt.
        """
        try:
            return self._apply(turns, tools, form, opening)
        except Exception:  # noqa: BLE001  # templates raise any exception
            return None

    def opener(self, turns: Turns, tools: Tools, form: MessageForm) -> str:
        """Return the text with which the template asks for an answer to these messages.

        Empty if the template rejects them, or writes nothing of its own before an answer.

        Args:
            turns: The messages before the answer; there may be none.
            tools: The tools.
            form: The form of the messages.
        """
        if turns:
            return self._opener(turns, tools, form)
        key = (repr(tools), form)
        if key not in self._first_openers:
            asked = [{"role": "user", "content": "a"}]
            self._first_openers[key] = self._opener(asked, tools, form)
        return self._first_openers[key]

    def learn_opener(self, opener: str) -> None:
        """Remember a text with which the template has asked for an answer, unless it is blank."""
        if opener.strip() and opener not in self._openers:
            self._openers = sorted([*self._openers, opener], key=len, reverse=True)

    def known_opener(self, asked: str) -> str:
        """Return the remembered opener with which a request ends; empty without one."""
        return next((one for one in self._openers if asked.endswith(one)), "")

    def _opener(self, asked: Turns, tools: Tools, form: MessageForm) -> str:
        plain = self.text(asked, tools, form)
        opened = self.text(asked, tools, form, opening=True)
        return _after(plain, opened) or self._header(asked, tools, form, plain)

    def _header(self, turns: Turns, tools: Tools, form: MessageForm, plain: str | None) -> str:
        """Return what a template without a generation prompt writes before an answer.

        The text is empty if there is nothing, or `plain`, the text of the messages, is None.
        """
        answer = Marking([*turns, {"role": "assistant", "content": "a"}]).marked([len(turns)])
        return before_first(_after(plain, self.text(answer, tools, form)))

    def ignores_tools(self, turns: Turns, tools: Tools, rendered: Rendered) -> bool:
        """Whether there are tools and the text is the same without them."""
        return bool(tools) and self.text(turns, (), rendered.form) == rendered.text

    def _checked(self, turns: Turns, tools: Tools, form: MessageForm) -> Rendered:
        """Return messages rendered in a form, or in another one if the template misreads this one.

        Raises:
            Exception: The template rejects the messages in this form; templates raise any.
        """
        found = self._rendered(turns, tools, form)
        if not form.parts and self._misreads_text(turns, tools, form):
            parts = replace(form, parts=True)
            again = self._tried(turns, tools, parts)
            if again is not None and not self._misreads_text(turns, tools, parts):
                return again
        if form.parts and self._writes_parts_as_data(turns, tools, form):
            raise RejectedConversation("it writes lists of text parts as data, not their texts")
        if _written_as_python(turns, found.text):
            as_json = replace(form, json_arguments=True)
            return self._tried(turns, tools, as_json) or found
        return found

    def _tried(self, turns: Turns, tools: Tools, form: MessageForm) -> Rendered | None:
        try:
            return self._rendered(turns, tools, form)
        except Exception:  # noqa: BLE001  # templates raise any exception
            return None

    def _rendered(self, turns: Turns, tools: Tools, form: MessageForm) -> Rendered:
        named = self._named(turns, tools, form)
        if named is not None and self._named_alike:
            return named
        text = self._apply(turns, tools, form, opening=False)
        if named is None or named.text != text:
            return Rendered(text, form)
        self._named_alike = True
        return named

    def _named(self, turns: Turns, tools: Tools, form: MessageForm) -> Rendered | None:
        """Return the conversation with the targets that the template names.

        None if the template names none, or cannot be rendered in this way.
        """
        template = self.tokenizer.get_chat_template(None, list(tools) or None)
        if not _names_targets(template):
            return None
        from transformers.utils.chat_template_utils import render_jinja_template

        messages = [
            {key: value for key, value in message.items() if value is not None}
            for message in form.of(turns)
        ]
        try:
            texts, spans = render_jinja_template(
                conversations=[messages],
                tools=list(tools) or None,
                chat_template=template,
                return_assistant_tokens_mask=True,
                **self.tokenizer.special_tokens_map,
            )
        except Exception:  # noqa: BLE001  # templates raise any exception
            return None
        return Rendered(texts[0], form, tuple((a, b) for a, b in spans[0]))

    def _misreads_text(self, turns: Turns, tools: Tools, form: MessageForm) -> bool:
        """Whether the text lacks all contents, because the template expects another form.

        A content that is written as a part with its keys, as Python or JSON writes it, counts as
        missing, because the template takes the list of parts for a text. A form in which the
        template has written a content once is not examined again.
        """
        if form in self._reading:
            return False
        before = self._before_texts(turns, tools, form)
        if before is None:
            return False
        if all(map(_PART_AS_DATA.search, before)):
            return True
        self._reading.add(form)
        return False

    def _writes_parts_as_data(self, turns: Turns, tools: Tools, form: MessageForm) -> bool:
        """Whether the template writes a content as a part with its keys, which is not its text."""
        if form in self._reading:
            return False
        before = self._before_texts(turns, tools, form)
        return any(map(_PART_AS_DATA.search, before or ()))

    def _before_texts(self, turns: Turns, tools: Tools, form: MessageForm) -> list[str] | None:
        """Return the characters before each content that is a text, wherever it is written.

        None if no content is a text, or the template refuses the marks around them.
        """
        marking = Marking(turns)
        texts = {
            number
            for number, string in enumerate(marking.strings)
            if string.kind == "content" and isinstance(turns[string.message].get("content"), str)
        }
        made = self.text(marking.marked(), tools, form) if texts else None
        if made is None:
            return None
        bare = unmarked(made)
        placed = (one for one in marking.placed(made) if one.string in texts)
        return [bare[max(0, one.start - _LONGEST_KEY) : one.start] for one in placed]

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


@cache
def _names_targets(template: str) -> bool:
    """Whether a template names its targets with `{% generation %}`."""
    return _GENERATION.search(template) is not None


def _written_as_python(turns: Turns, text: str) -> bool:
    """Whether arguments of tool calls were written as Python writes them, not as JSON."""
    return any(str(one) in text for one in arguments_of(turns) if isinstance(one, dict) and one)


def _after(plain: str | None, opened: str | None) -> str:
    if plain is None or opened is None or not opened.startswith(plain):
        return ""
    return opened[len(plain) :]
