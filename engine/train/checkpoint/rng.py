"""Random generators: capture their states, restore them and convert them to tensors."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

RngState = dict[str, Any]


def capture_rng() -> RngState:
    """Return the state of the Python, NumPy and CPU generators and of this rank's CUDA device."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "cpu": torch.get_rng_state(),
        "cuda": [torch.cuda.get_rng_state()] if torch.cuda.is_available() else [],
    }


def restore_rng(state: RngState) -> None:
    """Restore the state of every generator."""
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
