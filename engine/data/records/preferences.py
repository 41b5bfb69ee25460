"""Convert preference and rated data of other tools to the column names and forms of the formats."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ...errors import DataError
from .formats import MARGIN
from .labels import YesNoLabels, is_missing, number_of
from .messages import CONTENT_KEYS, MessageRules, role_of
from .turns import QUESTIONS, asked_columns, conversation_column, question_of

CHOSEN = ("chosen_response", "response_chosen", "preferred", "accepted", "chosen_messages")
REJECTED = ("rejected_response", "response_rejected", "reject", "rejected_messages")
RATED_LABELS = ("label", "kto_tag", "desirable")
COMPLETIONS = ("completion", "response", "answer", "output")
"""Columns of a rated answer beside a question."""
ANSWERS = ("chosen", "rejected", "completion")
"""Columns of completions."""
_SIGNS = re.compile(r"\n*(?:^|\n\n)(Human|Assistant): ?")
"""Beginnings of the turns of a transcript in one text."""

Values = dict[str, Any]
_Better = Callable[[Any], int | None]
"""Returns 0 or 1 for the better one of two answers; None if neither is."""


def as_preference(
    values: Values, ratings: YesNoLabels | None, rules: MessageRules, place: str
) -> Values:
    """Return preferences or a rated answer with the column names and forms of the formats.

    Args:
        values: The columns of a row.
        ratings: Decides which labels of rated answers are positive; None for tasks without ratings.
        rules: The roles of messages.
        place: Where the row is stored.

    Raises:
        DataError: A rating is ambiguous, or a conversation has no place for an answer.
    """
    values = _compared(values)
    if ratings is None or not _is_rated(values):
        values = _with_sides(values)
    values = _with_transcripts(values)
    if "rejected" not in values:
        if ratings is None:
            return values
        values = _rated(values, ratings, place)
    values = _with_question(_with_prompt_turns(values, rules, place), rules, place)
    return with_turns(values, ("prompt", "chosen", "rejected", "completion"))


def as_scored(values: Values, place: str) -> Values:
    """Return two answers to be scored: without a prompt they are whole texts.

    Texts that begin as transcripts but were not read as such are left without a prompt, so that the
    row counts as one of another form.

    Their margin, if they have one, is a number under the name `MARGIN`.

    Raises:
        DataError: The margin is not a number.
    """
    found = dict(values)
    whole = "prompt" not in found and isinstance(found.get("chosen"), str)
    if whole and not any(_SIGNS.match(str(found.get(name))) for name in ("chosen", "rejected")):
        found["prompt"] = ""
    if (given := found.pop("margin", None)) is not None:
        margin = number_of(given)
        if margin is None:
            raise DataError(
                f"{place}: column 'margin': got {str(given)[:60]!r}, expected a number, by which "
                "the chosen answer should be better; correct this row, or set data.columns: "
                "{margin: null}"
            )
        found[MARGIN] = margin
    return found


def with_turns(values: Values, columns: Collection[str]) -> Values:
    """Return a row with prompt and answers as messages if one of these columns holds messages."""
    if not any(isinstance(values.get(name), list | Mapping) for name in columns):
        return values
    found = _as_turns(values, columns)
    if isinstance(found.get("completion"), list) and isinstance(found.get("prompt"), str):
        found["prompt"] = [{"role": "user", "content": found["prompt"]}]
    return found


def _with_sides(values: Values) -> Values:
    """Return a row with its two answers named `chosen` and `rejected`.

    A rejected answer beside a conversation is renamed too; any other single answer is not.
    """
    chosen = next((name for name in ("chosen", *CHOSEN) if name in values), None)
    rejected = next((name for name in ("rejected", *REJECTED) if name in values), None)
    conversation = "messages" in values or conversation_column(values) is not None
    if rejected is None or (chosen is None and not conversation):
        return values
    names = {rejected: "rejected"} | ({} if chosen is None else {chosen: "chosen"})
    return {names.get(name, name): value for name, value in values.items()}


def _is_rated(values: Values) -> bool:
    """Whether a row has one answer with a rating, so that it is not read as chosen and rejected."""
    labels = [name for name in RATED_LABELS if not is_missing(values.get(name))]
    return bool(labels) and any(name in values for name in COMPLETIONS)


def _rated(values: Values, ratings: YesNoLabels, place: str) -> Values:
    column = next((name for name in RATED_LABELS if name in values), None)
    if column is None or is_missing(values[column]):
        return values
    found = {name: value for name, value in values.items() if name != column}
    found["label"] = ratings.says_yes(values[column], column, place)
    answer = next((name for name in COMPLETIONS if name in found), "completion")
    if answer != "completion" and asked_columns(found):
        found["completion"] = found.pop(answer)
        if isinstance(found.get("prompt"), str):
            found["prompt"] = [{"role": "user", "content": found["prompt"]}]
            return _as_turns(found)
    return found


def _compared(values: Values) -> Values:
    """Return a comparison of two answers as chosen and rejected.

    Other rows, and comparisons in which neither answer is better, are returned unchanged.
    OpenAI's form has the conversation and two lists of messages; others number the answers and
    name the better one.
    """
    if "chosen" in values or "rejected" in values:
        return values
    asked = values.get("input")
    if isinstance(asked, Mapping) and {"preferred_output", "non_preferred_output"} <= set(values):
        named = {"input", "preferred_output", "non_preferred_output"}
        rest = {name: value for name, value in values.items() if name not in named}
        sides = {"chosen": values["preferred_output"], "rejected": values["non_preferred_output"]}
        tools = {"tools": asked["tools"]} if asked.get("tools") else {}
        return {"prompt": asked.get("messages")} | tools | rest | sides
    for first, second, judge, better in _JUDGED:
        if {first, second, judge} <= set(values):
            chosen = better(values[judge])
            rest = {k: v for k, v in values.items() if k not in (first, second, judge)}
            answers = (values[first], values[second])
            if chosen is not None:
                return rest | {"chosen": answers[chosen], "rejected": answers[1 - chosen]}
    return values


def _index(value: Any) -> int | None:
    return int(value) if value in (0, 1) else None


def _sign(value: Any) -> int | None:
    """Return the index of the better answer: 0 for negative numbers, 1 for positive ones.

    None for 0, NaN and other values.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return 1 if value > 0 else 0 if value < 0 else None


def _letter(value: Any) -> int | None:
    """Return the index of the better answer by its letter or number, such as `B` or `model_a`.

    The numbers are `1` for the first and `2` for the second answer. None for other texts, such as
    `tie`, and for values that are not texts.
    """
    name = str(value).strip().lower().removeprefix("model_").removeprefix("response_")
    return {"a": 0, "b": 1, "1": 0, "2": 1}.get(name) if isinstance(value, str) else None


_JUDGED: tuple[tuple[str, str, str, _Better], ...] = (
    ("response_0", "response_1", "better_response_id", _index),
    ("response_0", "response_1", "preferred_id", _index),
    ("response1", "response2", "overall_preference", _sign),
    ("response_1", "response_2", "overall_preference", _sign),
    ("response_a", "response_b", "winner", _letter),
    ("conversation_a", "conversation_b", "winner", _letter),
)
"""Columns of two answers, the column that compares them, and how it names the better one."""


def _with_transcripts(values: Values) -> Values:
    """Return a row with transcripts (`Human:`, `Assistant:` before turns) converted to messages.

    A row with a prompt, or whose two answers are not both transcripts, is returned unchanged.
    """
    sides = [values.get("chosen"), values.get("rejected")]
    if "prompt" in values or not all(isinstance(one, str) for one in sides):
        return values
    found = [_transcript(str(one)) for one in sides]
    if not all(found):
        return values
    return values | dict(zip(("chosen", "rejected"), found, strict=True))


def _transcript(text: str) -> list[dict[str, str]]:
    """Return the turns of a transcript; an empty list if the text is not a transcript."""
    before, *parts = _SIGNS.split(text)
    signs = parts[::2]
    if before.strip() or len(signs) < 2 or (signs[0], signs[-1]) != ("Human", "Assistant"):
        return []
    return [
        {"role": "user" if sign == "Human" else "assistant", "content": said}
        for sign, said in zip(signs, parts[1::2], strict=True)
    ]


def _with_prompt_turns(values: Values, rules: MessageRules, place: str) -> Values:
    """Return a preference or rated row with its conversation as `prompt`; other rows unchanged.

    Beside a whole rejected conversation, the conversation becomes `chosen`.

    The last turn of the conversation becomes `chosen` (rated rows: `completion`) if the row has no
    such column, and is removed if it repeats one of the answers.

    Raises:
        DataError: The last turn is an answer that the row does not have, or the answer is missing
            and the last turn is not the assistant's.
    """
    column = "messages" if "messages" in values else conversation_column(values)
    column = column or _listed_context(values)
    turns = values.get(column or "")
    wanted = "chosen" if "rejected" in values else "completion" if "label" in values else ""
    answers = [values[name] for name in ("chosen", "rejected", "completion") if name in values]
    if not (isinstance(turns, list) and turns and wanted) or "prompt" in values:
        return values
    rest = {name: value for name, value in values.items() if name != column}
    if any(_is_conversation(one, rules) for one in answers):
        # Beside a whole rejected conversation, the other whole one is the chosen one.
        return {**rest, "chosen": turns} if wanted == "chosen" and wanted not in values else values
    ends = role_of(turns[-1], rules) == "assistant"
    if wanted not in values:
        if not ends:
            raise DataError(
                f"{place}: column '{column}' does not end with a turn of the assistant, which is "
                f"needed because the row has no column '{wanted}'; remove this record"
            )
        return _as_turns({**rest, "prompt": turns[:-1], wanted: [turns[-1]]})
    if ends and _content(turns[-1]) not in [_text_of(one) for one in answers]:
        raise DataError(
            f"{place}: column '{column}' ends with an answer that is none of the completions of "
            "the row; remove this answer, or this record"
        )
    return _as_turns({**rest, "prompt": turns[:-1] if ends else turns})


def _listed_context(values: Values) -> str | None:
    """Return the name of the only question column that holds messages.

    None if there is none or several, or if the row has a column `prompt`.
    """
    names = ("context", *QUESTIONS)
    found = [name for name in names if isinstance(values.get(name), list) and name != "prompt"]
    return found[0] if len(found) == 1 and "prompt" not in values else None


def _with_question(values: Values, rules: MessageRules, place: str) -> Values:
    """Return a preference or rated row with its question as `prompt`, a list of messages.

    Other rows, and rows whose answers are not texts, are returned unchanged.

    Raises:
        DataError: The question holds neither text nor messages.
    """
    asked = asked_columns([name for name in values if name != "completion"])
    answer = values.get("chosen") if "rejected" in values else values.get("completion")
    rated = "rejected" in values or "label" in values
    if "prompt" in values or not asked or not rated or not isinstance(answer, str):
        return values
    rest = {name: value for name, value in values.items() if name not in asked}
    return _as_turns({**rest, "prompt": list(question_of(values, asked, place, rules))})


def _as_turns(values: Values, columns: Collection[str] = ANSWERS) -> Values:
    """Return a row in which the completions in these columns are lists of messages."""
    found = dict(values)
    for name in (one for one in ANSWERS if one in columns):
        value = found.get(name)
        if isinstance(value, str):
            found[name] = [{"role": "assistant", "content": value}]
        elif isinstance(value, Mapping):
            found[name] = [value]
    return found


def _is_conversation(value: Any, rules: MessageRules) -> bool:
    """Whether an answer is a whole conversation, so that it has user turns."""
    return isinstance(value, list) and any(role_of(one, rules) == "user" for one in value)


def _content(item: Mapping[str, Any]) -> Any:
    return next((item[key] for key in CONTENT_KEYS if key in item), None)


def _text_of(answer: Any) -> Any:
    """Return the text of an answer: of a text, a message, or the last message of a list.

    None if the list is empty or the message has no content.
    """
    if isinstance(answer, list):
        answer = answer[-1] if answer else None
    return _content(answer) if isinstance(answer, Mapping) else answer
