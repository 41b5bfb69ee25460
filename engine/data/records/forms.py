"""Describe in words which records each task reads, beginning with those most like given columns."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence

from ...config.tasks import FORMATS_OF

MOST_COLUMNS = 12
"""Columns that a text names."""
MOST_CHARACTERS = 40
"""Characters of a column's name that a text shows; without a header it can be a whole text."""
MOST_FORMS = 4
"""Forms of records that a text names."""

Form = tuple[tuple[str, ...], ...]
"""The columns of a record; each has the names by which it is known."""
_FORMS: dict[str, tuple[Form, ...]] = {
    "sft": (
        (("messages", "conversations"),),
        (("prompt",), ("completion", "response")),
        (("instruction",), ("output",)),
        (("question",), ("answer",)),
        (("text",),),
        (("input_ids",),),
    ),
    "contrastive": (
        (("anchor", "query", "question"), ("positive", "document", "passage", "answer")),
        (("sentence1", "text1"), ("sentence2", "text2")),
    ),
    "dpo": ((("prompt",), ("chosen",), ("rejected",)), (("chosen",), ("rejected",))),
    "reward": ((("chosen",), ("rejected",)), (("prompt",), ("chosen",), ("rejected",))),
    "kto": (
        (("prompt",), ("completion",), ("label",)),
        (("prompt",), ("chosen",), ("rejected",)),
    ),
}
"""The usual records of each task; docs/tasks.md has all of them."""
EVERY_FORM = "docs/tasks.md lists every kind of record"


def listed(columns: Collection[str]) -> str:
    """Return the names of columns as one text, `(none)` if there are none.

    Long names and long lists are shortened.
    """
    shown = [
        name if len(name) <= MOST_CHARACTERS else name[:MOST_CHARACTERS] + "…"
        for name in list(columns)[:MOST_COLUMNS]
    ]
    more = len(columns) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "") if shown else "(none)"


def nearest_forms(columns: Collection[str], task: str) -> str:
    """Describe the records that a task reads, beginning with those most like these columns."""
    found = [name.lower()[:MOST_CHARACTERS] for name in list(columns)[:100]]
    forms = sorted(_FORMS[task], key=lambda form: -_likeness(form, found))[:MOST_FORMS]
    return "; ".join(" + ".join("/".join(names) for names in form) for form in forms)


def tasks_of(form: str) -> list[str]:
    """Return the tasks that read a format."""
    return [task for task, formats in FORMATS_OF.items() if form in formats]


def _likeness(form: Form, columns: Sequence[str]) -> float:
    """Return how similar the names of a form's columns are to given columns, from 0 to 1."""
    best = [max((_ratio(a, b) for a in names for b in columns), default=0.0) for names in form]
    return sum(best) / len(best)


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()
