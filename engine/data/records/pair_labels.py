"""Interpret the label beside two texts, or beside one text, without guessing its meaning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .labels import MATCHES, UnclearLabel, YesNoLabels, are_fractions, is_missing, is_unlabelled

COUPLES = (
    *(("sentence1", "sentence2"), ("sentence_1", "sentence_2"), ("text1", "text2")),
    *(("question1", "question2"), ("premise", "hypothesis"), ("sentence_a", "sentence_b")),
    *(("sentence_A", "sentence_B"), ("text_a", "text_b")),
)
"""Columns of two texts that need not match."""
_KNOWN_BEFORE = 3
"""Number of couples, from the first on, whose names `formats` reads as anchor and positive."""
INFERENCES = ("premise", "hypothesis")
"""The couple whose numeric labels are classes of inference, whose order differs by dataset."""
JUDGED = ("document", "passage", "answer")
"""Columns of a text that may or may not match the anchor."""
LABELS = (
    *("label", "labels", "gold_label", "is_duplicate", "is_paraphrase", "entailment_judgment"),
    *("relation", "judgment", "class"),
)
"""Columns of the label of two texts."""
SCORES = (
    *("score", "similarity", "similarity_score", "sim_score", "relatedness_score"),
    "relatedness",
)
"""Columns of the similarity of two texts."""


@dataclass(frozen=True)
class JudgedPair:
    """The columns of a pair, with its label as a class, a score or a match."""

    values: dict[str, Any]
    matches: bool | None = True
    """Whether its texts match; None if the label that should say so is missing."""


class PairLabels:
    """Reads the labels of the pairs of one source.

    Args:
        meaning: What a label says (`data.label`).
        yes: The labels of texts that match (`data.yes_labels`).
    """

    def __init__(self, meaning: str, yes: list[Any] | None) -> None:
        self._meaning = meaning
        self._matches = YesNoLabels(MATCHES, yes, "that the texts match")
        self._scored = False

    def learn(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Decide by rows whether labels of two texts are scores.

        They are if all are numbers or missing, and at least one has a fraction.
        """
        labels = (row[name] for row in rows if couple_of(row) for name in LABELS if name in row)
        self._scored = are_fractions(labels)

    def judged(self, values: dict[str, Any], place: str) -> JudgedPair:
        """Return the pair with its columns renamed, and its label read as class, score or match.

        Raises:
            UnclearLabel: The label can mean several things, or does not say whether the texts
                match.
        """
        couple = couple_of(values)
        if couple is not None:
            values = _with_standard_names(values)
            named = "anchor" in values or "positive" in values
            if couple in COUPLES[_KNOWN_BEFORE:] and not named:
                values |= {"anchor": values.pop(couple[0]), "positive": values.pop(couple[1])}
        other = next((name for name in JUDGED if name in values and "positive" not in values), None)
        known = values.get("label") in (0, 1)
        names = couple or (("the anchor", other) if other and known else None)
        return self._with_label(values, names, place)

    def _with_label(
        self, values: dict[str, Any], names: tuple[str, str] | None, place: str
    ) -> JudgedPair:
        label = values.get("label")
        bare = {name: value for name, value in values.items() if name != "label"}
        if self._meaning == "match":
            if is_unlabelled(label):
                return JudgedPair(bare, matches=None)
            return JudgedPair(bare, matches=self._match(label, names, place))
        if is_missing(label):
            return JudgedPair(bare)
        if self._meaning == "score" or (self._meaning == "auto" and names and self._scored):
            return JudgedPair({**bare, "score": label})
        if names and self._meaning != "class":
            raise UnclearLabel(_question(label, names, place))
        return JudgedPair(values)

    def _match(self, label: Any, names: tuple[str, str] | None, place: str) -> bool:
        if names == INFERENCES and not self._matches.configured and not isinstance(label, str):
            raise UnclearLabel(
                f"{place}: the label {label!r} beside premise and hypothesis is the number of a "
                "class, such as entailment; set data.yes_labels to those that say that the texts "
                "match, such as [0] if 0 is entailment; all other labels are negative"
            )
        return self._matches.says_yes(label, "label", place)


def couple_of(values: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the columns of the two texts that a label compares, such as premise and hypothesis.

    Returns:
        Their names; None if the row has no two such columns.
    """
    return next((one for one in COUPLES if one[0] in values and one[1] in values), None)


def _with_standard_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row in which label and score have the names `label` and `score`."""
    found = dict(values)
    for field, aliases in (("label", LABELS), ("score", SCORES)):
        alias = next((name for name in aliases if name in found), None)
        if alias is not None and field not in found:
            found[field] = found.pop(alias)
    return found


def _question(label: Any, names: tuple[str, str], place: str) -> str:
    return (
        f"{place}: the label {label!r} beside {' and '.join(names)} can be a match, a similarity "
        "or a class; set data.label: match if it says whether the texts match (data.yes_labels "
        "names the labels that do), set data.label: score (with contrastive.kind: cosent) if it is "
        "a similarity, data.label: class if texts with equal labels belong together, or "
        "data.columns: {label: null} if all pairs match"
    )


def with_answer(values: dict[str, Any], meaning: str, place: str) -> dict[str, Any]:
    """Return a row of a text and a label as a conversation in which the label is the answer.

    Rows without a text or a label, and rows with messages or a completion, are returned unchanged.

    Raises:
        UnclearLabel: `data.label` does not say that the label is the answer.
    """
    label = values.get("label")
    if "text" not in values or "messages" in values or "completion" in values or is_missing(label):
        return values
    if meaning == "answer":
        turns = [
            {"role": "user", "content": values["text"]},
            {"role": "assistant", "content": str(label)},
        ]
        rest = {name: value for name, value in values.items() if name not in ("text", "label")}
        return {**rest, "messages": turns}
    raise UnclearLabel(
        f"{place}: the row has the columns text and label; set data.label: answer to learn the "
        "label as the answer to the text, or data.columns: {label: null} to learn the text alone"
    )
