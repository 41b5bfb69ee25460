"""The page about data lists every reason, with its limit, as the code has them."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from fttui.engine.config.data_reasons import REASONS
from fttui.engine.config.reasons_table import BEGIN, END, reasons_table, with_table

from .links import ROOT

PAGE = ROOT / "docs" / "data.md"


def test_the_table_of_reasons_is_current() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_table(page), (
        "write it anew: python -m fttui.engine.config.reasons_table docs/data.md"
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
