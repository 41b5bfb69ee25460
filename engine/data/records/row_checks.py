"""Find contradictions between a row and its record: scores, missing values, other answers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from ...config.data_reasons.rows import (
    CONTRADICTING_SCORES,
    DIFFERENT_PROMPTS,
    EARLY_DIFFERENCE,
    MISSING_WORDS,
    OWN_NEGATIVES,
    PROMPT_IGNORED,
    PROMPT_REPEATED,
    SECOND_CONVERSATION,
)
from ..findings import Findings
from .formats import (
    CompletionRecord,
    MessagesRecord,
    PairRecord,
    PreferenceRecord,
    RatedRecord,
    Record,
    TextRecord,
)
from .labels import number_of
from .messages import CONTENT_KEYS, REASONING_KEYS
from .turns import ANSWERS, CALL_ANSWERS, CONVERSATIONS, answer_columns, has_turns

MISSING = frozenset(
    {
        *("NA", "N/A", "n/a", "#N/A", "#N/A N/A", "#NA", "<NA>", "NULL", "null", "None"),
        *("NaN", "nan", "-NaN", "-nan", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
    }
)
"""Words that pandas, and with it `datasets`, reads from tables as missing values."""
_NO_TEXT = ("id", "tools", "functions")
"""Columns in which such a word is not text to learn."""
_SCORE = re.compile(r"score|rating|reward|grade|quality", re.I)
"""Names of columns whose larger number is the better one."""
_INSTRUCTIONS = ("prompt", "instruction")
_TEXTS = frozenset({"text", "messages", *CONVERSATIONS, *ANSWERS, *_INSTRUCTIONS})
"""Columns that may hold a second conversation, answer or prompt."""
_SAID = frozenset({*CONTENT_KEYS, *REASONING_KEYS})
"""Keys of messages that hold texts."""
_ASKING_ROLES = ("user", "system")
_LONGEST_WORD = 16
"""Characters of a word for a missing value with white space around it."""
_SHORTEST_PROMPT = 12
"""Characters from which a prompt at the beginning of a completion is not a coincidence."""


@dataclass(frozen=True)
class CheckedRow:
    """A row, the record made of it, and the columns that were not read for it."""

    stored: Mapping[str, Any]
    """The columns as stored."""
    unread: Mapping[str, Any]
    record: Record
    place: str


def check_row(row: CheckedRow, findings: Findings) -> None:
    """Count contradictions between the columns of a row and the record made of it."""
    if word := _missing_word(row):
        findings.note(MISSING_WORDS, row.place, word)
    if not isinstance(row.record, MessagesRecord):
        findings.note(PROMPT_REPEATED, row.place, count=_repeats_prompt(row.record))
    if isinstance(row.record, PreferenceRecord):
        prompts = _differs_in_prompt(row.record)
        findings.note(DIFFERENT_PROMPTS, row.place, count=prompts)
        findings.note(EARLY_DIFFERENCE, row.place, count=not prompts and _differs_early(row.record))
        findings.note(CONTRADICTING_SCORES, row.place, scores := _scores(row.unread), bool(scores))
    if isinstance(row.record, PairRecord) and (own := _own_negative(row.record)):
        findings.note(OWN_NEGATIVES, row.place, own)
    if not row.unread.keys().isdisjoint(_TEXTS):
        _check_unread_columns(row, findings)


def _check_unread_columns(row: CheckedRow, findings: Findings) -> None:
    """Count a conversation, an answer or a prompt in the columns that are not read."""
    if isinstance(row.record, MessagesRecord | CompletionRecord | PreferenceRecord):
        columns = _other_conversation(row)
        findings.note(SECOND_CONVERSATION, row.place, ", ".join(columns), bool(columns))
    if isinstance(row.record, MessagesRecord):
        for name in _INSTRUCTIONS:
            missing = _is_missing_in(row, [row.unread.get(name)])
            findings.note(PROMPT_IGNORED, row.place, f"column '{name}'", missing)


def _missing_word(row: CheckedRow) -> str:
    """Return a word for a missing value that is read as a text, after the name of its place.

    The place is the column or a message. The text is empty if there is no such word.
    """
    for name, value in row.stored.items():
        read = _is_missing_word(value) and name not in row.unread
        if read and name not in _NO_TEXT:
            return f"column '{name}': {value.strip()}"
    if isinstance(row.record, MessagesRecord):
        contents = (one.get("content") for one in row.record.messages)
        return next((f"a message: {one.strip()}" for one in contents if _is_missing_word(one)), "")
    return ""


def _is_missing_word(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and len(value) <= _LONGEST_WORD and value.strip() in MISSING


def _repeats_prompt(record: Record) -> bool:
    """Whether the completions of a record begin with its prompt."""
    match record:
        case CompletionRecord(prompt=prompt, completion=completion):
            asked, answer = _last_text(prompt), next(_texts_in(completion), "")
            return len(asked) >= _SHORTEST_PROMPT and answer.strip().startswith(asked)
        case PreferenceRecord(chosen=chosen, rejected=rejected):
            return _repeats_prompt(chosen) and _repeats_prompt(rejected)
        case RatedRecord(text=text):
            return _repeats_prompt(text)
    return False


def _last_text(prompt: Any) -> str:
    return ([""] + [text.strip() for text in _texts_in(prompt)])[-1]


def _differs_in_prompt(record: PreferenceRecord) -> bool:
    """Whether two conversations differ first in something else than an answer.

    That is a turn of the user or the system, or the end of one of the two.
    """
    sides = (record.chosen.completion, record.rejected.completion)
    turns = [side for side in sides if not isinstance(side, str)]
    asks = [not side or side[0].get("role") in _ASKING_ROLES for side in turns]
    return len(turns) == len(sides) and any(asks)


def _differs_early(record: PreferenceRecord) -> bool:
    """Whether a turn of the user follows the first difference of two conversations."""
    sides = (record.chosen.completion, record.rejected.completion)
    turns = [turn for side in sides if not isinstance(side, str) for turn in side[1:]]
    return any(turn.get("role") in _ASKING_ROLES for turn in turns)


def _own_negative(record: PairRecord) -> str:
    """Return which text of a pair one of its negatives repeats; empty if none does."""
    for name in ("positive", "anchor"):
        if getattr(record, name) in record.negatives:
            return f"a negative is the {name}"
    return ""


def _scores(columns: Mapping[str, Any]) -> str:
    """Return two scores that prefer the rejected completion; empty without such scores.

    An example is `score_chosen 1 < score_rejected 2`.
    """
    for name, value in columns.items():
        other = re.sub("chosen", "rejected", name, flags=re.I)
        if other == name or not _SCORE.search(name):
            continue
        rejected = next((k for k in columns if k.lower() == other.lower()), None)
        good, bad = number_of(value), number_of(columns[rejected]) if rejected else None
        if good is not None and bad is not None and good < bad:
            return f"{name} {good:g} < {rejected} {bad:g}"
    return ""


def _other_conversation(row: CheckedRow) -> list[str]:
    """Return the unread columns of a conversation or an answer with other texts than the record."""
    unread = {k: v for k, v in row.unread.items() if v not in (None, "", [], {})}
    whole = isinstance(row.record, CompletionRecord) or has_turns(unread)
    whole = whole or {"prompt", "completion"} <= unread.keys()
    names = [name for name in ("messages", *CONVERSATIONS) if name in unread]
    if whole:
        names += [name for name in answer_columns(unread) if name != CALL_ANSWERS]
    found = [name for name in names if _is_missing_in(row, _texts_in(unread[name]))]
    text = unread.get("text")
    if isinstance(text, str) and not isinstance(row.record, PreferenceRecord):
        answers = [_joined(one) for one in _answers_of(row.record)]
        if not any(answer in _joined(text) for answer in answers if answer):
            found.append("text")
    return found


def _is_missing_in(row: CheckedRow, texts: Iterable[Any]) -> bool:
    """Whether the record lacks one of these texts, apart from white space."""
    wanted = [text.strip() for text in texts if isinstance(text, str) and text.strip()]
    own = list(_texts_of(row.record)) if wanted else []
    other = [text for text in wanted if not any(text in one for one in own)]
    if not other:
        return False
    learned = "\n".join(map(_joined, own))
    return any(_joined(text) not in learned for text in other)


def _joined(text: str) -> str:
    return "".join(text.split())


def _answers_of(record: Record) -> Iterator[str]:
    if isinstance(record, CompletionRecord):
        yield from _texts_in(record.completion)
    elif isinstance(record, MessagesRecord):
        yield from _texts_in([one for one in record.messages if one.get("role") == "assistant"])


def _texts_of(record: Record) -> Iterator[str]:
    """Yield the texts of a record."""
    match record:
        case MessagesRecord(messages=messages):
            yield from _texts_in(messages)
        case CompletionRecord(prompt=prompt, completion=completion):
            yield from _texts_in(prompt)
            yield from _texts_in(completion)
        case PreferenceRecord(chosen=chosen, rejected=rejected):
            yield from _texts_of(chosen)
            yield from _texts_of(rejected)
        case RatedRecord(text=text):
            yield from _texts_of(text)
        case TextRecord(text=text):
            yield text
        case PairRecord():
            yield from (record.anchor, record.positive, *record.negatives)


def _texts_in(value: Any) -> Iterator[str]:
    """Yield the texts of messages, or of a value that is a text itself."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key in filter(_SAID.__contains__, value):
            yield from _texts_in(value[key])
    elif isinstance(value, Sequence):
        for part in value:
            yield from _texts_in(part)
