"""Find the characters of each token for a tokenizer without offsets: exactly, or not at all.

Three methods are tried. (1) transformers converts the tokenizer to a fast one; if that gives the
same ids, its offsets are used. (2) The tokens are decoded one by one; if their texts joined are the
text, each token has its place. (3) Only the edges of targets are placed: the text before an edge is
tokenized, and if its ids are a prefix of the ids of the whole text, the edge is after that prefix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

WINDOW = 6
"""Tokens before a token that are decoded with it, because its text may depend on them."""
FARTHEST = 48
"""Characters on each side of an edge in which the token across it must begin and end."""
_INCOMPLETE = "\ufffd"
"""What decoding writes for bytes that are not a whole character yet."""
_Span = tuple[int, int]


class AlignedTokenizer(Protocol):
    """The used part of a transformers tokenizer."""

    def __call__(self, text: list[str], **options: Any) -> Mapping[str, Any]:
        """Return the token ids of several texts."""
        ...

    def decode(self, token_ids: list[int], **options: bool) -> str:
        """Return the text of token ids."""
        ...


class Aligner:
    """Finds the characters of each token.

    Args:
        tokenizer: A tokenizer without offsets.
    """

    def __init__(self, tokenizer: AlignedTokenizer) -> None:
        self._tokenizer = tokenizer
        self._fast = _converted(tokenizer)

    def offsets(self, text: str, ids: list[int], edges: Sequence[int]) -> list[_Span] | None:
        """Return (start, end) of the characters of each token; None if they cannot be exact.

        Several tokens between two edges may all have the characters of the whole stretch between
        them.

        Args:
            text: The text.
            ids: Its tokens, which may begin and end with tokens that the tokenizer added.
            edges: Characters at which targets begin or end.
        """
        body = self._ids(text)
        first = _position(body, ids)
        if first is None:
            return None
        inner = [edge for edge in edges if 0 < edge < len(text)]
        found = [(0, len(text))] * len(body) if not inner else self._placed(text, body, inner)
        if found is None:
            return None
        behind = len(ids) - first - len(body)
        return [*[(0, 0)] * first, *found, *[(len(text), len(text))] * behind]

    def _placed(self, text: str, body: list[int], edges: Sequence[int]) -> list[_Span] | None:
        found = self._of_fast(text, body) or self._decoded(text, body)
        return found or self._between_edges(text, body, edges)

    def _ids(self, text: str) -> list[int]:
        encoded = self._tokenizer([text], add_special_tokens=False, truncation=False, verbose=False)
        ids: list[int] = encoded["input_ids"][0]
        return ids

    def _of_fast(self, text: str, body: list[int]) -> list[_Span] | None:
        if self._fast is None:
            return None
        encoded = self._fast.encode(text, add_special_tokens=False)
        return [(a, b) for a, b in encoded.offsets] if encoded.ids == body else None

    def _decoded(self, text: str, body: list[int]) -> list[_Span] | None:
        """Return the offsets of decoded tokens; None unless their texts joined are the text."""
        found: list[_Span] = []
        reached = 0
        waiting = 0
        """Tokens whose bytes are not a whole character yet."""
        for number in range(len(body)):
            start = max(0, number - waiting - WINDOW)
            before = self._text(body[start : number - waiting])
            through = self._text(body[start : number + 1])
            piece = through[len(before) :]
            if _INCOMPLETE in piece and not text.startswith(piece, reached):
                waiting += 1
                continue
            if not through.startswith(before) or not text.startswith(piece, reached):
                return None
            found += [(reached, reached + len(piece))] * (waiting + 1)
            reached, waiting = reached + len(piece), 0
        return found if reached == len(text) and not waiting else None

    def _text(self, ids: list[int]) -> str:
        return self._tokenizer.decode(
            ids,
            skip_special_tokens=False,
            clean_up_tokenization_spaces=False,
            spaces_between_special_tokens=False,
        )

    def _between_edges(
        self, text: str, body: list[int], edges: Sequence[int]
    ) -> list[_Span] | None:
        """Return offsets that are exact at the edges; tokens between two edges share the same.

        None if the tokens around an edge are not found.
        """
        places: dict[int, int] = {0: 0, len(text): len(body)}
        for edge in sorted(set(edges)):
            known = self._around(text, body, edge)
            if known is None:
                return None
            places |= known
        stretches = sorted(places.items())
        found: list[_Span] = []
        for (start, first), (end, last) in pairwise(stretches):
            if last < first:
                return None
            found += [(start, end)] * (last - first)
        return found

    def _around(self, text: str, body: list[int], edge: int) -> dict[int, int] | None:
        """Return {position: number of tokens before it} for an edge between characters.

        If the edge is inside a token, these are both ends of that token. None unless they are
        found less than `FARTHEST` characters away with exactly one token between them.

        Args:
            text: the text that was tokenized.
            body: its token ids.
            edge: a position in the text.
        """
        exact = self._tokens_before(text, body, edge)
        if exact is not None:
            return {edge: exact}
        lower = self._nearest(text, body, range(edge - 1, max(-1, edge - FARTHEST), -1))
        upper = self._nearest(text, body, range(edge + 1, min(len(text) + 1, edge + FARTHEST)))
        if lower is None or upper is None or upper[1] != lower[1] + 1:
            return None
        return dict([lower, upper])

    def _nearest(self, text: str, body: list[int], places: range) -> tuple[int, int] | None:
        counts = ((place, self._tokens_before(text, body, place)) for place in places)
        return next(((place, count) for place, count in counts if count is not None), None)

    def _tokens_before(self, text: str, body: list[int], place: int) -> int | None:
        """Return the number of tokens before a position; None if the position is inside a token."""
        if place in (0, len(text)):
            return len(body) if place else 0
        before = self._ids(text[:place])
        if body[: len(before)] != before:
            return None
        # A token for anything, such as an unknown word, has the same id when the word is cut.
        more = text[place : place + 1].strip() and self._ids(text[: place + 1]) == before
        return None if more else len(before)


def _position(body: list[int], ids: list[int]) -> int | None:
    """Return the index in `ids` at which the tokens `body` begin; None if they are not in it."""
    lasts = range(len(ids) - len(body) + 1)
    return next((n for n in lasts if ids[n : n + len(body)] == body), None)


def _converted(tokenizer: Any) -> Any:
    """Return the fast tokenizer to which transformers converts one; None if it cannot."""
    from transformers.convert_slow_tokenizer import convert_slow_tokenizer  # deferred: slow

    try:
        fast = convert_slow_tokenizer(tokenizer)
        fast.no_padding()
        fast.no_truncation()
    except Exception:  # noqa: BLE001  # converters raise any exception for other tokenizers
        return None
    return fast
