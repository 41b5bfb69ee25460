"""The short form of every fault, as `make faults` runs it."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from . import FAULTS, Stage
from .book import Box, play

LONGEST_S = 240
PATIENT = {"F11", "F14", "F18", "F21", "F22", "F36"}
"""Faults that mostly wait or repeat; `make faults` and the long tests inject them."""
IDS = [pytest.param(id_, marks=pytest.mark.long) if id_ in PATIENT else id_ for id_ in FAULTS]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """One fork server and one reference run for all faults."""
    return Stage(tmp_path_factory.mktemp("stage"))


@pytest.mark.slow
@pytest.mark.timeout(LONGEST_S)
@pytest.mark.parametrize("id_", IDS)
def test_fault(id_: str, stage: Stage, tmp_path: Path) -> None:
    seed = int(os.environ.get("FTTUI_FAULT_SEED", "0"))
    row = play(FAULTS[id_], Box(tmp_path, stage, long=False, rng=random.Random(f"{seed}{id_}")))
    if row.figures.skipped:
        pytest.skip(row.figures.ours)
    assert row.figures.ok, row.figures.ours
