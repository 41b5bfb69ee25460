"""The search space of a sweep: the keys of a configuration that vary, and their values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fttui.engine.errors import ConfigError

FORM = "train.lr=1e-5..1e-3:log adapter.r=8,16,32"
MOST_POINTS = 100_000
"""Largest number of combinations that a grid may have."""
_OUTSIDE_BRACKETS = re.compile(r",(?![^\[{(]*[\]})])")

_PARENT_FOLDER = re.compile(r"(?:^|[,/\[\s])\.\.(?=[/,\]\s]|$)")
"""The part `..` of a path, which is not a range."""


@dataclass(frozen=True)
class Axis:
    """One key that varies: a list of values, or a range of numbers."""

    key: str
    word: str
    """The axis as it was typed."""
    choices: tuple[str, ...] = ()
    """The values as they were typed; empty for a range."""
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    """Whether the logarithm of the value is drawn evenly."""
    step: float | None = None
    """Distance of the values from `low` on; None for all numbers of the range."""
    whole: bool = False
    """Whether only whole numbers are drawn."""

    @property
    def values(self) -> tuple[str, ...] | None:
        """All values in their order; None for a range that has no step."""
        if self.choices:
            return self.choices
        step, count = self._distance, self.count
        if step is None or count is None:
            return None
        return tuple(self.text(_rounded(self.low + n * step)) for n in range(count))

    @property
    def count(self) -> int | None:
        """The number of values; None for a range that has no step."""
        if self.choices:
            return len(self.choices)
        step = self._distance
        return None if step is None else math.floor((self.high - self.low) / step + 1e-9) + 1

    @property
    def _distance(self) -> float | None:
        """Distance of the values of a range; None if it is not the same everywhere."""
        return self.step or (1.0 if self.whole and not self.log else None)

    @property
    def tried_first(self) -> tuple[str, ...]:
        """The values that are checked before a sweep: all choices, or both ends of a range."""
        return self.choices or (self.text(self.low), self.text(self.high))

    def text(self, value: float | str) -> str:
        """Return a value as it stands in the configuration, with all its digits."""
        if isinstance(value, str):
            return value
        return str(round(value)) if self.whole else repr(float(value))

    def shown(self, value: str) -> str:
        """Return a value for people: numbers of a range with three digits."""
        return value if self.choices or self.whole else f"{float(value):.3g}"


def _rounded(value: float) -> float:
    """Return a sum without the last digits, so that 0.1 + 2 × 0.1 is 0.3."""
    return float(f"{value:.12g}")


def parse_space(words: Sequence[str], whole: Callable[[str], bool]) -> tuple[Axis, ...]:
    """Return the axes that words such as `train.lr=1e-5..1e-3:log` name.

    Args:
        words: the words of the command line.
        whole: whether a key takes whole numbers only.

    Raises:
        ConfigError: a word is not valid, or a key is there twice.
    """
    axes: dict[str, Axis] = {}
    for word in words:
        axis = _axis(word, whole)
        if axis.key in axes:
            raise ConfigError(f"{axis.key} is given twice; give its values together: {FORM}")
        axes[axis.key] = axis
    if not axes:
        raise ConfigError(f"no settings to vary; for example: {FORM}")
    return tuple(axes.values())


def _axis(word: str, whole: Callable[[str], bool]) -> Axis:
    key, equals, text = word.partition("=")
    if not equals or not key or not text:
        raise ConfigError(f"got {word!r}, expected a key and its values, such as: {FORM}")
    if ".." in text and not _PARENT_FOLDER.search(text):
        return _range(key, word, text, whole(key))
    choices = tuple(value.strip() for value in _OUTSIDE_BRACKETS.split(text))
    if len(set(choices)) < len(choices):
        raise ConfigError(f"{word}: a value is there twice; remove one")
    if len(choices) < 2 or not all(choices):
        raise ConfigError(
            f"{word}: expected two values or more, or a range such as 1e-5..1e-3:log; give a "
            f"single value with --set {word}"
        )
    return Axis(key, word, choices)


def _range(key: str, word: str, text: str, whole: bool) -> Axis:
    ends, colon, how = text.partition(":")
    low, high = (_number(end, word) for end in ends.split("..", 1))
    log = how == "log"
    step = _number(how, word) if colon and not log else None
    if not low < high:
        raise ConfigError(f"{word}: expected a range from a lower to a higher number")
    if log and low <= 0:
        raise ConfigError(f"{word}: a logarithmic range must begin above 0")
    if step is not None and not 0 < step <= high - low:
        raise ConfigError(f"{word}: the step must be above 0 and fit into the range")
    if whole and any(not one.is_integer() for one in (low, high, step or 1.0)):
        raise ConfigError(f"{word}: {key} takes whole numbers only")
    return Axis(key, word, low=low, high=high, log=log, step=step, whole=whole)


def _number(text: str, word: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise ConfigError(
            f"{word}: got {text!r}, expected a number; a range is LOW..HIGH, with :log or a step, "
            "such as 1e-5..1e-3:log or 0..100:10"
        )
    return found


def points(space: Sequence[Axis]) -> int | None:
    """Return the number of combinations; None if a range without a step has no end of them."""
    counts = [axis.count for axis in space]
    known = [count for count in counts if count is not None]
    return math.prod(known) if len(known) == len(counts) else None


def label(space: Sequence[Axis], values: Mapping[str, str]) -> str:
    """Return the values of a trial in words, such as `lr 3.2e-4, r 16`."""
    last = [axis.key.rpartition(".")[2] for axis in space]
    names = last if len(set(last)) == len(last) else [axis.key for axis in space]
    return ", ".join(
        f"{name} {axis.shown(values[axis.key])}"
        for name, axis in zip(names, space, strict=True)
        if axis.key in values
    )
