"""Columns that are not understood are refused with the nearest records that the task reads."""

from __future__ import annotations

import pytest

from fttui.engine.config.tasks import FORMATS_OF
from fttui.engine.data.records.formats import detect_format
from fttui.engine.data.records.forms import _FORMS, listed, nearest_forms, tasks_of


@pytest.mark.parametrize(
    ("task", "columns", "first"),
    [
        ("sft", ["Prompt", "Completions"], "prompt + completion/response"),
        ("sft", ["instructions", "outputs"], "instruction + output"),
        ("sft", ["message"], "messages/conversations"),
        ("sft", ["Text"], "text"),
        ("sft", ["faq_question", "faq_answer"], "question + answer"),
        ("kto", ["prompt", "completion", "labels"], "prompt + completion + label"),
        ("kto", ["prompt", "choosen", "rejected"], "prompt + chosen + rejected"),
        ("contrastive", ["sentence_a1", "sentence_b2"], "sentence1/text1 + sentence2/text2"),
    ],
)
def test_the_nearest_form_comes_first(task: str, columns: list[str], first: str) -> None:
    found = nearest_forms(columns, task).split("; ")
    assert found[0] == first
    assert len("; ".join(found)) < 200


@pytest.mark.parametrize("task", FORMATS_OF)
def test_every_form_that_is_named_is_read_for_its_task(task: str) -> None:
    for form in _FORMS[task]:
        for number in range(max(map(len, form))):
            columns = [names[min(number, len(names) - 1)] for names in form]
            assert detect_format(columns, task) in FORMATS_OF[task], columns


def test_many_columns_and_long_names_are_shortened() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed([]) == "(none)"
    shown = listed([f"{n} " + 5000 * "x" for n in range(500)])
    assert shown.endswith(" and 488 more")
    assert len(shown) < 600


def test_the_tasks_that_read_a_format_are_named() -> None:
    assert tasks_of("preference") == ["dpo", "kto", "reward"]
    assert nearest_forms(500 * ["x" * 10_000], "dpo").startswith("prompt + chosen + rejected")
