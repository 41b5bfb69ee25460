"""The plugin of axolotl, against the contract of its base class."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

import fttui


class BasePlugin:
    """What axolotl calls: it makes the plugin without arguments."""

    def post_trainer_create(self, cfg: Any, trainer: Any) -> None:
        """Do nothing, as in axolotl."""


def test_the_trainer_that_axolotl_has_built_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    base: Any = ModuleType("axolotl.integrations.base")
    base.BasePlugin = BasePlugin
    for name in ("axolotl", "axolotl.integrations"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, base.__name__, base)
    monkeypatch.delitem(sys.modules, "fttui.axolotl", raising=False)
    watched: list[Any] = []
    monkeypatch.setattr(fttui, "watch", watched.append)
    trainer = object()
    plugin = import_module("fttui.axolotl").Plugin()
    assert isinstance(plugin, BasePlugin)
    plugin.post_trainer_create({}, trainer)
    assert watched == [trainer]
    monkeypatch.delitem(sys.modules, "fttui.axolotl")
