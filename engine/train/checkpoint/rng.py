"""Random generators: capture their states, restore them and convert them to tensors."""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

RngState = dict[str, Any]
"""State of every generator. One that has not changed since the last capture is the same object."""
_MT19937_BYTES = 4 * 625
"""Size of the state of a Mersenne twister in memory: its key and the position in it."""


class _NumpyReader:
    """Reads NumPy's global generator; a state that has not changed is not rebuilt.

    Building one takes a hundred times as long as comparing its bytes. The spare normal number lies
    outside of these bytes, and can be taken without a change to them; while there is one, the state
    is rebuilt. One appears with a change of the bytes only.
    """

    def __init__(self) -> None:
        self._bytes = b""
        self._state: dict[str, Any] = {}

    def read(self) -> dict[str, Any]:
        """Return the state; treat it as read-only."""
        now = self._bytes_now()
        if not now or now != self._bytes or self._state["has_gauss"]:
            self._bytes, self._state = now, np.random.get_state(legacy=False)
        return self._state

    @staticmethod
    def _bytes_now() -> bytes:
        """Return the generator's state in memory; empty for a generator of another kind."""
        kind, generator = np.random.MT19937, np.random.mtrand.get_bit_generator()
        if type(generator) is not kind:
            return b""
        return ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)


class _PythonReader:
    """Reads Python's global generator; a state that has not changed is not rebuilt.

    To build a state takes 625 Python integers. Instead the bytes of the generator object are
    compared with the last ones, if a test generator shows that the object holds its state.
    """

    def __init__(self) -> None:
        self._place = _twister_place()
        self._key: tuple[bytes, float | None] | None = None
        self._state: tuple[Any, ...] = ()

    def read(self) -> tuple[Any, ...]:
        """Return the state."""
        generator: Any = getattr(random, "_inst", None)
        kind: type = type(generator)
        if self._place is None or kind is not random.Random:
            return random.getstate()
        held = ctypes.string_at(id(generator) + self._place, _MT19937_BYTES)
        now = held, generator.gauss_next
        if now != self._key:
            self._key, self._state = now, random.getstate()
        return self._state


def _twister_place() -> int | None:
    """Return the byte offset of the state in Python's generator objects; None if it is unknown."""
    if sys.implementation.name != "cpython":
        return None
    probe = random.Random(7)
    probe.random()
    *key, position = probe.getstate()[1]
    content = ctypes.string_at(id(probe), random.Random.__basicsize__)
    for order in ((position, *key), (*key, position)):
        place = content.find(struct.pack(f"={len(order)}I", *order))
        if place >= 0:
            return place
    return None


class _TorchReader:
    """Reads torch's generator of the CPU; a state that has not changed is the earlier tensor."""

    def __init__(self) -> None:
        self._bytes = b""
        self._state = torch.empty(0, dtype=torch.uint8)

    def read(self) -> Tensor:
        """Return the state; treat it as read-only."""
        state = torch.get_rng_state()
        now = ctypes.string_at(state.data_ptr(), state.nbytes)
        if now != self._bytes:
            self._bytes, self._state = now, state
        return self._state


_numpy, _python, _torch = _NumpyReader(), _PythonReader(), _TorchReader()
_has_cuda = cache(torch.cuda.is_available)


def capture_rng() -> RngState:
    """Return the state of the Python, NumPy and CPU generators and of this rank's CUDA device."""
    return {
        "python": _python.read(),
        "numpy": _numpy.read(),
        "cpu": _torch.read(),
        "cuda": [torch.cuda.get_rng_state()] if _has_cuda() else [],
    }


def restore_rng(state: RngState) -> None:
    """Restore the state of every generator that `capture_rng` captured."""
    python = state["python"]
    random.setstate((python[0], tuple(python[1]), python[2]))
    _restore_numpy(state["numpy"])
    torch.set_rng_state(state["cpu"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"][0])


def _restore_numpy(state: dict[str, Any]) -> None:
    """Restore NumPy's global generator, which a script may have replaced by one of another kind."""
    kind = state["bit_generator"]
    if type(np.random.mtrand.get_bit_generator()).__name__ != kind:
        np.random.mtrand.set_bit_generator(getattr(np.random, kind)())
    np.random.set_state(state)


def rng_to_tensors(state: RngState) -> dict[str, Any]:
    """Return the state as tensors and plain values, loadable with `weights_only`."""
    return {
        "python": [state["python"][0], list(state["python"][1]), state["python"][2]],
        "numpy": _numpy_to_tensors(state["numpy"]),
        "cpu": state["cpu"],
        "cuda": state["cuda"],
    }


def _numpy_to_tensors(state: dict[str, Any]) -> dict[str, Any]:
    if state["bit_generator"] != "MT19937":
        plain: dict[str, Any] = _with_tensors(state)
        return plain
    inner = state["state"]
    return {
        "kind": state["bit_generator"],
        "key": torch.from_numpy(inner["key"].astype(np.int64)),
        "pos": int(inner["pos"]),
        "has_gauss": int(state["has_gauss"]),
        "gauss": float(state["gauss"]),
    }


def _with_tensors(value: Any) -> Any:
    """Return the state of a generator with tensors of the same bits in place of its arrays."""
    if isinstance(value, dict):
        return {name: _with_tensors(item) for name, item in value.items()}
    return torch.from_numpy(value.view(np.int64)) if isinstance(value, np.ndarray) else value


def _with_arrays(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_arrays(item) for name, item in value.items()}
    return value.numpy().view(np.uint64) if isinstance(value, Tensor) else value


def _numpy_from_tensors(stored: dict[str, Any]) -> dict[str, Any]:
    if "bit_generator" in stored:
        plain: dict[str, Any] = _with_arrays(stored)
        return plain
    return {
        "bit_generator": stored["kind"],
        "state": {"key": stored["key"].numpy().astype(np.uint32), "pos": stored["pos"]},
        "has_gauss": stored["has_gauss"],
        "gauss": stored["gauss"],
    }


def rng_from_tensors(stored: dict[str, Any]) -> RngState:
    """Return the state from the output of `rng_to_tensors`."""
    return {
        "python": stored["python"],
        "numpy": _numpy_from_tensors(stored["numpy"]),
        "cpu": stored["cpu"],
        "cuda": stored["cuda"],
    }
