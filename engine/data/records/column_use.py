"""Follows which columns of a source are read, to report the others."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ...config.data_reasons.reason import Reason
from ...config.data_reasons.rows import IGNORED_COLUMNS, MEDIA_COLUMNS, UNUSED_COLUMNS
from ...config.tasks import Format
from ..findings import Findings
from .formats import Record, TextRecord, to_record
from .messages import MessageRules, is_media
from .turns import ANSWERS

MEANINGFUL = frozenset(
    {
        *("tools", "functions", "system", "system_prompt", "history", "label", "labels"),
        *("score", "chosen", "rejected", "reasoning", "reasoning_content", "thinking"),
        *("weight", "weights", "context", "negative", "negatives", "neg", "hard_negatives"),
        "chat_template_kwargs",
    }
)
"""Columns that change what should be learned; leaving them unused needs the user's consent."""
MEANINGFUL_BESIDE: Mapping[str, frozenset[str]] = {
    "text": frozenset({*ANSWERS, "role", "parent_id"}),
    "pairs": frozenset(
        {
            *("prompt", "instruction", "relevance", "relevance_score", "relevance_label"),
            *("relevant", "is_relevant", "match", "is_match", "grade", "rel", "qrel"),
        }
    ),
    "preference": frozenset({"prompt"}),
}
"""Further such columns, by the format of the records."""


_REASONING = ("reasoning", "reasoning_content", "thinking")
_LABELS = ("label", "labels")
_SWITCHES = frozenset(
    {"on", "off", "yes", "no", "true", "false", "none", "low", "medium", "high", "minimal"}
)
"""Values of a column `reasoning` that say whether or how much a model reasons."""


_OF_TOOLS = re.compile(r"(^|_)(tools|functions|tool_schemas?)(_json)?$", re.I)
"""Names of columns that list tools, such as `available_tools`."""


def _may_be_learned(name: str, value: Any) -> bool:
    """Whether the value of such a column can change what should be learned.

    Switches in place of reasoning and objects in place of labels only describe the record.
    """
    if name in _REASONING:
        word = value.strip().lower() if isinstance(value, str) else ""
        return word not in _SWITCHES and not isinstance(value, bool | int | float)
    return name not in _LABELS or not isinstance(value, Mapping)


class WatchedRow(dict[str, Any]):
    """A row that records which of its columns are read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.used: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.used.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a column, or the default; the column counts as read in any case."""
        self.used.add(name)
        return super().get(name, default)


class ColumnUse:
    """Converts rows and collects the columns that no conversion reads."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._first: dict[str, str] = {}
        """Place of the first row of each column that has a value."""
        self._meaningful: set[str] = set(MEANINGFUL)
        self._learned: dict[str, bool] = {}
        """Whether the text of a column that is not read was a part of every text record."""
        self._describing: dict[str, bool] = {}
        """Whether all values of an unread column only describe their records."""

    def convert(
        self,
        values: Mapping[str, Any],
        form: Format,
        identity: str,
        place: str,
        rules: MessageRules | None = None,
        replaced: Collection[str] = (),
    ) -> tuple[Record, dict[str, Any]]:
        """Return (a row as a record, its columns that were not read), and remember what was read.

        Args:
            values: Column → value.
            form: Format of the row.
            identity: Id of the record, unless the row has one.
            place: Where the row is.
            rules: Which roles its messages may have.
            replaced: Columns of the row that are not read, because `data.columns` gives their names
                to other columns.

        Raises:
            DataError: The row is invalid.
        """
        row = WatchedRow(values)
        record = to_record(row, form, identity, place, rules)
        self._used |= row.used
        if isinstance(record, TextRecord):
            self._compare(record, {k: v for k, v in values.items() if k not in row.used})
        self._meaningful |= MEANINGFUL_BESIDE.get(form, frozenset())
        with_value = [name for name, value in values.items() if value not in (None, "", [], {})]
        for name in (*with_value, *(f"{name} (of the file)" for name in replaced)):
            self._first.setdefault(name, place)
        unread = {name: value for name, value in values.items() if name not in row.used}
        for name in (*_REASONING, *_LABELS):
            if unread.get(name) not in (None, "", [], {}):
                only = not _may_be_learned(name, unread[name])
                self._describing[name] = self._describing.get(name, True) and only
        return record, unread

    def _compare(self, record: TextRecord, unread: Mapping[str, Any]) -> None:
        """Remember which columns that are not read hold nothing that the text does not have."""
        for name, value in unread.items():
            if isinstance(value, str) and value.strip():
                self._learned[name] = self._learned.get(name, True) and value.strip() in record.text

    def add_meaningful(self, names: Iterable[str]) -> None:
        """Add columns that change what should be learned; they are reported if they are unused."""
        self._meaningful.update(name.lower() for name in names)

    def _reason(self, name: str) -> Reason:
        """Return the reason under which an unused column is counted."""
        if is_media(name):
            return MEDIA_COLUMNS
        meaningful = name.lower() in self._meaningful or _OF_TOOLS.search(name) is not None
        meaningful = meaningful and not self._describing.get(name, False)
        return IGNORED_COLUMNS if meaningful else UNUSED_COLUMNS

    @property
    def unused(self) -> list[str]:
        """The columns that hold values, but were not read for any record."""
        return [name for name in self._first if name not in self._used]

    def note(self, findings: Findings) -> None:
        """Count the unused columns of the source, and name them."""
        findings.counted("columns", len(self._first))
        by_reason: dict[Reason, list[str]] = {}
        for name in self.unused:
            by_reason.setdefault(self._reason(name), []).append(name)
        for reason, names in by_reason.items():
            detail = ", ".join(names) + self._other_reading(names)
            findings.note(reason, self._first[names[0]], detail, len(names))

    def _other_reading(self, names: Sequence[str]) -> str:
        """Return how to read an answer that every text contains, such as in Alpaca's own file."""
        if not any(self._learned.get(name) for name in names if name in ANSWERS):
            return ""
        return (
            " (part of text, which is learned as a whole; data.columns: {text: null} reads the "
            "other columns, and learns the answer alone)"
        )
