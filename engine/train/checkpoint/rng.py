"""Random generators: capture their states, restore them and convert them to tensors."""

from __future__ import annotations

import ctypes
import random
from typing import Any

import numpy as np
import torch

RngState = dict[str, Any]
_MT19937_BYTES = 4 * 625
"""Size of the state of NumPy's Mersenne twister in memory: its key and the position in it."""


class _NumpyReader:
    """Reads NumPy's global generator; a state that has not changed is not built anew.

    Building one takes a hundred times as long as comparing its bytes. The spare normal number lies
    outside of these bytes, and can be taken without a change to them; while there is one, the state
    is built anew. One appears with a change of the bytes only.
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


_numpy = _NumpyReader()


def capture_rng() -> RngState:
    """Return the state of the Python, NumPy and CPU generators and of this rank's CUDA device."""
    return {
        "python": random.getstate(),
        "numpy": _numpy.read(),
        "cpu": torch.get_rng_state(),
        "cuda": [torch.cuda.get_rng_state()] if torch.cuda.is_available() else [],
    }


def restore_rng(state: RngState) -> None:
    """Restore the state of every generator that `capture_rng` captured."""
    python = state["python"]
    random.setstate((python[0], tuple(python[1]), python[2]))
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["cpu"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"][0])


def rng_to_tensors(state: RngState) -> dict[str, Any]:
    """Return the state as tensors and plain values, loadable with `weights_only`."""
    numpy = state["numpy"]
    inner = numpy["state"]
    return {
        "python": [state["python"][0], list(state["python"][1]), state["python"][2]],
        "numpy": {
            "kind": numpy["bit_generator"],
            "key": torch.from_numpy(inner["key"].astype(np.int64)),
            "pos": int(inner["pos"]),
            "has_gauss": int(numpy["has_gauss"]),
            "gauss": float(numpy["gauss"]),
        },
        "cpu": state["cpu"],
        "cuda": state["cuda"],
    }


def rng_from_tensors(stored: dict[str, Any]) -> RngState:
    """Return the state from the output of `rng_to_tensors`."""
    numpy = stored["numpy"]
    return {
        "python": stored["python"],
        "numpy": {
            "bit_generator": numpy["kind"],
            "state": {"key": numpy["key"].numpy().astype(np.uint32), "pos": numpy["pos"]},
            "has_gauss": numpy["has_gauss"],
            "gauss": numpy["gauss"],
        },
        "cpu": stored["cpu"],
        "cuda": stored["cuda"],
    }
