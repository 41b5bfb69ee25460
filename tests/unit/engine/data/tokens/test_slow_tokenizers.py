"""Tokenizers without offsets: their targets are those of a fast tokenizer, or they are refused."""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizer

from fttui.engine.config.data_reasons import CUT, NO_OFFSETS, NO_TARGET
from fttui.engine.data.findings import Findings
from fttui.engine.data.records.formats import (
    CompletionRecord,
    MessagesRecord,
    PairRecord,
    PreferenceRecord,
    TextRecord,
)
from fttui.engine.data.tokens.alignment import Aligner
from fttui.engine.data.tokens.examples import IGNORED
from fttui.engine.data.tokens.tokenize import TokenizeOptions, tokenize_records
from tests.support.tokenizer import CHATML

END = "<|im_end|>"
TALK = (
    {"role": "user", "content": "Why is  the sky blue?"},
    {"role": "assistant", "content": "Größe 你好 🙂 of waves."},
    {"role": "user", "content": "And  now?"},
    {"role": "assistant", "content": "It is  red.\n  Indented."},
)


class Slow(PreTrainedTokenizer):  # type: ignore[misc]  # transformers is untyped
    """A tokenizer written in Python, whose vocabulary grows with the texts that it reads."""

    def __init__(self, **options: Any) -> None:
        self.pieces: list[str] = []
        self.ids: dict[str, int] = {}
        options |= {"eos_token": END, "pad_token": END, "unk_token": "<unk>"}
        super().__init__(**options, additional_special_tokens=["<|im_start|>"])
        self.chat_template = CHATML

    @property
    def vocab_size(self) -> int:
        return 1000

    def get_vocab(self) -> dict[str, int]:
        return dict(self.ids) | self.added_tokens_encoder

    def _convert_token_to_id(self, token: str) -> int:
        if token not in self.ids:
            self.ids[token] = 2000 + len(self.pieces)
            self.pieces.append(token)
        return self.ids[token]

    def _convert_id_to_token(self, index: int) -> str:
        return self.pieces[index - 2000]


class Words(Slow):
    """Words, runs of white space and signs, which decode to the text."""

    def _tokenize(self, text: str, **options: Any) -> list[str]:
        return re.findall(r"\w+|\s+|[^\w\s]", text)

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return "".join(tokens)


class Bytes(Slow):
    """A token per byte: characters of several bytes have several tokens."""

    def _tokenize(self, text: str, **options: Any) -> list[str]:
        return [f"<{byte:02x}>" for byte in text.encode()]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        read = (bytes([int(t[1:3], 16)]) if len(t) == 4 else t.encode() for t in tokens)
        return b"".join(read).decode(errors="replace")


class SentencePieceLike(Slow):
    """Pieces of up to three characters with a mark for a space, and one in front of each text."""

    def _tokenize(self, text: str, **options: Any) -> list[str]:
        return re.findall(r"▁?[^▁\n]{1,3}|[▁\n]", "▁" + text.replace(" ", "▁"))

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return "".join(tokens).replace("▁", " ").removeprefix(" ")


class LowerCased(Slow):
    """Lower-cased words without white space, which do not decode to the text."""

    def _tokenize(self, text: str, **options: Any) -> list[str]:
        return re.findall(r"\w+|[^\w\s]", text.lower())

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return " ".join(tokens)


class Backwards(Slow):
    """The words in reverse order: their places cannot be known."""

    def _tokenize(self, text: str, **options: Any) -> list[str]:
        return re.findall(r"\w+|[^\w\s]", text.lower())[::-1]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return " ".join(tokens)


def tokenize(record: Any, tokenizer: Any, **options: Any) -> tuple[list[Any], Findings]:
    findings = Findings()
    settings = TokenizeOptions(**{"max_length": 500, **options})
    made = tokenize_records([record], tokenizer, settings, findings, lambda *_: None)
    return made, findings


def runs(example: Any, tokenizer: Any) -> list[str]:
    groups = groupby(example.labels, key=lambda label: label != IGNORED)
    return [
        tokenizer.decode(
            list(run), clean_up_tokenization_spaces=False, spaces_between_special_tokens=False
        )
        for wanted, run in groups
        if wanted
    ]


EXACT = [Words, Bytes, SentencePieceLike]


@pytest.mark.parametrize("kind", EXACT)
def test_targets_of_a_conversation_are_exact(kind: type[Slow]) -> None:
    tokenizer = kind()
    (example,), findings = tokenize(MessagesRecord("a", TALK), tokenizer)
    assert runs(example, tokenizer) == [TALK[1]["content"] + END, TALK[3]["content"] + END]
    assert not list(findings)


def test_targets_are_exact_where_the_text_cannot_be_decoded() -> None:
    tokenizer = LowerCased()
    (example,), findings = tokenize(MessagesRecord("a", TALK), tokenizer)
    assert runs(example, tokenizer) == [
        f"größe 你好 🙂 of waves . {END}",
        f"it is red . indented . {END}",
    ]
    assert not list(findings)


@pytest.mark.parametrize("kind", [*EXACT, LowerCased])
def test_a_completion_text_is_learned_with_an_eos(kind: type[Slow]) -> None:
    tokenizer = kind()
    (example,), _ = tokenize(CompletionRecord("a", "Say: ", "hello there"), tokenizer)
    (run,) = runs(example, tokenizer)
    assert run.replace(END, f" {END}").split() == ["hello", "there", END]
    assert example.input_ids[-1] == tokenizer.eos_token_id


def test_a_token_across_the_edge_is_learned() -> None:
    for kind in (Words, LowerCased):
        tokenizer = kind()
        (example,), findings = tokenize(CompletionRecord("a", "Say hel", "lo you"), tokenizer)
        (run,) = runs(example, tokenizer)
        assert run.replace(END, f" {END}").split() == ["hello", "you", END]
        assert not list(findings)


def test_what_cannot_be_placed_is_dropped_and_counted() -> None:
    tokenizer = Backwards()
    made, findings = tokenize(MessagesRecord("a", TALK, place="t.jsonl:4"), tokenizer)
    assert made == []
    assert (findings.count(NO_OFFSETS), findings.count(NO_TARGET)) == (1, 0)
    (found,) = findings
    assert found.where == "first: t.jsonl:4"


def test_unknown_words_hide_no_edge() -> None:
    """The token for an unknown word is the same when the word is cut, so no edge is there."""

    class Unknown(LowerCased):
        def _tokenize(self, text: str, **options: Any) -> list[str]:
            return ["known" if word == "known" else "<unk>" for word in super()._tokenize(text)]

    tokenizer = Unknown()
    (example,), _ = tokenize(CompletionRecord("a", "known foo", "bar known"), tokenizer)
    assert [label != IGNORED for label in example.labels] == [False, True, True, True]


@pytest.mark.parametrize("kind", [*EXACT, LowerCased, Backwards])
def test_texts_of_which_all_is_learned_need_no_places(kind: type[Slow]) -> None:
    tokenizer = kind()
    (example,), findings = tokenize(TextRecord("a", "One two three."), tokenizer)
    assert example.labels == example.input_ids
    assert not list(findings)


def test_preferences_and_pairs_with_an_instruction() -> None:
    tokenizer = SentencePieceLike()
    sides = [CompletionRecord(n, "Why? ", text) for n, text in (("c", "Good."), ("r", "Bad."))]
    (example,), _ = tokenize(PreferenceRecord("a", *sides), tokenizer)
    assert [runs(one, tokenizer)[0].strip() for one in (example.chosen, example.rejected)] == [
        f"Good.{END}",
        f"Bad.{END}",
    ]
    pair = PairRecord("a", anchor="green fruit", positive="kiwi")
    (example,), _ = tokenize(pair, tokenizer, instruction="find: ")
    assert tokenizer.decode(example.anchor[: example.prompt]).startswith("find:")
    (dropped), findings = tokenize(pair, Backwards(), instruction="find this: ")
    assert not dropped
    assert findings.count(NO_OFFSETS) == 1


def test_a_cut_text_is_counted() -> None:
    tokenizer = Bytes()
    (example,), findings = tokenize(MessagesRecord("a", TALK), tokenizer, max_length=80)
    assert findings.count(CUT) == 1
    assert len(example.input_ids) <= 80


class Framed(Words):
    """Adds a token at both ends, as many tokenizers do."""

    def build_inputs_with_special_tokens(self, ids: list[int], other: Any = None) -> list[int]:
        mark = self.convert_tokens_to_ids("<|im_start|>")
        return [mark, *ids, self.eos_token_id]


def test_tokens_at_the_ends_belong_to_no_text() -> None:
    tokenizer = Framed()
    (example,), _ = tokenize(CompletionRecord("a", "in ", "out"), tokenizer)
    assert tokenizer.decode(example.input_ids, spaces_between_special_tokens=False) == (
        f"<|im_start|>in out{END}"
    )
    assert runs(example, tokenizer) == [f"out{END}"]


texts = st.text(alphabet="ab Zé你🙂\n.,▁", min_size=1, max_size=30)


@given(text=texts, cut=st.integers(0, 30))
@pytest.mark.parametrize("kind", EXACT)
def test_decoded_places_are_those_of_the_text(kind: type[Slow], text: str, cut: int) -> None:
    """Offsets cover the text without a gap, or only the edge is known and lies between tokens."""
    tokenizer = kind()
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    edge = min(cut, len(text))
    offsets = Aligner(tokenizer).offsets(text, ids, [edge])
    if offsets is None:
        return
    assert len(offsets) == len(ids)
    assert [start for start, _ in offsets] == sorted(start for start, _ in offsets)
    own = [n for n, (start, end) in enumerate(offsets) if end <= edge and start < end]
    before = tokenizer(text[:edge], add_special_tokens=False)["input_ids"]
    if own and "▁" not in text:
        # Nothing but a token across the edge is missing of the text before it.
        assert len(before) - len(own) <= (3 if kind is Bytes else 2)
