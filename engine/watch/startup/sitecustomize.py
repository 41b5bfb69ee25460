"""Loaded by every Python process under `fttui exec`: watches the trainers that it makes.

Nothing is imported here but the standard library. When a process imports `transformers.trainer`,
the constructor of `Trainer` is wrapped in that process. A `sitecustomize` that this one hides runs
all the same.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_TRAINER = "transformers.trainer"


def _run_hidden() -> None:
    """Run the `sitecustomize` that would have been found without this one."""
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


class _TrainerPatchingLoader(Loader):
    """Loads `transformers.trainer` as its own loader does, then wraps `Trainer`."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module as its own loader does; None leaves that to Python."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, then wrap the constructor of its `Trainer`."""
        self._loader.exec_module(module)
        _wrap(module.Trainer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _TrainerFinder(MetaPathFinder):
    """Finds `transformers.trainer` once, with a loader that wraps `Trainer`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the module with our loader; None for every other module."""
        if fullname != _TRAINER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _TrainerPatchingLoader(spec.loader)
        return spec


def _wrap(trainer_class: Any) -> None:
    init = trainer_class.__init__

    @functools.wraps(init)
    def watched(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        _watch(self)

    trainer_class.__init__ = watched


def _watch(trainer: Any) -> None:
    try:
        from fttui.engine.watch.huggingface.watch import watch_trainer
        from fttui.engine.watch.watch_options import WatchOptions
    except ImportError as error:
        sys.stderr.write(
            f"fttui: this trainer is not watched: fttui cannot be imported by {sys.executable}: "
            f"{error}\n"
        )
        return
    watch_trainer(trainer, WatchOptions(name=os.environ.get("FTTUI_NAME") or None), at_once=False)


_run_hidden()
if "FTTUI_EXEC" in os.environ and os.environ.get("FTTUI", "").lower() not in ("off", "0", "false"):
    sys.meta_path.insert(0, _TrainerFinder())
