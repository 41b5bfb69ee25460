"""The short form of every fault, as `make faults` runs it."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from fttui.engine.errors import ModelError
from fttui.engine.protocol.events import RunEnded
from fttui.engine.protocol.states import RunState

from . import FAULTS, Stage
from .book import Box, play
from .stage import read_journal

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


@pytest.mark.slow
def test_an_engine_without_its_model_ends_with_the_code_and_the_text_of_its_error(
    stage: Stage,
) -> None:
    run = stage.new_run(train__devices=1, model__id="no-such/model")
    with stage.start(run, ranks=1) as engine:
        assert engine.join() == [ModelError.exit_code]
    ended = read_journal(run)[-1].event
    assert isinstance(ended, RunEnded)
    assert (ended.state, ended.exit_code) == (RunState.FAILED, ModelError.exit_code)
    assert "no-such/model" in ended.error
    assert "Traceback" not in run.engine_log.read_text()
