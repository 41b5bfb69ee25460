"""What the class of a trainer keeps in attributes from step to step, beyond `transformers.Trainer`.

TRL's trainers hold the completions of several steps and figures to be logged there; a class of the
script may count or average. Which attributes these are follows from the code of the methods.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from copy import copy, deepcopy
from inspect import isroutine, unwrap
from types import CodeType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

_LEAVES = frozenset({type(None), bool, int, float, complex, str, bytes})
_CONTAINERS = (dict, list, tuple, set, deque)
_COPIED_ELEMENTS = 65_536
"""Elements of a tensor up to which it is copied; a larger one is data, which trainers replace."""
_COPIED_ENTRIES = 100_000
"""Entries of a container up to which it is copied; a longer one is data."""
_DEEPEST = 8
"""Containers within containers that are copied."""
_OF_LOOP = frozenset(
    [
        "train_dataset",
        "eval_dataset",
        "state",
        "control",
        "args",
        "model",
        "model_wrapped",
        "optimizer",
        "lr_scheduler",
        "accelerator",
        "callback_handler",
    ]
)
"""Attributes that the loop of `transformers.Trainer` looks after, and data sets."""
_CONSTRUCTORS = frozenset({"__init__", "__new__", "__init_subclass__"})

Restorer = Callable[[], Any]
"""Returns the value of an attribute as it was kept; it may be called more than once."""


class UncopiedData(NamedTuple):
    """Data that is too large to copy, and a value by which a change within it is detected."""

    name: str
    data: Any
    sign: int

    @property
    def changed(self) -> bool:
        """Whether the data is no longer as it was."""
        return _sign(self.data) != self.sign


class AttributesCopy(NamedTuple):
    """A copy of attributes at a boundary."""

    same: dict[str, Any]
    """Values that cannot change, and objects of types unknown to fttui."""
    restorers: dict[str, Restorer]
    uncopied: list[UncopiedData]


class OwnAttributes:
    """Copies of the attributes that the methods of a trainer's class use, and their restoration."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._used = names_in_methods(type(trainer)) - _OF_LOOP

    def capture(self) -> AttributesCopy:
        """Return a copy of the attributes."""
        held = vars(self._trainer)
        kept = AttributesCopy({}, {}, [])
        for name in held.keys() & self._used:
            value = held[name]
            keeper = _keeper(type(value))
            if keeper is None:
                kept.same[name] = value
            else:
                kept.restorers[name] = keeper(value, name, kept.uncopied, 0)
        return kept

    def restore(self, kept: AttributesCopy) -> None:
        """Restore a copy; attributes that methods have created since then are removed."""
        held = vars(self._trainer)
        for name in (held.keys() & self._used) - kept.same.keys() - kept.restorers.keys():
            if isinstance(held[name], (*_LEAVES, *_CONTAINERS, Tensor)):
                delattr(self._trainer, name)
        for name, value in kept.same.items():
            setattr(self._trainer, name, value)
        for name, restored in kept.restorers.items():
            setattr(self._trainer, name, restored())

    @staticmethod
    def why_lost(kept: AttributesCopy) -> str:
        """Return why a copy cannot be restored exactly; empty if it can."""
        for one in kept.uncopied:
            if one.changed:
                return (
                    f"trainer.{one.name} is too large to be copied and has been changed in place "
                    "since"
                )
        return ""


def names_in_methods(kind: type[Any]) -> frozenset[str]:
    """Return the names that the methods of a class use, except for its constructors.

    Those of `transformers.Trainer` and of what it is derived from are left out.
    """
    own: list[type[Any]] = []
    for one in kind.__mro__:
        if one.__module__ == "transformers.trainer":
            break
        own.append(one)
    return frozenset(name for one in own for code in method_codes(one) for name in code.co_names)


def method_codes(kind: type[Any]) -> Iterator[CodeType]:
    """Yield the code of every method that a class itself defines, except for its constructors."""
    for name, method in vars(kind).items():
        if name in _CONSTRUCTORS:
            continue
        for function in _functions(method):
            code = getattr(unwrap(function), "__code__", None)
            if isinstance(code, CodeType):
                yield from _with_inner(code)


def _functions(method: Any) -> Iterator[Any]:
    if isinstance(method, property):
        yield from (one for one in (method.fget, method.fset) if one is not None)
    elif isroutine(method):
        yield getattr(method, "__func__", method)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


_Keeper = Callable[[Any, str, list[UncopiedData], int], Restorer]


def _keeper(kind: type[object]) -> _Keeper | None:
    """Return the function that copies values of a type; None if a reference to them is enough.

    The function takes the value, the name of its attribute, a list to which it adds what it cannot
    copy, and the number of containers around the value.
    """
    if kind not in _keepers:
        _keepers[kind] = _keeper_of(kind)
    return _keepers[kind]


_keepers: dict[type[object], _Keeper | None] = {}


def _keeper_of(kind: type[object]) -> _Keeper | None:
    if issubclass(kind, Tensor):
        return _kept_tensor
    if issubclass(kind, _CONTAINERS):
        return _kept_container
    if issubclass(kind, torch.Generator | random.Random | np.random.Generator):
        return _kept_generator
    return None


def _kept(value: Any, name: str, uncopied: list[UncopiedData], depth: int) -> Restorer:
    keeper = _keeper(type(value)) if depth <= _DEEPEST else None
    return keeper(value, name, uncopied, depth) if keeper is not None else lambda: value


def _kept_tensor(tensor: Tensor, name: str, uncopied: list[UncopiedData], _: int) -> Restorer:
    if tensor.numel() <= _COPIED_ELEMENTS:
        copied = tensor.detach().clone()
        return lambda: copied.clone().requires_grad_(tensor.requires_grad)
    uncopied.append(UncopiedData(name, tensor, _sign(tensor)))
    return lambda: tensor


def _kept_container(value: Any, name: str, uncopied: list[UncopiedData], depth: int) -> Restorer:
    if len(value) > _COPIED_ENTRIES:
        uncopied.append(UncopiedData(name, value, len(value)))
        return lambda: value
    if isinstance(value, dict):
        inner = {key: _kept(item, name, uncopied, depth + 1) for key, item in value.items()}
        return lambda: _refilled(value, {key: restored() for key, restored in inner.items()})
    if isinstance(value, set) or set(map(type, value)) <= _LEAVES:
        content = copy(value)
        return lambda: _refilled(value, content)
    items = [_kept(item, name, uncopied, depth + 1) for item in value]
    return lambda: _refilled(value, [restored() for restored in items])


def _refilled(container: Any, content: Any) -> Any:
    """Put content into the container that held it, so that other references to it see it, too."""
    if isinstance(container, tuple):
        named = hasattr(container, "_fields")
        return type(container)(*content) if named else type(container)(content)
    container.clear()
    if isinstance(container, dict | set):
        container.update(content)
    else:
        container.extend(content)
    return container


def _kept_generator(generator: Any, *_: Any) -> Restorer:
    """Return what sets a random generator to its state of now."""
    bits = generator.bit_generator if isinstance(generator, np.random.Generator) else None
    if bits is not None:
        state: Any = deepcopy(bits.state)
    else:
        drawn = isinstance(generator, random.Random)
        state = generator.getstate() if drawn else generator.get_state()

    def restored() -> Any:
        if bits is not None:
            bits.state = state
        elif isinstance(generator, random.Random):
            generator.setstate(state)
        else:
            generator.set_state(state)
        return generator

    return restored


def _sign(data: Any) -> int:
    if not isinstance(data, Tensor):
        return len(data)
    return 0 if data.is_inference() else int(data._version)
