"""The page of all configuration keys is the one that the schema gives."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from fttui.engine.config.messages import key_paths
from fttui.engine.config.reference import reference_text
from fttui.engine.config.schema import RunConfig

from .links import ROOT


def test_the_page_is_current() -> None:
    committed = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert committed == reference_text(), (
        "regenerate it: python -m fttui.engine.config.reference docs/configuration.md"
    )


@pytest.mark.filterwarnings("ignore:.*found in sys.modules.*:RuntimeWarning")
def test_the_command_writes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "configuration.md"
    monkeypatch.setattr(sys, "argv", ["reference", str(page)])
    runpy.run_module("fttui.engine.config.reference", run_name="__main__")
    assert page.read_text(encoding="utf-8") == reference_text()


def test_every_key_is_on_it() -> None:
    page = reference_text()
    missing = [path for path in key_paths(RunConfig) if f"`{path.rpartition('.')[2]}`" not in page]
    sections = {line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")}
    assert set(missing) <= sections
    assert {"data.train", "train.lr_ratios", "train.early_stop"} <= sections


def test_cells_show_fixed_lists_and_bars() -> None:
    page = reference_text()
    assert "| `score_range` | [a number, a number] or null |" in page
    assert "text or a list of text or mappings" in page
    assert r'["<\|im_start\|>", "<\|im_end\|>"]' in page
