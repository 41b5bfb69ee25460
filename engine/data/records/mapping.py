"""Map rows to the columns of the formats: `data.columns`, labels, and names of preference data."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ...config.schema import RunConfig
from ...errors import DataError
from ..sources import SourceRecord
from .context import with_context
from .turns import CONVERSATIONS, QUESTIONS

COUPLES = (
    *(("sentence1", "sentence2"), ("sentence_1", "sentence_2"), ("text1", "text2")),
    *(("question1", "question2"), ("premise", "hypothesis"), ("sentence_a", "sentence_b")),
)
"""Columns of two texts that need not match."""
JUDGED = ("document", "passage", "answer")
"""Columns of a text that may or may not match the anchor."""
CHOSEN = ("chosen_response", "response_chosen", "preferred", "accepted")
REJECTED = ("rejected_response", "response_rejected", "reject")
RATINGS = ("kto_tag", "desirable")
WORDS: Mapping[Any, bool] = {
    **dict.fromkeys(("true", "yes", "good", "1", "+1", "desirable", "chosen"), True),
    **dict.fromkeys(("false", "no", "bad", "0", "-1", "undesirable", "rejected"), False),
}
"""Ratings in words."""
_COLUMN = re.compile(r"\{([^{}]+)\}")


def prepared(row: SourceRecord, config: RunConfig) -> SourceRecord:
    """Return a row with the columns of the formats.

    Raises:
        DataError: A mapped column is missing, or a label can mean several things.
    """
    values = _mapped(row, config.data.columns) if config.data.columns else dict(row.values)
    if config.task == "contrastive":
        values = _labelled_pair(values, config.data.label, row.place)
    elif config.task == "sft":
        values = _labelled_text(values, config.data.label, row.place)
        values = with_context(values, config.data, row.place)
    else:
        values = _preference(_compared(values))
    return SourceRecord(values, row.place)


def with_every_positive(rows: Iterable[SourceRecord]) -> Iterator[SourceRecord]:
    """Yield a row for each of several positives of an anchor.

    They get one label of their own, so that they are not negatives of each other.
    """
    for row in rows:
        name = next((name for name in ("positive", "pos") if name in row.values), "")
        texts = row.values.get(name)
        found = [text for text in texts if text] if isinstance(texts, list) else []
        if len(found) < 2:
            yield row
            continue
        label = row.values.get("label")
        for text in found:
            own = {name: [text], "label": row.place if label is None else label}
            yield SourceRecord(row.values | own, row.place)


def _mapped(row: SourceRecord, columns: Mapping[str, str | None]) -> dict[str, Any]:
    used: set[str] = set()
    found: dict[str, Any] = {}
    for field, column in columns.items():
        if column is None:
            used.add(field)
            continue
        names = [column] if column in row.values else _COLUMN.findall(column) or [column]
        for name in names:
            if name not in row.values:
                raise DataError(
                    f"{row.place}: data.columns maps {field} to {column!r}, but the row has no "
                    f"column '{name}'; found {', '.join(row.values) or 'none'}"
                )
        used.update(names)
        if column in row.values:
            found[field] = row.values[column]
        else:
            found[field] = _COLUMN.sub(lambda match: _written(row.values[match[1]]), column)
    return {name: value for name, value in row.values.items() if name not in used} | found


def _written(value: Any) -> str:
    return "" if value is None else str(value)


def _missing(value: Any) -> bool:
    return value in (None, "") or (isinstance(value, float) and math.isnan(value))


def _labelled_pair(values: dict[str, Any], meaning: str, place: str) -> dict[str, Any]:
    """Return a pair whose label is a class or a score."""
    for anchor, positive in COUPLES[3:]:
        if anchor in values and positive in values and "anchor" not in values:
            values = values | {"anchor": values.pop(anchor), "positive": values.pop(positive)}
            return _judged(values, meaning, place, (anchor, positive))
    couple = next((one for one in COUPLES if one[0] in values and one[1] in values), None)
    other = next((name for name in JUDGED if name in values and "positive" not in values), None)
    names = couple or (("the anchor", other) if other and values.get("label") in (0, 1) else None)
    return _judged(values, meaning, place, names)


def _judged(
    values: dict[str, Any], meaning: str, place: str, names: tuple[str, str] | None
) -> dict[str, Any]:
    """Return a pair with its label as the class or score that it is."""
    label = values.get("label")
    if _missing(label):
        return {name: value for name, value in values.items() if name != "label"}
    fraction = isinstance(label, float) and not label.is_integer()
    if meaning == "score" or (meaning == "auto" and names and fraction):
        return {**{k: v for k, v in values.items() if k != "label"}, "score": label}
    if names and meaning != "class":
        raise DataError(
            f"{place}: the label {label!r} beside {' and '.join(names)} can be a similarity or a "
            "class; set data.label: score (with contrastive.kind: cosent) if it says whether the "
            "texts match, data.label: class if texts with equal labels belong together, or "
            "data.columns: {label: null} if all pairs match"
        )
    return values


def _labelled_text(values: dict[str, Any], meaning: str, place: str) -> dict[str, Any]:
    """Return a text whose label is its answer as a conversation."""
    label = values.get("label")
    if "text" not in values or "messages" in values or "completion" in values or _missing(label):
        return values
    if meaning == "answer":
        turns = [
            {"role": "user", "content": values["text"]},
            {"role": "assistant", "content": str(label)},
        ]
        rest = {name: value for name, value in values.items() if name not in ("text", "label")}
        return {**rest, "messages": turns}
    raise DataError(
        f"{place}: the columns text and label: set data.label: answer to learn the label as the "
        "answer to the text, or data.columns: {label: null} to learn the text alone"
    )


def _compared(values: dict[str, Any]) -> dict[str, Any]:
    """Return a comparison of two answers as chosen and rejected.

    OpenAI's form has the conversation and two lists of messages; others number the answers and
    name the better one.
    """
    asked = values.get("input")
    if isinstance(asked, Mapping) and {"preferred_output", "non_preferred_output"} <= set(values):
        named = {"input", "preferred_output", "non_preferred_output"}
        rest = {name: value for name, value in values.items() if name not in named}
        sides = {"chosen": values["preferred_output"], "rejected": values["non_preferred_output"]}
        return rest | {"prompt": asked.get("messages")} | sides
    better = values.get("better_response_id", values.get("preferred_id"))
    if better in (0, 1) and {"response_0", "response_1"} <= set(values):
        named = {"response_0", "response_1", "better_response_id", "preferred_id"}
        rest = {name: value for name, value in values.items() if name not in named}
        return rest | {
            "chosen": values[f"response_{int(better)}"],
            "rejected": values[f"response_{1 - int(better)}"],
        }
    return values


def _preference(values: dict[str, Any]) -> dict[str, Any]:
    """Return preference data of other tools under the names and forms of the formats."""
    values = _renamed(values, {"chosen": CHOSEN, "rejected": REJECTED, "label": RATINGS})
    label = values.get("label")
    key = label.strip().lower() if isinstance(label, str) else str(label)
    if not isinstance(label, bool) and key in WORDS:
        values["label"] = WORDS[key]
    column = next((name for name in ("messages", *CONVERSATIONS) if name in values), None)
    turns = values[column] if column is not None else None
    compared = "rejected" in values
    if isinstance(turns, list) and turns and (compared or "label" in values):
        if not (compared and "chosen" in values) and "completion" not in values:
            values["chosen" if compared else "completion"] = [turns[-1]]
            turns = turns[:-1]
        elif "prompt" in values:
            return values
        values["prompt"] = turns
        del values[column or ""]
        return _as_turns(values)
    asked = [name for name in QUESTIONS if name in values]
    if "prompt" not in values and len(asked) == 1 and isinstance(values.get("chosen"), str):
        values["prompt"] = [{"role": "user", "content": values.pop(asked[0])}]
        return _as_turns(values)
    return values


def _as_turns(values: dict[str, Any]) -> dict[str, Any]:
    """Return completions of a conversation as messages."""
    for name in ("chosen", "rejected", "completion"):
        value = values.get(name)
        if isinstance(value, str):
            values[name] = [{"role": "assistant", "content": value}]
        elif isinstance(value, Mapping):
            values[name] = [value]
    return values


def _renamed(values: dict[str, Any], names: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    found = dict(values)
    for field, aliases in names.items():
        alias = next((name for name in aliases if name in found), None)
        if field not in found and alias is not None:
            found[field] = found.pop(alias)
    return found
