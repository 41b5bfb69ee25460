"""Marks of a chat template that the tokenizer splits, and marks that messages have themselves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

from ...config.data_reasons import MARKS_IN_TEXT, SPLIT_MARKS
from ..findings import Findings

_MARK = re.compile(
    r"<\|[^<>|\s]{1,60}\|>|<｜[^<>｜\s]{1,60}｜>|<(?:start|end)_of_[a-z_]{1,40}>|</?s>|<[be]os>"
)
"""Texts that are meant as one token: between bars, and names of beginnings and ends."""
_ASKED = {"role": "user", "content": "a"}
_PROBES: tuple[list[dict[str, str]], ...] = (
    [{"role": "system", "content": "a"}, _ASKED, {"role": "assistant", "content": "a"}],
    [_ASKED, {"role": "assistant", "content": "a"}],
)
"""Conversations whose marks are looked at; some templates refuse a system message."""


class MarkTokenizer(Protocol):
    """The used part of a transformers tokenizer."""

    chat_template: Any

    def __call__(self, text: list[str], **options: Any) -> Mapping[str, Any]:
        """Return the token ids of several texts."""
        ...

    def get_vocab(self) -> dict[str, int]:
        """Return the ids of all tokens."""
        ...

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """Format a conversation for the model."""
        ...


class SplitMarks:
    """Counts conversations whose marks are no tokens, or stand in their messages.

    Args:
        tokenizer: The tokenizer with its chat template.
        findings: Receives the conversations.
    """

    def __init__(self, tokenizer: MarkTokenizer, findings: Findings) -> None:
        self._tokenizer = tokenizer
        self._findings = findings
        self._looked_at = ""
        """Place of the last record: both completions of a preference have the same one."""

    def note(self, text: str, place: str) -> None:
        """Note a rendered conversation if it has such a mark."""
        if any(mark in text for mark in self.split_tokens):
            self._findings.note(SPLIT_MARKS, place, self._proposal)

    def note_inside(self, turns: Sequence[Mapping[str, Any]], place: str) -> None:
        """Note a conversation if one of its messages has a mark that the template writes."""
        if place and place == self._looked_at:
            return
        self._looked_at = place
        texts = [turn.get(key) for turn in turns for key in ("content", "reasoning_content")]
        said = "\n".join(text for text in texts if isinstance(text, str))
        inside = [
            mark for mark in self._template_tokens if mark in said and mark not in self.split_tokens
        ]
        self._findings.note(MARKS_IN_TEXT, place, ", ".join(inside[:3]), count=bool(inside))

    @cached_property
    def _template_tokens(self) -> tuple[str, ...]:
        """The marks of the template, in the order in which it writes them."""
        return tuple(dict.fromkeys(_MARK.findall("\n".join(self._written()))))

    @cached_property
    def split_tokens(self) -> tuple[str, ...]:
        """The marks of the template that are split, in the order in which it writes them."""
        vocabulary = self._tokenizer.get_vocab()
        return tuple(mark for mark in self._template_tokens if not self._is_token(mark, vocabulary))

    @property
    def _proposal(self) -> str:
        return f"data.special_tokens: {json.dumps(list(self.split_tokens), ensure_ascii=False)}"

    def _written(self) -> Iterator[str]:
        """Yield what the template writes around short messages, and its own text."""
        for probe in _PROBES:
            try:
                yield str(self._tokenizer.apply_chat_template(probe, tokenize=False))
            except Exception:  # noqa: BLE001  # templates raise any exception
                continue
        yield json.dumps(self._tokenizer.chat_template, ensure_ascii=False)

    def _is_token(self, mark: str, vocabulary: Mapping[str, int]) -> bool:
        """Whether a mark within a text is one token of its own."""
        if mark not in vocabulary:
            return False
        (ids,) = self._tokenizer([f"a{mark}a"], add_special_tokens=False)["input_ids"]
        return vocabulary[mark] in ids
