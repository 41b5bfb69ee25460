"""Tokenized records, and weights of tokens: a list beside them, or ranges of characters of a text.

- tokens: `input_ids`, and optionally `labels` (-100 where no loss is taken) or a mask of targets
  (`completion_mask`, `assistant_masks`), `attention_mask` and `weights`, all equally long.
- `weights` beside text: [[start, end, weight], …] in characters of the text or the completion.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, pairwise
from typing import Any, NoReturn

from ...errors import DataError
from .labels import number_of

IDS, WEIGHTS = "input_ids", "weights"
IGNORED = -100
_MASKS = ("completion_mask", "assistant_masks")
"""Columns of 1 for targets and 0 for other tokens, as TRL writes them."""

Range = tuple[int, int, float]
"""First character, the one after the last, and the factor on the loss of the tokens there."""


@dataclass(frozen=True)
class TokensRecord:
    """A tokenized text."""

    id: str
    input_ids: list[int]
    labels: list[int] | None = None
    """One label per token, not shifted; None: every token is a target."""
    weights: list[float] | None = None
    """Factor on the loss of each token; None if all are 1."""
    weight: float = field(default=1.0, kw_only=True)
    """Factor on the loss of the record."""
    place: str = field(default="", kw_only=True, compare=False)
    """Where the record is stored, such as `train.jsonl:7`; empty if built in memory."""


def tokens_record(values: Mapping[str, Any], identity: str, place: str) -> TokensRecord:
    """Return the tokenized text of a row; tokens that its attention mask hides are left out.

    Raises:
        DataError: A column is no list of numbers, or not as long as the token ids.
    """
    row = _TokenRow(values, place)
    ids = row.whole(IDS)
    labels = row.whole("labels") if row.has("labels") else row.masked(ids)
    weights = row.weights() if row.has(WEIGHTS) else None
    if row.has("attention_mask"):
        seen = row.whole("attention_mask")
        ids = list(compress(ids, seen))
        labels = None if labels is None else list(compress(labels, seen))
        weights = None if weights is None else list(compress(weights, seen))
    return TokensRecord(identity, ids, labels, weights, place=place)


def ranges_of(value: Any, length: int, place: str) -> tuple[Range, ...]:
    """Return the weights of ranges of a text, in order; none for a missing or empty value.

    Args:
        value: what the column `weights` holds.
        length: number of characters of the text.
        place: where the row is.

    Raises:
        DataError: It is no list of ranges within the text, two overlap, or a weight is none.
    """
    if value in (None, "", []):
        return ()
    given = _decoded(value)
    if not isinstance(given, Sequence) or isinstance(given, str):
        _wrong(place, value, "a list of [first character, end, weight]")
    found = sorted(_range(one, length, place) for one in given)
    for before, after in pairwise(found):
        if after[0] < before[1]:
            _wrong(place, list(after), f"ranges that do not overlap; {list(before)} does")
    return tuple(found)


def _range(one: Any, length: int, place: str) -> Range:
    if not isinstance(one, Sequence) or isinstance(one, str) or len(one) != 3:
        _wrong(place, one, "[first character, end, weight]")
    start, end = (int(n) if isinstance(n, int | float) and n == int(n) else -1 for n in one[:2])
    if not 0 <= start < end <= length:
        _wrong(place, one, f"a range within the {length:,} characters of the text")
    return start, end, _factor(one[2], place)


def _factor(value: Any, place: str) -> float:
    found = None if isinstance(value, bool) else number_of(value)
    if found is None or found < 0:
        _wrong(place, value, "a finite weight of 0 or more")
    return found


def _decoded(value: Any) -> Any:
    """Return a list that is given as JSON text; other values as they are."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _wrong(place: str, got: Any, expected: str) -> NoReturn:
    raise DataError(
        f"{place}: column '{WEIGHTS}': got {str(got)[:60]}, expected {expected}; correct this row, "
        f"or set data.columns: {{{WEIGHTS}: null}} if the column is not a factor on the loss"
    )


@dataclass(frozen=True)
class _TokenRow:
    """A row with columns of one value per token."""

    values: Mapping[str, Any]
    place: str

    def has(self, name: str) -> bool:
        """Whether the row has a value in a column."""
        return self.values.get(name) is not None

    def whole(self, name: str) -> list[int]:
        """Return a column of whole numbers, one for each token."""
        found = _decoded(self.values.get(name))
        whole = isinstance(found, Sequence) and all(
            isinstance(one, int) and (name != IDS or one >= 0) for one in found
        )
        if not whole or isinstance(found, str):
            kind = "token ids" if name == IDS else "whole numbers"
            self._wrong(name, f"a list of {kind}")
        return self._aligned(name, [int(one) for one in found])

    def masked(self, ids: list[int]) -> list[int] | None:
        """Return labels by the masks of the row; None if it has none."""
        masks = [self.whole(name) for name in _MASKS if self.has(name)]
        if not masks:
            return None
        wanted = [all(ones) for ones in zip(*masks, strict=True)]
        return [one if use else IGNORED for one, use in zip(ids, wanted, strict=True)]

    def weights(self) -> list[float]:
        """Return the factor on the loss of each token."""
        found = _decoded(self.values.get(WEIGHTS))
        if not isinstance(found, Sequence) or isinstance(found, str):
            self._wrong(WEIGHTS, "a list of one weight per token")
        return self._aligned(WEIGHTS, [_factor(one, self.place) for one in found])

    def _aligned(self, name: str, found: list[Any]) -> list[Any]:
        tokens = _decoded(self.values.get(IDS))
        count = len(tokens) if isinstance(tokens, Sequence) else 0
        if len(found) != count:
            self._wrong(name, f"{count:,} values, one for each of {IDS}, and not {len(found):,}")
        return found

    def _wrong(self, name: str, expected: str) -> NoReturn:
        got = str(self.values.get(name))[:60]
        raise DataError(
            f"{self.place}: column '{name}': got {got}, expected {expected}; correct this row"
        )
