from __future__ import annotations

from typing import Any

import pytest

from fttui.engine.config.data_reasons.rows import IGNORED_COLUMNS, UNUSED_COLUMNS
from fttui.engine.config.tasks import Format
from fttui.engine.data.findings import Findings
from fttui.engine.data.records.column_use import ColumnUse
from fttui.engine.data.records.formats import TextRecord
from tests.unit.engine.data.records.test_reader import Reading

TURNS = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


@pytest.mark.parametrize(
    ("form", "row", "unused"),
    [
        ("text", {"text": "t", "id": "1"}, []),
        ("text", {"text": "t", "url": "u", "lang": "en"}, ["url", "lang"]),
        ("text", {"text": "t", "url": None}, []),
        ("messages", {"messages": TURNS, "source": "s"}, ["source"]),
        ("prompt_completion", {"prompt": "p", "completion": "c", "topic": 3}, ["topic"]),
        ("pairs", {"query": "q", "pos": ["p"], "neg": ["n"], "negative_1": "m"}, []),
        ("preference", {"prompt": "p", "chosen": "a", "rejected": "b", "margin": 1}, ["margin"]),
        ("rated", {"prompt": "p", "completion": "c", "label": True}, []),
    ],
)
def test_columns_that_no_record_is_made_from_are_unused(
    form: Format, row: dict[str, Any], unused: list[str]
) -> None:
    use = ColumnUse()
    use.convert(row, form, "d:1", "d.jsonl:1")
    assert use.unused == unused


def test_unused_columns_are_counted_with_their_names_and_first_row() -> None:
    use, findings = ColumnUse(), Findings()
    for number, row in enumerate([{}, {"url": "u"}, {"lang": "en", "url": "v"}], start=1):
        place = f"d.jsonl:{number}"
        record, unread = use.convert({"text": "t", **row}, "text", f"d:{number}", place)
        assert (record, unread) == (TextRecord(f"d:{number}", "t"), row)
    use.note(findings)
    [found] = findings
    assert (found.reason, found.count, found.total) == (UNUSED_COLUMNS, 2, 3)
    assert (found.place, found.detail) == ("d.jsonl:2", "url, lang")
    assert not found.needs_consent([])


def test_a_column_read_in_one_row_is_used() -> None:
    use = ColumnUse()
    pair = {"anchor": "a", "positive": "p"}
    use.convert({**pair, "label": None}, "pairs", "1", "d:1")
    use.convert({**pair, "label": 3}, "pairs", "2", "d:2")
    assert use.unused == []


@pytest.mark.parametrize(
    ("column", "values", "asks"),
    [
        ("reasoning", ["on", "off"], False),
        ("reasoning", [True, False], False),
        ("reasoning", ["on", "Because it is."], True),
        ("thinking", ["Hm."], True),
        ("label", [{"ability": ["x"]}], False),
        ("label", [1, 0], True),
    ],
)
def test_switches_and_descriptions_need_no_consent(
    column: str, values: list[Any], asks: bool
) -> None:
    use, findings = ColumnUse(), Findings()
    for number, value in enumerate(values):
        use.convert({"messages": TURNS, column: value}, "messages", f"d:{number}", f"d:{number}")
    use.note(findings)
    assert [one.reason for one in findings] == [IGNORED_COLUMNS if asks else UNUSED_COLUMNS]


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["### Instruction: a ### Response: yes", "### Instruction: b ### Response: no"], True),
        (["### Instruction: a ### Response: yes", "### Instruction: b"], False),
    ],
)
def test_an_answer_that_every_text_contains_comes_with_the_other_way_to_read_it(
    texts: list[str], says: bool
) -> None:
    rows = [
        {"text": text, "instruction": ask, "output": tell}
        for text, ask, tell in zip(texts, ["a", "b"], ["yes", "no"], strict=True)
    ]
    (found,) = [one for one in Reading("sft", rows).findings if "output" in one.detail]
    assert found.needs_consent(())
    assert ("{text: null}" in found.detail) is says
    other = Reading("sft", rows, columns={"text": None})
    assert [type(one).__name__ for one in other.records] == ["MessagesRecord"] * 2
