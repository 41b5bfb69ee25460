"""Truncate token sequences and close them with an end-of-sequence token (EOS)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...errors import DataError
from .encoding import Encoder, Offsets, PlacedText


@dataclass(frozen=True)
class SequenceEnding:
    """Largest length of a sequence, and the EOS that closes it."""

    max_length: int
    eos: int | None

    def close(self, ids: list[int]) -> Closed:
        """Truncate the ids so that they end with one EOS; without an EOS, only truncate them."""
        end = len(ids)
        while self.eos is not None and end and ids[end - 1] == self.eos:
            end -= 1
        body = ids[:end]
        tail = [] if self.eos is None else [self.eos]
        kept = body[: self.max_length - len(tail)]
        return Closed(kept + tail, len(kept), len(body) > len(kept), len(ids) - end > 1)


@dataclass(frozen=True)
class Closed:
    """A truncated and closed sequence."""

    ids: list[int]
    kept: int
    """Number of its text tokens; an EOS may follow."""
    cut: bool
    several: bool = False
    """Whether the text ended with several EOS, of which one is kept."""


def embedded_ids(
    texts: Sequence[str], before: str, encode: Encoder, eos: int | None, max_length: int
) -> Iterator[tuple[list[int], int]]:
    """Yield the token ids of texts as they are embedded, and how many belong to `before`.

    Args:
        texts: The texts.
        before: The instruction before each of them.
        encode: Encodes texts.
        eos: Id of the EOS that closes a text; None without one.
        max_length: Largest number of tokens.

    Raises:
        DataError: The tokenizer does not take a text.
    """
    ending = SequenceEnding(max_length, eos)
    placed = [PlacedText(before + text, "", (len(before),) if before else ()) for text in texts]
    for one in encode(placed, special=True):
        if one.refused:
            raise DataError(one.refused)
        closed = ending.close(one.ids)
        yield closed.ids, prompt_tokens((one.offsets or [])[: closed.kept], len(before))


def prompt_tokens(offsets: Offsets, characters: int) -> int:
    """Return how many leading tokens lie within the first `characters` of a text."""
    if characters == 0:
        return 0
    return next((n for n, (_, end) in enumerate(offsets) if end > characters), len(offsets))
