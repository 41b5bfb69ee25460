"""Random generators: what is captured is their state, and an unchanged state is not read again."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fttui.engine.train.checkpoint import rng
from fttui.engine.train.checkpoint.rng import (
    capture_rng,
    restore_rng,
    rng_from_tensors,
    rng_to_tensors,
)

DRAWS: dict[str, Callable[[], object]] = {
    "python": random.random,
    "python gauss, which keeps a spare number": lambda: random.gauss(0, 1),
    "python seed": lambda: random.seed(11),
    "numpy": np.random.rand,
    "numpy normal, which keeps a spare number": np.random.randn,
    "torch": lambda: torch.rand(3),
    "torch normal": lambda: torch.randn(()),
}


def drawn() -> tuple[Any, ...]:
    return (
        random.random(),
        random.gauss(0, 1),
        random.gauss(0, 1),
        float(np.random.randn()),
        float(np.random.rand()),
        torch.rand(2).tolist(),
        torch.randn(3).tolist(),
    )


@pytest.fixture(autouse=True)
def generators_are_put_back() -> Any:
    bits = np.random.mtrand.get_bit_generator()
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    np.random.mtrand.set_bit_generator(bits)
    random.setstate(before[0])
    np.random.set_state(before[1])
    torch.set_rng_state(before[2])


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_every_draw_is_in_the_next_capture(draw: Callable[[], object]) -> None:
    capture_rng()
    for _ in range(3):
        draw()
        kept = capture_rng()
        first = drawn()
        restore_rng(kept)
        assert drawn() == first
        restore_rng(kept)


def test_a_state_that_has_not_changed_is_the_same_object() -> None:
    random.seed(3)  # without a spare number
    np.random.seed(3)
    one, other = capture_rng(), capture_rng()
    assert all(one[name] is other[name] for name in ("python", "numpy", "cpu"))
    random.random()
    assert capture_rng()["python"] == random.getstate() != one["python"]


def test_python_keeps_its_state_where_it_is_looked_for() -> None:
    """Without this place each capture builds 625 numbers."""
    assert rng._twister_place() is not None


def test_a_generator_in_an_unknown_place_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rng, "_twister_place", lambda: None)
    reader = rng._PythonReader()
    assert reader.read() == random.getstate()
    random.random()
    assert reader.read() == random.getstate()


@pytest.mark.parametrize("kind", ["MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"])
def test_numpy_draws_the_same_from_a_checkpoint_whatever_its_generator(
    kind: str, tmp_path: Path
) -> None:
    np.random.mtrand.set_bit_generator(getattr(np.random, kind)(5))
    np.random.randn()  # keeps a spare number
    torch.save(rng_to_tensors(capture_rng()), tmp_path / "rng.pt")
    first = drawn()
    for generator in (np.random.mtrand.get_bit_generator(), np.random.MT19937(1)):
        np.random.mtrand.set_bit_generator(generator)
        restore_rng(rng_from_tensors(torch.load(tmp_path / "rng.pt", weights_only=True)))
        assert drawn() == first
