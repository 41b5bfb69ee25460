"""Read labels as yes or no (matches, ratings); recognize missing ones and scores."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...errors import DataError

COMMON: Mapping[str, bool] = {
    **dict.fromkeys(("1", "+1", "true", "yes", "y", "positive"), True),
    **dict.fromkeys(("0", "-1", "false", "no", "n", "negative"), False),
}
RATINGS: Mapping[str, bool] = {
    **COMMON,
    **dict.fromkeys(("good", "desirable", "chosen", "preferred", "accepted", "accept"), True),
    **dict.fromkeys(("thumbs up", "thumbsup", "up", "like", "liked", "👍"), True),
    **dict.fromkeys(("bad", "undesirable", "rejected", "dispreferred", "reject"), False),
    **dict.fromkeys(("thumbs down", "thumbsdown", "down", "dislike", "disliked", "👎"), False),
}
"""Ratings of completions."""
MATCHES: Mapping[str, bool] = {
    **COMMON,
    **dict.fromkeys(("match", "same", "similar", "equivalent", "relevant", "entailment"), True),
    **dict.fromkeys(("duplicate", "paraphrase", "entails"), True),
    **dict.fromkeys(("no match", "different", "dissimilar", "not equivalent"), False),
    **dict.fromkeys(("irrelevant", "unrelated", "contradiction", "neutral"), False),
    **dict.fromkeys(("not entailment", "not duplicate", "not paraphrase"), False),
}
"""Labels of two texts."""
UNLABELLED = ("", "-", "none", "null", "nan", "n/a")
"""Words that stand for a missing label."""
_DECIMAL_COMMA = re.compile(r"\s*[+-]?(0?,\d+|\d+,(\d{1,2}|\d{4,}))\s*")
_VARIANTS = re.compile("[\ufe0f\U0001f3fb-\U0001f3ff]")
"""Variants of a symbol: as a picture, and tones of skin."""


def remedy_of(value: Any) -> str:
    """Return what to do about a value of the wrong type.

    Values that JSON does not have come from a typed column, so that all its rows have the type.
    """
    if isinstance(value, bytes):
        return "decode the values of the column to text"
    if value is None or isinstance(value, str | bool | int | float | Mapping | Sequence):
        return "correct this row"
    return "cast the values of the column to text"


def is_missing(label: Any) -> bool:
    """Whether a label is null, NaN or empty."""
    return label in (None, "") or (isinstance(label, float) and math.isnan(label))


def is_unlabelled(label: Any) -> bool:
    """Whether a label is missing or is a word for a missing label, such as `n/a`."""
    word = isinstance(label, str) and label.strip().lower() in UNLABELLED
    return is_missing(label) or word


def are_fractions(labels: Iterable[Any]) -> bool:
    """Whether all labels are numbers or missing, and at least one number has a fraction.

    Numbers may be written as text.
    """
    numbers = [number_of(label) for label in labels if not is_missing(label)]
    known = [number for number in numbers if number is not None]
    return len(known) == len(numbers) and any(not number.is_integer() for number in known)


def number_of(label: Any) -> float | None:
    """Return a label as a finite number; None for other values, also for true and false.

    A decimal comma is read unless it can also separate thousands, as in `1,234`.
    """
    if isinstance(label, bool):
        return None
    if isinstance(label, str) and _DECIMAL_COMMA.fullmatch(label):
        label = label.replace(",", ".")
    try:
        number = float(label)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


class UnclearLabel(DataError):
    """The labels of a source can mean several things, which the user has to decide for all."""


class YesNoLabels:
    """Decides which labels of one source are positive.

    Args:
        words: Label → whether it is positive, used unless `yes` is given.
        yes: The positive labels, as configured; all others are negative. None: `words` decides.
        what: What a positive label says, for error messages, such as `that the texts match`.
    """

    def __init__(self, words: Mapping[str, bool], yes: Sequence[Any] | None, what: str) -> None:
        self._words = words
        self._yes = None if yes is None else {_key(one) for one in yes}
        self._what = what
        self._noes: dict[str, str] = {}
        """Place of the first 0 and the first -1."""

    @property
    def configured(self) -> bool:
        """Whether the positive labels are configured."""
        return self._yes is not None

    def says_yes(self, label: Any, column: str, place: str) -> bool:
        """Return whether a label is positive; the first places of 0 and -1 are remembered.

        Raises:
            UnclearLabel: No positive labels are configured, and the label is not a known word or
                the source has both 0 and -1.
        """
        key = _key(label)
        if self._yes is not None:
            return key in self._yes
        found = self._words.get(key)
        if found is None:
            raise self._unclear(f"{place}: column '{column}': the label {label!r} is unknown")
        if key in ("0", "-1"):
            self._noes.setdefault(key, place)
        if len(self._noes) == 2:
            raise self._unclear(
                f"column '{column}' has labels 0 ({self._noes['0']}) and -1 ({self._noes['-1']}), "
                "of which one may be neutral"
            )
        return found

    def _unclear(self, problem: str) -> UnclearLabel:
        return UnclearLabel(
            f"{problem}; set data.yes_labels to the labels that say {self._what}, such as [1]; "
            "all other labels are negative, so remove rows that are neither"
        )


def _key(label: Any) -> str:
    """Return a label as text; equal labels of JSON, tables and Parquet files give equal texts."""
    if isinstance(label, bool):
        return str(int(label))
    if isinstance(label, float) and label.is_integer():
        return str(int(label))
    text = _VARIANTS.sub("", str(label)).strip().lower()
    if re.fullmatch(r"[+-]?\d+\.0+", text):
        text = text.partition(".")[0]
    return re.sub(r"[\s_-]+", " ", text) if re.search(r"[^\W\d]", text) else text


def yes_no_columns(labels: Mapping[str, Iterable[Any]]) -> list[str]:
    """Return the columns that look like labels: a few different short values, repeated."""
    return [name for name, values in labels.items() if _like_labels(list(values))]


def _like_labels(values: list[Any]) -> bool:
    plain = all(isinstance(one, bool | int | float | str) for one in values)
    if not plain or any(isinstance(one, str) and len(one) > 32 for one in values):
        return False
    return 2 <= len({_key(one) for one in values}) <= min(10, len(values) // 2)
