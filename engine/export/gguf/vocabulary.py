"""Read the vocabulary of an exported tokenizer as GGUF stores it.

llama.cpp does not read the rule by which a tokenizer splits text before its merges: the file names
one of the rules that llama.cpp knows. So a rule is only named if it is the same to the letter.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import ModelError

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{{0}}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{{0}}"
)
_CASED_REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_BY_REGEX = {
    rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}": "llama-bpe",
    rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}": "qwen2",
    _CASED.replace("{0}", _CONTRACTIONS + "?") + rf"|\p{{N}}{{1,3}}|{_CASED_REST}": "gpt-4o",
    _CASED.replace("{0}", "") + rf"|\p{{N}}|{_CASED_REST}": "tekken",
}
"""Names in llama.cpp of rules that are one regular expression, before the bytes are mapped."""


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a model by id, with the data that GGUF has for each."""

    model: str
    """`gpt2` for byte-level BPE, `llama` for the BPE of sentencepiece."""
    rule: str
    """Name in llama.cpp of the rule that splits text before the merges."""
    tokens: list[str]
    types: list[str]
    """Name of the GGUF token type of each token: NORMAL, CONTROL, USER_DEFINED, BYTE, UNUSED."""
    scores: list[float] | None
    """Of the tokens of sentencepiece: the higher, the earlier it is merged."""
    space_prefix: bool | None
    """Whether sentencepiece puts a space before a text; None for byte-level BPE."""


def read_vocabulary(folder: Path, rows: int) -> Vocabulary:
    """Read the tokenizer of an exported model.

    Args:
        folder: The exported model.
        rows: Of its embedding matrix; rows without a token become unused tokens.

    Raises:
        ModelError: The tokenizer is not a BPE that llama.cpp is known to repeat.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError("the tokenizer has no tokenizer.json, from which GGUF is written")
    content = json.loads(path.read_text(encoding="utf-8"))
    model = content["model"]
    if model.get("type") != "BPE":
        raise ModelError(f"the tokenizer is a {model.get('type')} model; fttui writes BPE only")
    by_bytes = not model.get("byte_fallback")
    tokens, types = _tokens(content, rows, bytes_as_tokens=not by_bytes)
    if by_bytes:
        rule = _splitting_rule(content)
        return Vocabulary("gpt2", rule, tokens, types, None, None)
    return Vocabulary("llama", "default", tokens, types, _scores(model, tokens), _prefixed(content))


def _tokens(
    content: dict[str, Any], rows: int, *, bytes_as_tokens: bool
) -> tuple[list[str], list[str]]:
    """Return the tokens and the names of their types, both by id.

    Raises:
        ModelError: The tokenizer has an id beyond the rows of the embedding matrix.
    """
    known = {number: token for token, number in content["model"]["vocab"].items()}
    added = {one["id"]: one for one in content.get("added_tokens", ())}
    known |= {number: one["content"] for number, one in added.items()}
    if known and max(known) >= rows:
        raise ModelError(
            f"the tokenizer has the id {max(known)}, but the embedding has {rows} rows"
        )
    tokens, types = [], []
    for number in range(rows):
        token = known.get(number)
        tokens.append(f"[PAD{number}]" if token is None else token)
        if token is None:
            types.append("UNUSED")
        elif number in added:
            types.append("CONTROL" if added[number].get("special") else "USER_DEFINED")
        elif bytes_as_tokens and _BYTE_TOKEN.fullmatch(token):
            types.append("BYTE")
        else:
            types.append("NORMAL")
    return tokens, types


def _scores(model: dict[str, Any], tokens: list[str]) -> list[float]:
    """Return a score for each token, so that sentencepiece merges in the order of the merges.

    Tokens that no merge makes have the lowest score.
    """
    rank: dict[str, int] = {}
    for number, merge in enumerate(model["merges"]):
        left, right = merge if isinstance(merge, list) else merge.split(" ", 1)
        rank.setdefault(left + right, number)
    last = len(rank)
    return [-float(rank.get(token, last)) for token in tokens]


def _prefixed(content: dict[str, Any]) -> bool:
    """Return whether a text is read as if a space stood before it."""
    parts = _parts(content.get("normalizer"), "normalizers")
    parts += _parts(content.get("pre_tokenizer"), "pretokenizers")
    schemes = [one.get("prepend_scheme") for one in parts if one.get("type") == "Metaspace"]
    prepends = any(one.get("type") == "Prepend" for one in parts)
    return prepends or any(scheme not in (None, "never") for scheme in schemes)


def _splitting_rule(content: dict[str, Any]) -> str:
    """Return the name in llama.cpp of the splitting rule of a byte-level tokenizer.

    Raises:
        ModelError: The tokenizer normalizes other than by NFC, or its rule is not known.
    """
    parts = _parts(content.get("pre_tokenizer"), "pretokenizers")
    normalizers = [one["type"] for one in _parts(content.get("normalizer"), "normalizers")]
    if normalizers not in ([], ["NFC"]):
        raise ModelError(f"the tokenizer normalizes with {', '.join(normalizers)}")
    rule = _rule_of(parts)
    if rule is None:
        raise ModelError("fttui knows no rule of llama.cpp that splits words like this tokenizer")
    return rule


def _rule_of(parts: list[dict[str, Any]]) -> str | None:
    """Return the name of a splitting rule; None if it is unknown."""
    match [one.get("type") for one in parts]:
        case ["ByteLevel"] if _is_gpt2(parts[0]):
            return "gpt-2"
        case ["Digits", "ByteLevel"] if parts[0].get("individual_digits") and _is_gpt2(parts[1]):
            return "smollm"
        case ["Split", "ByteLevel"] if _splits_only(*parts):
            return _BY_REGEX.get(parts[0]["pattern"].get("Regex", ""))
    return None


def _is_gpt2(part: dict[str, Any]) -> bool:
    return bool(part.get("use_regex", True)) and not part.get("add_prefix_space")


def _splits_only(split: dict[str, Any], byte_level: dict[str, Any]) -> bool:
    plain = not byte_level.get("use_regex", True) and not byte_level.get("add_prefix_space")
    return plain and split.get("behavior") == "Isolated" and not split.get("invert")


def _parts(part: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    """Return the parts of a sequence, or the part itself; none for null."""
    if part is None:
        return []
    return list(part[key]) if part.get("type") == "Sequence" else [part]
