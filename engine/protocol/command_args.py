"""Reading the words of a command as a person types them."""

from __future__ import annotations

import math


class CommandError(ValueError):
    """A command text that cannot be understood; the message names the expected form."""


_LARGEST_NUMBER = 1e6
_LARGEST_COUNT = 10_000_000
"""Beyond these a value is a slip of the finger, and some would overflow what they are put into."""


def number(text: str, what: str, *, low: float = 0.0, strict: bool = True) -> float:
    """A finite number within sense."""
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
    """A whole number from 1 on."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise CommandError(f"{what} must be a whole number ≥ 1, got {text!r}")
    if len(text) > 12 or int(text) > _LARGEST_COUNT:
        raise CommandError(f"{what} must be ≤ {_LARGEST_COUNT:,}, got {text}")
    return int(text)


def one(args: list[str], what: str) -> str:
    """The only word."""
    if len(args) != 1:
        raise CommandError(f"needs {what}, got {' '.join(args) or 'nothing'!r}")
    return args[0]


def text_of(args: list[str], what: str) -> str:
    """All words, as one text."""
    if not args:
        raise CommandError(f"needs {what}")
    return " ".join(args)
