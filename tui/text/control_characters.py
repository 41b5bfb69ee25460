"""Make text from data, models or files safe to show in a terminal.

A terminal obeys control characters: they move the cursor, set the window title or fill the
clipboard. Characters that change the direction of text or are invisible make a text look like
another one.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_UNSAFE = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and line feed
    "\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0\ufff0-\ufff8\ufffe\uffff"  # drawn as nothing
    "\xad\u061c\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # invisible
    "\ud800-\udfff"  # halves of characters, which no encoding can write
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff"  # tags, an invisible alphabet
    "]"
)
_UNSAFE_IN_LINE = re.compile(f"{_UNSAFE.pattern}|[\n\t]")


def escape_control_characters(text: str) -> str:
    r"""Return a text in which control and invisible characters are replaced by escapes (`\x1b`).

    Newlines and tabs are kept.
    """
    return _UNSAFE.sub(_escaped, text)


def one_line(text: str) -> str:
    """Return a text on one line, in which newlines and tabs are escapes too.

    All other characters are treated as by `escape_control_characters`.
    """
    return escape_control_characters(text).replace("\n", "\\n").replace("\t", "\\t")


def replace_unsafe(text: str, replacement: Callable[[str], str]) -> str:
    """Return a text with each control or invisible character c replaced by `replacement(c)`.

    Newlines and tabs are replaced too.
    """
    if text.isascii() and text.isprintable():
        return text
    return _UNSAFE_IN_LINE.sub(lambda found: replacement(found[0]), text)


def escape_in_json(text: str) -> str:
    r"""Return JSON text with control and invisible characters replaced by escapes (`\u202e`)."""
    return _UNSAFE.sub(_json_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def _json_escaped(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[n : n + 2].hex()}" for n in range(0, len(units), 2))
