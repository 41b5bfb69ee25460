"""The vocabulary in a GGUF file is that of the tokenizer, or the tokenizer is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fttui.engine.errors import ModelError
from fttui.engine.export.gguf.vocabulary import read_vocabulary

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTES = {"type": "ByteLevel", "use_regex": True, "add_prefix_space": False}
ONLY_BYTES = BYTES | {"use_regex": False}


def split(regex: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def sequence(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(parts)}


def tokenizer(folder: Path, **changes: Any) -> Path:
    content = {
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]},
        "added_tokens": [
            {"id": 3, "content": "<end>", "special": True},
            {"id": 4, "content": "<tag>", "special": False},
        ],
        "pre_tokenizer": BYTES,
        "normalizer": None,
    } | changes
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def test_every_row_of_the_embedding_has_a_token_and_a_type(tmp_path: Path) -> None:
    found = read_vocabulary(tokenizer(tmp_path), 6)
    assert found.tokens == ["a", "b", "ab", "<end>", "<tag>", "[PAD5]"]
    assert found.types == ["NORMAL", "NORMAL", "NORMAL", "CONTROL", "USER_DEFINED", "UNUSED"]
    assert (found.model, found.scores, found.space_prefix) == ("gpt2", None, None)


@pytest.mark.parametrize(
    ("rule", "parts"),
    [
        ("gpt-2", BYTES),
        ("smollm", sequence({"type": "Digits", "individual_digits": True}, BYTES)),
        ("llama-bpe", sequence(split(LLAMA3), ONLY_BYTES)),
        ("qwen2", sequence(split(LLAMA3.replace("{1,3}", "")), ONLY_BYTES)),
    ],
)
def test_known_rules_are_named(tmp_path: Path, rule: str, parts: dict[str, Any]) -> None:
    assert read_vocabulary(tokenizer(tmp_path, pre_tokenizer=parts), 5).rule == rule


@pytest.mark.parametrize(
    "changes",
    [
        {"pre_tokenizer": sequence(split(LLAMA3 + "|x"), ONLY_BYTES)},
        {"pre_tokenizer": sequence(split(LLAMA3), BYTES)},
        {"pre_tokenizer": BYTES | {"add_prefix_space": True}},
        {"pre_tokenizer": None},
        {"pre_tokenizer": {"type": "Digits", "individual_digits": False}},
        {"normalizer": {"type": "Lowercase"}},
        {"model": {"type": "Unigram", "vocab": [["a", 0.0]]}},
    ],
)
def test_what_llama_cpp_would_split_otherwise_is_refused(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    with pytest.raises(ModelError):
        read_vocabulary(tokenizer(tmp_path, **changes), 5)


def test_a_token_beyond_the_embedding_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="the id 4, but the embedding has 4 rows"):
        read_vocabulary(tokenizer(tmp_path), 4)


def test_a_folder_without_a_fast_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        read_vocabulary(tmp_path, 4)


def test_sentencepiece_merges_in_the_order_of_the_merges(tmp_path: Path) -> None:
    vocab = {"<0x0A>": 0, "▁": 1, "a": 2, "b": 3, "ab": 4, "▁a": 5}
    model = {"type": "BPE", "byte_fallback": True, "vocab": vocab}
    model["merges"] = [["▁", "a"], ["a", "b"]]
    prepend = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}]}
    folder = tokenizer(tmp_path, model=model, added_tokens=[], normalizer=prepend)
    found = read_vocabulary(folder, 6)
    assert (found.model, found.rule, found.space_prefix) == ("llama", "default", True)
    assert found.types[0] == "BYTE"
    assert found.scores is not None
    score = dict(zip(found.tokens, found.scores, strict=True))
    assert score["▁a"] > score["ab"] > score["a"]
    bare = tokenizer(tmp_path, model=model, added_tokens=[])
    assert read_vocabulary(bare, 6).space_prefix is False
