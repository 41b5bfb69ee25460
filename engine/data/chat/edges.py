"""Compare the beginnings of texts, to find where the generation prompt before a turn ends."""

from __future__ import annotations


def common(one: str, other: str) -> str:
    """Return the longest common prefix of two texts."""
    length = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        length += 1
    return one[:length]


def shared_beginning(text: str, prompt: str) -> tuple[int, bool]:
    """Compare the beginning of a text with a prompt, ignoring differences in white space.

    Returns:
        (length of the part of `text` that agrees with the prompt, whether there is no difference up
        to the end of the prompt or of the text).
    """
    if text.startswith(prompt):
        return len(prompt), True
    length = place = 0
    while True:
        blank = len(text[length:]) - len(text[length:].lstrip())
        skipped = len(prompt[place:]) - len(prompt[place:].lstrip())
        if place + skipped == len(prompt):
            return length + (blank if skipped else 0), True
        after = length + blank
        if after >= len(text):
            return length + (blank if skipped else 0), True
        if text[after] != prompt[place + skipped]:
            return length + len(common(text[length:after], prompt[place:])), False
        length, place = after + 1, place + skipped + 1


def without_cut_tag(text: str) -> str:
    """Return a text without an incomplete tag at its end, such as `<thi`."""
    for opens, closes in ("<>", "[]"):
        place = text.rfind(opens)
        if place > text.rfind(closes):
            text = text[:place]
    return text


def without_cut_word(text: str, whole: str) -> str:
    """Return `text`, which is a prefix of `whole`, without an incomplete word at its end."""
    if not (text[-1:].isalnum() and whole[len(text) : len(text) + 1].isalnum()):
        return text
    return text.rstrip("".join({letter for letter in text if letter.isalnum()}))
