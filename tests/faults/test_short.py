"""The short form of every fault, as `make faults` runs it."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from . import FAULTS, Stage
from .book import Box, play

LONGEST_S = 240


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """One fork server and one reference run for all faults."""
    return Stage(tmp_path_factory.mktemp("stage"))


@pytest.mark.slow
@pytest.mark.timeout(LONGEST_S)
@pytest.mark.parametrize("id_", list(FAULTS))
def test_fault(id_: str, stage: Stage, tmp_path: Path) -> None:
    seed = int(os.environ.get("FTTUI_FAULT_SEED", "0"))
    row = play(FAULTS[id_], Box(tmp_path, stage, long=False, rng=random.Random(f"{seed}{id_}")))
    if row.figures.skipped:
        pytest.skip(row.figures.ours)
    assert row.figures.ok, row.figures.ours
