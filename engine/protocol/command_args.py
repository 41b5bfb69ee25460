"""Parse the arguments of a command as a person types them, and list the names that exist."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from difflib import SequenceMatcher


class CommandError(ValueError):
    """The text of a command cannot be parsed; the message names the expected form."""


_LARGEST_NUMBER = 1e6
_LARGEST_COUNT = 10_000_000
"""Larger values are typing errors, and some would overflow where they are used."""


def number(text: str, what: str, *, low: float = 0.0, strict: bool = True) -> float:
    """Parse a number above `low` (or equal to it, when not `strict`) and up to 1,000,000.

    Raises:
        CommandError: with `what` and the bound that is missed.
    """
    try:
        value = float(text)
    except ValueError:
        raise CommandError(f"{what} must be a number, got {text!r}") from None
    if value > _LARGEST_NUMBER:
        raise CommandError(f"{what} must be ≤ {_LARGEST_NUMBER:g}, got {text}")
    if not math.isfinite(value) or value < low or (strict and value == low):
        raise CommandError(f"{what} must be {'>' if strict else '≥'} {low:g}, got {text}")
    return value


def count(text: str, what: str) -> int:
    """Parse a whole number from 1 to 10,000,000.

    Raises:
        CommandError: with `what` and the bound that is missed.
    """
    digits = text.lstrip("0")
    if not (text.isascii() and text.isdigit() and digits):
        raise CommandError(f"{what} must be a whole number ≥ 1, got {text!r}")
    # The length first: Python converts no text of thousands of digits.
    if len(digits) > 12 or int(digits) > _LARGEST_COUNT:
        raise CommandError(f"{what} must be ≤ {_LARGEST_COUNT:,}, got {text}")
    return int(digits)


def one(args: list[str], what: str) -> str:
    """Return the only argument of a command; raises CommandError unless there is exactly one."""
    if len(args) != 1:
        got = repr(" ".join(args)) if args else "nothing"
        raise CommandError(f"needs {what}, got {got}")
    return args[0]


def text_of(args: list[str], what: str) -> str:
    """Return all arguments of a command as one text; raises CommandError if there is none."""
    if not args:
        raise CommandError(f"needs {what}")
    return " ".join(args)


_ALL, _NEAR = 8, 4
"""Up to the first number, all names are listed; of more, as many as the second number."""
_NUMBER = re.compile(r"[0-9]{1,15}")


def existing(wanted: str, names: Sequence[str], kind: str) -> str:
    """Return the names that exist in place of one that does not, such as `existing anomalies: …`.

    Of many names it lists the most similar ones in their order, with the number of all. If the
    names and what is wanted hold numbers, the nearest numbers are the most similar.

    Args:
        wanted: the name that does not exist.
        names: the names that exist.
        kind: what they are, in the plural.
    """
    if len(names) <= _ALL:
        return f"existing {kind}: {', '.join(names) or 'none yet'}"
    near = sorted(range(len(names)), key=lambda at: _distance(wanted, names[at]))[:_NEAR]
    shown = ", ".join(names[at] for at in sorted(near))
    return f"nearest of {len(names):,} {kind}: {shown}"


def _distance(wanted: str, name: str) -> tuple[int, float]:
    mine, its = _NUMBER.search(wanted), _NUMBER.search(name)
    apart = abs(int(mine[0]) - int(its[0])) if mine and its else 0
    return apart, -SequenceMatcher(None, wanted[:100], name).ratio()
