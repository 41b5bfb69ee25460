"""Special tokens of a chat template that the tokenizer splits, or that messages contain."""

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
    """Counts conversations with split special tokens, or with special tokens inside messages.

    Args:
        tokenizer: The tokenizer with its chat template.
        findings: Receives the counts.
    """

    def __init__(self, tokenizer: MarkTokenizer, findings: Findings) -> None:
        self._tokenizer = tokenizer
        self._findings = findings
        self._looked_at = ""
        """Place of the last record: both completions of a preference have the same one."""

    def note(self, text: str, place: str) -> None:
        """Count a rendered conversation if the tokenizer splits one of its special tokens."""
        if any(mark in text for mark in self.split_tokens):
            self._findings.note(SPLIT_MARKS, place, self._proposal)

    def note_inside(self, turns: Sequence[Mapping[str, Any]], place: str) -> None:
        """Count a conversation if one of its messages contains a special token of the template.

        A second conversation of the same record, right after the first one, is not looked at.
        """
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
        """The special tokens that the template writes, in order."""
        return tuple(dict.fromkeys(_MARK.findall("\n".join(self._written()))))

    @cached_property
    def split_tokens(self) -> tuple[str, ...]:
        """The special tokens of the template that the tokenizer splits, in order."""
        vocabulary = self._tokenizer.get_vocab()
        return tuple(mark for mark in self._template_tokens if not self._is_token(mark, vocabulary))

    @property
    def _proposal(self) -> str:
        return f"data.special_tokens: {json.dumps(list(self.split_tokens), ensure_ascii=False)}"

    def _written(self) -> Iterator[str]:
        """Yield short example conversations rendered with the template, and its Jinja source."""
        for probe in _PROBES:
            try:
                yield str(self._tokenizer.apply_chat_template(probe, tokenize=False))
            except Exception:  # noqa: BLE001  # templates raise any exception
                continue
        yield json.dumps(self._tokenizer.chat_template, ensure_ascii=False)

    def _is_token(self, mark: str, vocabulary: Mapping[str, int]) -> bool:
        """Whether the tokenizer encodes a special token inside a text as one token."""
        if mark not in vocabulary:
            return False
        (ids,) = self._tokenizer([f"a{mark}a"], add_special_tokens=False)["input_ids"]
        return vocabulary[mark] in ids
