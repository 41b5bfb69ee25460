"""The page about data lists every reason, with its limit, as the code has them."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

from fttui.engine.config.data_reasons import REASONS
from fttui.engine.config.reasons_table import BEGIN, END, reasons_table, with_table
from fttui.engine.data.findings import Findings
from fttui.engine.data.sources import read_rows

from .links import ROOT

PAGE = ROOT / "docs" / "data.md"
EXAMPLES = re.findall(
    r"^  \| ([^|]+) \| `([^`]+)` \| (\d+) \|$", PAGE.read_text(encoding="utf-8"), re.M
)
"""The forms of JSON on the page: description, example, number of records."""


def test_the_table_of_reasons_is_current() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_table(page), (
        "regenerate it: python -m fttui.engine.config.reasons_table docs/data.md"
    )
    assert all(f"| `{reason.name}` |" in page for reason in REASONS)


@pytest.mark.filterwarnings("ignore:.*found in sys.modules.*:RuntimeWarning")
def test_the_command_writes_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "data.md"
    page.write_text(f"# Data\n\n{BEGIN}\nold\n{END}\nrest\n", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["reasons_table", str(page)])
    runpy.run_module("fttui.engine.config.reasons_table", run_name="__main__")
    expected = f"# Data\n\n{BEGIN}\n{reasons_table()}{END}\nrest\n"
    assert page.read_text(encoding="utf-8") == expected


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="no <!-- reasons"):
        with_table("# Data\n")


def test_the_page_has_examples_of_json() -> None:
    assert len(EXAMPLES) >= 10


@pytest.mark.parametrize(("form", "example", "count"), EXAMPLES)
def test_the_examples_of_json_are_read_as_the_page_says(
    tmp_path: Path, form: str, example: str, count: str
) -> None:
    file = tmp_path / "d.json"
    file.write_text(example, encoding="utf-8")
    findings = Findings()
    rows = read_rows(str(file), "train", None, findings)
    assert len(rows) == int(count), form
    texts = {"text", "prompt", "completion", "messages"}
    assert all(texts & row.values.keys() and None not in row.values.values() for row in rows)
    assert {found.reason.name for found in findings} <= {"unread-keys"}
