"""The imports of the training stack: only what a task uses, in parts between which one may stop.

They are most of the start of a run. So `fttui run` lets them begin while it still checks the data
(`engine/standby.py`).
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_AFTER_TORCH = ("bitsandbytes", "transformers.modeling_utils", "peft", "transformers.trainer")
"""Parts of what the session imports, each of at most about a second."""


def import_training(task: str, proceed: Callable[[], bool] = lambda: True) -> None:
    """Import what training a task needs, as long as `proceed`, asked before each part, is true.

    What is imported is never garbage: to search it meanwhile would cost a second of every start,
    and to search it again and again some milliseconds of a step.
    """
    gc.disable()
    import_module("fttui.engine.train.distributed.place")
    from ..model.files.model_list import keep_model_list
    from .patches import compile_deferred

    keep_model_list()
    optimize = imported_on_call("scipy.optimize", by="transformers")
    with compile_deferred(), imported_on_use("datasets"), optimize:
        for part in (*_AFTER_TORCH, "fttui.engine.train.session"):
            if not proceed():
                return
            import_module(part)
        from .trainers.build import builder_of

        builder_of(task)


def imported_on_use(name: str) -> AbstractContextManager[None]:
    """Within the block, let `import NAME` make a module that is imported when it is first used.

    transformers imports datasets, and thus pandas, to ask whether something is an instance of its
    classes. Most runs never ask. After the block the name is imported as ever, and the modules
    that have the deferred one find the attributes of the imported one in it.
    """
    return _deferred(name, _ImportedOnUse)


def imported_on_call(name: str, *, by: str) -> AbstractContextManager[None]:
    """Within the block, let `from NAME import …` give functions that import it when called.

    transformers imports scipy.optimize for the losses of object detection, which no run computes.

    Args:
        name: the module.
        by: the package that gets such functions. Others, such as scipy's own, may import classes or
            submodules and therefore get the module itself.
    """
    return _deferred(name, lambda name, spec: _ImportedOnCall(name, spec, by))


@contextmanager
def _deferred(name: str, kind: Callable[[str, ModuleSpec], _ImportedOnUse]) -> Iterator[None]:
    spec = None
    with suppress(ModuleNotFoundError):  # of the package that has the module
        spec = None if name in sys.modules else find_spec(name)
    deferred = None if spec is None else kind(name, spec)
    if deferred is not None:
        sys.modules[name] = deferred
    try:
        yield
    finally:
        if deferred is not None and sys.modules.get(name) is deferred:
            del sys.modules[name]


class _ImportedOnUse(ModuleType):
    """Has the attributes of the module of its name, which is imported when one is read.

    Its specification and its file are known before.
    """

    def __init__(self, name: str, spec: ModuleSpec) -> None:
        super().__init__(name)
        self.__spec__ = spec
        self.__file__ = spec.origin

    def __getattr__(self, attribute: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), attribute)


class _ImportedOnCall(_ImportedOnUse):
    """Has functions of any name for one package, which import the module when they are called."""

    def __init__(self, name: str, spec: ModuleSpec, by: str) -> None:
        super().__init__(name, spec)
        self.__by = by

    def __getattr__(self, attribute: str) -> Any:
        reader = sys._getframe(1).f_globals.get("__name__", "")
        if reader.partition(".")[0] != self.__by:
            return super().__getattr__(attribute)
        if attribute.startswith("__"):
            raise AttributeError(attribute)

        def called(*given: Any, **named: Any) -> Any:
            return super(_ImportedOnCall, self).__getattr__(attribute)(*given, **named)

        return called
