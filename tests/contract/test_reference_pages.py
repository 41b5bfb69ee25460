"""The pages in docs/reference are those that the tables in the code give."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fttui.engine.protocol.commands import COMMANDS
from fttui.engine.run.reference import __main__ as of_runs
from fttui.engine.run.reference.run_folder import paths
from fttui.tui.actions import ACTIONS
from fttui.tui.cli.reference import __main__ as of_the_app

from .examples import all_messages
from .links import ROOT

FOLDER = ROOT / "docs" / "reference"
PACKAGES = {
    "fttui.engine.run.reference": of_runs.PAGES,
    "fttui.tui.cli.reference": of_the_app.PAGES,
}
PAGES = [(package, name) for package, pages in PACKAGES.items() for name in pages]


@pytest.mark.parametrize(("package", "name"), PAGES, ids=[name for _, name in PAGES])
def test_a_page_is_current(package: str, name: str) -> None:
    page: Callable[[], str] = PACKAGES[package][name]
    assert (FOLDER / name).read_text(encoding="utf-8") == page(), (
        f"regenerate it: python -m {package} docs/reference"
    )


@pytest.mark.filterwarnings("ignore:.*found in sys.modules.*:RuntimeWarning")
@pytest.mark.parametrize("package", PACKAGES)
def test_the_command_writes_the_pages(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["reference", str(tmp_path)])
    runpy.run_module(package, run_name="__main__")
    assert {file.name for file in tmp_path.iterdir()} == set(PACKAGES[package])


def test_every_action_command_and_message_is_on_a_page() -> None:
    text = {name: (FOLDER / name).read_text(encoding="utf-8") for _, name in PAGES}
    assert all(f"`{action.id}`" in text["keys.md"] for action in ACTIONS)
    usages = [spec.usage.replace("|", r"\|") for spec in COMMANDS]
    assert all(f"`{usage}`" in text["commands.md"] for usage in usages)
    sections = text["events.md"] + text["wire.md"]
    kinds = {type(message).__name__ for message in all_messages().values()}
    assert {kind for kind in kinds if f"### {kind}\n" not in sections} <= {"Record"}


def test_every_path_of_a_real_run_folder_is_on_the_page() -> None:
    for run in ("sft", "dpo"):
        found = {file.name for file in (ROOT / "tests" / "data" / "cb82d2e" / run).iterdir()}
        assert found - {path.partition("/")[0] for path in paths()} == set()
