"""Ctrl-C while the command `fttui` is still importing itself or reads its arguments."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from fttui.tui import __main__ as start

ROOT = Path(__file__).parents[4]


class _CtrlC(MetaPathFinder):
    """Interrupts the import of one module."""

    def __init__(self, module: str) -> None:
        self._module = module

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raise `KeyboardInterrupt` for the module, as a signal during its import does."""
        if fullname == self._module:
            raise KeyboardInterrupt
        return None


@pytest.mark.parametrize(
    "unloaded",
    [
        ["fttui.tui.cli.main"],
        ["fttui.tui.cli.main", "fttui.tui.cli.options"],
        ["fttui.tui.cli.ls"],
    ],
)
def test_an_interrupt_during_the_imports_ends_the_command_with_its_exit_code(
    unloaded: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in unloaded:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "meta_path", [_CtrlC(unloaded[-1]), *sys.meta_path])
    monkeypatch.setattr(sys, "argv", ["fttui", "ls"])

    assert start.main() == 130
    assert capsys.readouterr() == ("", "")


def test_the_installed_command_starts_where_interrupts_are_caught() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    assert project["scripts"]["fttui"] == f"{start.__name__}:{start.main.__name__}"
