"""The last event of the engine process, and the errors it explains."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fttui.engine.__main__ import _announce, _lost_rank, _record_end, explain
from fttui.engine.errors import DataError, TrainingFailed
from fttui.engine.protocol.events import AnyEvent, LogEmitted, RunEnded
from fttui.engine.protocol.states import RunState
from fttui.engine.run.journal_summary import summarize_journal
from fttui.engine.run.processes.marks import read_engine_status
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.distributed.elastic import LaunchAttempt
from fttui.engine.train.distributed.place import RankPlace
from fttui.engine.train.event_log import EventLog
from fttui.engine.train.session_start import SessionStart
from tests.support.engine_double import make_run


def recorded(ended: RunEnded, attempt: LaunchAttempt) -> list[AnyEvent]:
    events: list[AnyEvent] = []
    event_log = EventLog(None)
    event_log.listen(events.append)
    _record_end(RunDirectory(Path("runs/a-run")), event_log, ended, attempt)
    return events


def failed(exit_code: int, checkpoint: str | None = "step-50") -> RunEnded:
    return RunEnded(
        state=RunState.FAILED, exit_code=exit_code, error="it broke", checkpoint=checkpoint
    )


CRASHED = failed(TrainingFailed.exit_code)


def test_a_crash_with_a_checkpoint_ends_the_run_with_the_next_step() -> None:
    (ended,) = recorded(CRASHED, LaunchAttempt(number=1, limit=1))
    assert isinstance(ended, RunEnded)
    assert ended.error == "it broke; resume from step-50 with: fttui run --resume a-run"


def test_a_crash_that_torchrun_restarts_is_an_error_and_no_end() -> None:
    (event,) = recorded(CRASHED, LaunchAttempt(number=1, limit=3))
    assert isinstance(event, LogEmitted)
    assert (event.level, event.text) == (
        "error",
        "it broke; restart 2 of 3 from the last checkpoint",
    )


@pytest.mark.parametrize(
    "ended",
    [failed(TrainingFailed.exit_code, checkpoint=None), failed(DataError.exit_code)],
)
def test_other_ends_are_recorded_as_they_are(ended: RunEnded) -> None:
    assert recorded(ended, LaunchAttempt()) == [ended]


def test_an_error_of_the_user_is_not_restarted() -> None:
    ended = failed(DataError.exit_code)
    assert recorded(ended, LaunchAttempt(number=0, limit=3)) == [ended]


class OutOfMemoryError(Exception):
    """Named like torch's, which this test does not import."""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OutOfMemoryError("CUDA"), "the GPU is out of memory; `fttui check` lists changes"),
        (RuntimeError("[gloo] Read error"), "another rank died or stopped responding; see logs/"),
        (RuntimeError("Connection closed by peer"), "another rank died or stopped responding"),
        (KeyError("x"), "KeyError: 'x' (traceback in logs/engine.log)"),
    ],
)
def test_an_unexpected_error_is_one_line_with_the_next_step(error: Exception, words: str) -> None:
    assert explain(error).startswith(words)
    assert "\n" not in explain(error)


def test_a_lost_rank_is_named_with_the_last_line_of_its_log(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    place = RankPlace(0, 3, torch.device("cpu"))
    assert _lost_rank(run, 2, place).startswith("rank 2 died (details: logs/rank-2.log")
    (run.logs / "rank-2.log").write_text("first\nkilled by the host\n")
    assert _lost_rank(run, 2, place).startswith(
        "rank 2 died; the last line of its log: killed by the host (details:"
    )


def test_the_start_of_an_engine_is_recorded_before_the_model_is_loaded(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.config.write_text("name: a\nmodel: {id: m}\ndata: {train: d}\ntrain: {steps: 1}\n")
    events: list[AnyEvent] = []
    event_log = EventLog(None)
    event_log.listen(events.append)
    started = _announce(SessionStart(run, summarize_journal(())), event_log)
    assert events == [started]
    assert read_engine_status(run) is not None
