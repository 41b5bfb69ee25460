"""Read the rows of one source as typed records; a sample of the rows decides their format."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...config.data_reasons.rows import (
    INVALID_ROWS,
    MIXED_TEXTS,
    NOT_MATCHING,
    OTHER_FORM,
    READ_AS_FORM,
    UNLABELLED,
)
from ...config.schema import RunConfig
from ...config.tasks import FORMATS_OF, Format
from ...errors import DataError
from ..findings import Findings
from ..sources import SourceRecord
from .column_use import ColumnUse
from .conversation_front import ConversationFront
from .formats import (
    ANCHORS,
    POSITIVES,
    NoColumn,
    Record,
    is_conversation,
    place_of,
    possible_formats,
)
from .forms import EVERY_FORM, listed, nearest_forms, tasks_of
from .labels import RATINGS, UnclearLabel, YesNoLabels, yes_no_columns
from .mapping import (
    LeftOut,
    MissingColumn,
    PreparedRow,
    left_out,
    mapped,
    paths_inside,
    proposed_columns,
    require_few_invalid,
    several_positives,
    with_every_positive,
    with_mismatches_as_negatives,
)
from .messages import MessageRules, decoded
from .pair_labels import PairLabels, couple_of, with_answer
from .preferences import as_preference, as_scored, with_turns
from .row_checks import CheckedRow, check_row
from .turns import CONVERSATIONS, REASONING, with_instance

SAMPLE_ROWS = 1000
"""Rows by which the format of a source is decided."""
_EXAMPLES = {
    "sft": "{instruction: COLUMN, output: COLUMN}",
    "contrastive": "{anchor: COLUMN, positive: COLUMN}",
    "dpo": "{prompt: COLUMN, chosen: COLUMN, rejected: COLUMN}",
    "kto": "{prompt: COLUMN, completion: COLUMN, label: COLUMN}",
    "reward": "{chosen: COLUMN, rejected: COLUMN}",
}
"""The mapping of columns that a refusal proposes, by task."""
_LOOKED_INSIDE = 20
"""Rows in whose columns texts are looked for."""
_DECODED = ("prompt", "completion", "chosen", "rejected", "messages", "history", *CONVERSATIONS)
"""Columns that may hold messages as JSON text."""


StreamRow = Record | LeftOut
"""A row of streamed data: its record, or why it makes none."""


@dataclass(frozen=True)
class FormatDecision:
    """The format of a source, and how many rows of a sample have it."""

    form: Format
    rows: int
    """Rows of the sample."""
    fitting: int
    """Rows of the sample with the columns of the format."""
    others: Mapping[str, int] = field(default_factory=dict)
    """Numbers of the other rows by their format, or by their columns if they have none."""

    @property
    def line(self) -> str:
        """The decision as a line of text."""
        rest = "; ".join(
            f"{count:,} {'row' if count == 1 else 'rows'} with {which}"
            for which, count in self.others.items()
        )
        return f"{self.fitting:,} of {self.rows:,} sampled rows have this format" + (
            f"; others: {rest}" if rest else ""
        )


class _RowPreparer:
    """Gives the columns of rows the names and forms of the formats."""

    def __init__(self, config: RunConfig, rules: MessageRules) -> None:
        self._task = config.task
        self._data = config.data
        self._front = ConversationFront(config.data.system, rules)
        self._rules = rules
        yes = config.data.yes_labels
        self.pairs = PairLabels(config.data.label, yes)
        rated = config.task == "kto"
        self._ratings = YesNoLabels(RATINGS, yes, "that a completion is good") if rated else None

    def prepare(self, row: SourceRecord) -> PreparedRow | LeftOut:
        """Return a row with the columns of the formats, or why it makes no record.

        Raises:
            UnclearLabel: A label can mean several things.
        """
        try:
            return self._prepared(row)
        except UnclearLabel:
            raise
        except MissingColumn as error:
            return left_out(row, OTHER_FORM, error)
        except DataError as error:
            return left_out(row, INVALID_ROWS, error)

    def _prepared(self, row: SourceRecord) -> PreparedRow:
        found = mapped(row, self._data.columns)
        nulls = tuple(name for name, value in found.values.items() if value is None)
        found = replace(found, nulls=nulls)
        values, place = self._present(found.values), row.place
        if self._task == "contrastive":
            judged = self.pairs.judged(values, place)
            return replace(found, values=judged.values, matches=judged.matches)
        values |= {name: decoded(values[name]) for name in _DECODED if name in values}
        if self._task == "sft":
            values = _with_messages_of_text(values)
            values = with_answer(with_instance(values, place), self._data.label, place)
            if {"prompt", "completion"} <= values.keys():
                values = with_turns(values, ("prompt", "completion"))
            return replace(found, values=self._front.of_conversation(values, place))
        values = as_preference(values, self._ratings, self._rules, place)
        if self._task == "reward":
            values = as_scored(values, place)
        return replace(found, values=self._front.of_preference(values, place))

    def _present(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values without nulls; a pair without any positive keeps the nulls of those."""
        kept = {name: value for name, value in values.items() if value is not None}
        if self._task == "contrastive" and not any(name in kept for name in POSITIVES):
            return {k: v for k, v in values.items() if v is not None or k in POSITIVES}
        return kept


class RecordReader:
    """Reads the rows of one source.

    Args:
        config: The run, with the settings of this source.
        source: Its name, for error messages.
        findings: Receives what is left out, guessed or not read.
        use: Receives which columns are read.
    """

    def __init__(
        self, config: RunConfig, source: str, findings: Findings, use: ColumnUse | None = None
    ) -> None:
        self._config = config
        self._source = source
        self._findings = findings
        self._rules = _rules(config, findings)
        self._preparer = _RowPreparer(config, self._rules)
        self.use = use or ColumnUse()
        self._decision: FormatDecision | None = None
        self._first_is_chat: bool | None = None
        """Whether the first record is a conversation; None before it is read."""

    @property
    def decision(self) -> FormatDecision:
        """The format of the source; `decide` must have been called."""
        assert self._decision is not None, "the format is decided before rows are read"
        return self._decision

    def decide(self, sample: Sequence[SourceRecord]) -> FormatDecision:
        """Decide by a sample of rows what the columns and labels of the source mean.

        Raises:
            DataError: No format of the task matches, no row has the configured columns, or a label
                can mean several things.
        """
        rows = _sample_of(self._config, sample, self._preparer)
        votes = Counter(form for row in rows for form in self._formats(row))
        form = self._wanted(sample, votes)
        fits = [form in self._formats(row) for row in rows]
        unfit = [row for row, fit in zip(rows, fits, strict=True) if not fit]
        others = Counter(_described(row, self._config.task) for row in unfit)
        if form == "pairs":
            whole = [row for row in rows if isinstance(row, PreparedRow)]
            self.use.add_meaningful(_labels_of_couples(whole))
        self._decision = FormatDecision(form, len(rows), sum(fits), dict(others.most_common()))
        return self._decision

    def records(self, rows: Sequence[SourceRecord], stem: str) -> list[Record]:
        """Return the records of rows, and note those that are left out.

        Raises:
            DataError: Most rows are invalid, or no row could be read as a record.
        """
        found: list[Record] = []
        left: list[LeftOut] = []
        for number, row in enumerate(self._related(map(self.prepare, rows)), start=1):
            one = row if isinstance(row, LeftOut) else self.read(row, f"{stem}:{number}")
            if isinstance(one, LeftOut):
                left.append(one)
            else:
                found.append(one)
        require_few_invalid(left, len(found) + len(left))
        if not found:
            raise DataError(self._nothing(left))
        for one in left:
            one.note(self._findings)
        return found

    def prepare(self, row: SourceRecord) -> PreparedRow | LeftOut:
        """Return a row with the columns of the formats, or why it makes no record.

        Raises:
            UnclearLabel: A label can mean several things.
        """
        return self._preparer.prepare(row)

    def read(self, row: PreparedRow, identity: str) -> Record | LeftOut:
        """Return the record of a row, or why it makes none.

        A row of another format that is read all the same, and contradictions in the row, are noted
        in the findings.

        A row that has the columns of the format, but a wrong value in one of them, makes none.
        """
        if row.matches is not True:
            reason = UNLABELLED if row.matches is None else NOT_MATCHING
            return LeftOut(identity, row.place, reason)
        fits = self.decision.form in self._formats(row)
        form, use = self.decision.form, self.use
        try:
            record, unread = use.convert(
                row.values, form, identity, row.place, self._rules, row.replaced
            )
        except DataError as error:
            if fits and not isinstance(error, NoColumn):
                return left_out(row, INVALID_ROWS, error, identity)
            return LeftOut(identity, row.place, OTHER_FORM, self._misfit(row, error))
        if not fits and self._config.data.format == "auto":
            self._findings.note(READ_AS_FORM, row.place, _described(row, self._config.task))
        check_row(CheckedRow(row.stored, unread, record, row.place), self._findings)
        self._note_mixed(record)
        return record

    def _note_mixed(self, record: Record) -> None:
        """Count a conversation among plain texts, or a plain text among conversations."""
        chat = is_conversation(record)
        if self._first_is_chat is None:
            self._first_is_chat = chat
        if chat is not self._first_is_chat:
            detail = (
                "a conversation among plain texts" if chat else "plain text among conversations"
            )
            self._findings.note(MIXED_TEXTS, place_of(record), detail)

    def _misfit(self, row: PreparedRow, error: DataError) -> str:
        """Return why a row does not have the format: it has another one, nulls, or no column."""
        others = [form for form in self._formats(row) if form != self.decision.form]
        if others:
            return f"format {others[0]}"
        if row.nulls:
            return f"column '{row.nulls[0]}': got null"
        return str(error).removeprefix(f"{row.place}: ").partition(". Correct")[0]

    def _related(self, rows: Iterable[PreparedRow | LeftOut]) -> Iterator[PreparedRow | LeftOut]:
        """Yield the rows; with `data.positives: all`, yield a row of its own for each positive.

        With `data.label: match`, texts of rows that do not match are negatives of those that do.
        """
        if self._config.task != "contrastive":
            yield from rows
            return
        listed = list(rows)
        if self._config.data.label == "match":
            listed = list(with_mismatches_as_negatives(listed, self._findings))
        for row in listed:
            if isinstance(row, LeftOut) or not self.makes_several_records(row):
                yield row
            else:
                yield from with_every_positive([row])

    def makes_several_records(self, row: PreparedRow) -> bool:
        """Whether several positives of a row make several records."""
        pairs = self._config.task == "contrastive" and self._config.data.positives == "all"
        return pairs and len(several_positives(row)[1]) > 1

    def _formats(self, row: PreparedRow | LeftOut) -> list[Format]:
        if isinstance(row, LeftOut):
            return []
        return possible_formats(list(row.values), self._config.task)

    def _wanted(self, sample: Sequence[SourceRecord], votes: Counter[Format]) -> Format:
        """Return the configured format, or the one of the task that most rows have.

        Args:
            sample: Rows of the source.
            votes: Number of rows by the formats that they allow.

        Raises:
            DataError: No row has a known format, or the format is none of the task.
        """
        usable, columns = FORMATS_OF[self._config.task], _columns(sample)
        configured = self._config.data.format
        if configured != "auto":
            found: Format | None = configured
        else:
            # Of equally frequent formats the first one of the task is used.
            voted = sorted((f for f in usable if votes[f]), key=lambda f: -votes[f])
            found = voted[0] if voted else next(iter(votes), None)
        empty = [name for name, filled in columns.items() if not filled]
        names = listed(columns) + (f" (without a value: {listed(empty)})" if empty else "")
        if found is None:
            raise DataError(
                f"{self._source}: the columns {names} match no known format. Name them, "
                f"as in data.columns: {_example(columns, self._config.task)}{_hint(sample)}. "
                f"Task {self._config.task} "
                f"reads, nearest first: {nearest_forms(columns, self._config.task)}; {EVERY_FORM}"
            )
        if found not in usable:
            raise DataError(
                f"{self._source}: the columns {names} have the format {found}, but task "
                f"{self._config.task} needs {' or '.join(usable)}; set task: "
                f"{' or '.join(tasks_of(found))}, or name the columns, as in data.columns: "
                f"{_EXAMPLES[self._config.task]}; {EVERY_FORM}"
            )
        return found

    def _nothing(self, left: Sequence[LeftOut]) -> str:
        counts = Counter(one.reason.name for one in left)
        listed = "\n  ".join(
            f"{count:,} records {one.reason.text}; first: {one.place}, {one.detail}; "
            f"{one.reason.remedy}"
            for name, count in counts.items()
            for one in [next(one for one in left if one.reason.name == name)]
        )
        return f"{self._source}: no row could be read as a record:\n  {listed}"


def _rules(config: RunConfig, findings: Findings) -> MessageRules:
    known = frozenset({config.data.train_on} - {"all", "last"})
    reasoning = config.data.columns.get(REASONING) is not None
    return MessageRules(
        config.data.roles,
        known,
        weighted=config.task == "sft",
        reasoning=reasoning,
        findings=findings,
    )


def _sample_of(
    config: RunConfig, sample: Sequence[SourceRecord], preparer: _RowPreparer
) -> list[PreparedRow | LeftOut]:
    """Return the rows of a sample, prepared, or why they make no record.

    What their labels mean is learned for `preparer`; what is found in them is not counted.

    Raises:
        DataError: No row has the configured columns, most rows are invalid, or a label can mean
            several things.
    """
    scratch = _RowPreparer(config, _rules(config, Findings()))
    named: list[SourceRecord] = []
    missing: list[MissingColumn] = []
    for row in sample:
        try:
            named.append(replace(row, values=mapped(row, config.data.columns).values))
        except MissingColumn as error:
            missing.append(error)
    if missing and not named:
        raise missing[0]
    for one in (preparer, scratch):
        one.pairs.learn(row.values for row in named)
    found = [scratch.prepare(row) for row in sample]
    require_few_invalid([one for one in found if isinstance(one, LeftOut)], len(found))
    return found


def _columns(rows: Iterable[SourceRecord]) -> dict[str, bool]:
    """Return the columns of rows as stored, and whether any of the rows has a value there."""
    found: dict[str, bool] = {}
    for row in rows:
        for name, value in row.values.items():
            found[name] = found.get(name, False) or value is not None
    return found


def _with_messages_of_text(values: dict[str, Any]) -> dict[str, Any]:
    """Return a row whose `text` is the JSON of messages with these messages; others unchanged."""
    messages = decoded(values.get("text"))
    if not isinstance(messages, list) or "messages" in values:
        return values
    return {**{k: v for k, v in values.items() if k != "text"}, "messages": messages}


def _example(columns: Mapping[str, bool], task: str) -> str:
    """Return the mapping that a refusal proposes: of these columns if their names allow it."""
    proposed = proposed_columns(columns, task)
    shown = ", ".join(f"{name}: {json.dumps(column)}" for name, column in proposed.items())
    return f"{{{shown}}} (capitals and spaces in names count)" if shown else _EXAMPLES[task]


def _hint(sample: Sequence[SourceRecord]) -> str:
    """Say how to name one of several conversations, or a text inside a column; empty if none."""
    conversations = [name for name in CONVERSATIONS if any(name in row.values for row in sample)]
    if len(conversations) > 1:
        found, rest = conversations[0], conversations[1:]
        unused = "".join(f", {name}: null" for name in rest)
        return f" (of {listed(conversations)} only one can be read: {{messages: {found}{unused}}})"
    paths = dict.fromkeys(
        path for row in sample[:_LOOKED_INSIDE] for path in paths_inside(row.values)
    )
    return f"; texts inside columns are named by their path: {listed(paths)}" if paths else ""


def _described(row: PreparedRow | LeftOut, task: str) -> str:
    """Return the format of a row, or its columns if they have none, or why it has no record."""
    if isinstance(row, LeftOut):
        missing = row.reason is OTHER_FORM
        return "a column of data.columns missing" if missing else "a value that cannot be read"
    form = next(iter(possible_formats(list(row.values), task)), None)
    if form:
        return f"format {form}"
    return f"the columns {', '.join(row.values)}" if row.values else "no columns"


def _labels_of_couples(rows: Sequence[PreparedRow]) -> list[str]:
    """Return the columns beside two texts that look like labels.

    The list is empty if the rows already have a label or a score.
    """
    values: dict[str, list[Any]] = defaultdict(list)
    for row in rows:
        if {"anchor", "positive"} & row.values.keys() or couple_of(row.values):
            for name, value in row.values.items():
                values[name].append(value)
    if "label" in values or "score" in values:
        return []
    return yes_no_columns({k: v for k, v in values.items() if k not in (*ANCHORS, *POSITIVES)})
