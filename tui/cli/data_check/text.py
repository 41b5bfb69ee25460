"""Print records as the model sees them: targets in colour, or between « and » without colours."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING

from ...text.control_characters import escape_control_characters
from ..options import say
from ..output import styled

if TYPE_CHECKING:
    from rich.text import Text

    from fttui.engine.protocol.data.sample import SampleRecord, SampleText

LEARNED = "bold green"
OTHER = "dim"
IGNORED = -100
"""Label of a token that is not a target."""


def print_record(record: SampleRecord) -> None:
    """Print a record as the model sees it.

    Targets are coloured on a terminal, or between « and » if NO_COLOR is set or there is none.
    """
    from rich.console import Console  # deferred: only this output needs it

    console = Console(highlight=False, soft_wrap=True, file=styled(sys.stdout))
    coloured = console.color_system is not None and not os.environ.get("NO_COLOR")
    for line in record_text(record, marks=not coloured):
        if coloured:
            console.print(line)
        else:
            say(line.plain)


def record_text(record: SampleRecord, *, marks: bool) -> Iterator[Text]:
    """Yield a record as the model sees it: its place, its notes, its texts and their tokens.

    Args:
        record: The record.
        marks: Whether to put targets between « and ».
    """
    from rich.text import Text

    own_id = "" if _only_counts(record) else f" ({record.id})"
    yield Text(escape_control_characters(f"── {record.place}{own_id}"))
    for note in record.notes:
        yield Text(escape_control_characters(f"   {note}"), style="yellow")
    if not record.texts:
        yield Text("   this record is not learned")
    for text in record.texts:
        share = f"{text.learned:,} of {text.tokens:,} tokens are targets"
        yield Text(escape_control_characters(f"[{text.name}] {share}"))
        yield _spans(text, marks=marks)
        if text.token_list:
            yield _tokens(text)


def _only_counts(record: SampleRecord) -> bool:
    """Whether the id of a record is made of the file name and a number, not taken from the data."""
    file = PurePath(record.place.rpartition(":")[0])
    made = rf"({re.escape(file.stem)}|{re.escape(file.parent.name)}):\d+"
    return record.id == record.place or re.fullmatch(made, record.id) is not None


def _spans(text: SampleText, *, marks: bool) -> Text:
    from rich.text import Text

    shown = Text()
    for span in text.spans:
        opening, closing = ("«", "»") if marks and span.learned else ("", "")
        shown.append(
            f"{opening}{escape_control_characters(span.text)}{closing}{span.mark}",
            LEARNED if span.learned else OTHER,
        )
    if text.left_out:
        shown.append(f" … {text.left_out:,} more characters")
    return shown


def _tokens(text: SampleText) -> Text:
    """Return a table of the tokens: position, id, label or –, and the vocabulary's spelling."""
    from rich.text import Text

    shown = Text(f"{'position':>8} {'id':>8} {'label':>8}  token")
    for position, token in enumerate(text.token_list):
        learned = token.label != IGNORED
        label = f"{token.label}" if learned else "–"
        name = escape_control_characters(token.text).replace("\n", "\\n")
        weight = f"  (weight {token.weight:g})" if token.weight != 1 else ""
        row = f"\n{position:>8} {token.id:>8} {label:>8}  {name}{weight}"
        shown.append(row, LEARNED if learned else OTHER)
    return shown
