"""What a rank of another node takes from rank 0, and how the end of its node is recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from fttui.engine.run.journal_summary import summarize_journal
from fttui.engine.run.processes.node_end import record_node_end, recorded_node_end
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.node_start import agreed_start, facts_of
from fttui.engine.train.session_start import SessionStart
from tests.support.engine_double import make_run

SECOND = {"WORLD_SIZE": "2", "RANK": "1", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2"}


def _start(run: RunDirectory) -> SessionStart:
    run.source_config.write_text("train: {steps: 3}\n")
    run.config.write_text("train: {steps: 3, batch: 1}\n")
    return SessionStart(run, summarize_journal(()), resume="step-000001")


def test_a_single_rank_reports_nothing_and_keeps_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    start = _start(make_run(tmp_path))
    assert facts_of(start) is None
    assert agreed_start(start, ()) is start


def test_another_node_takes_checkpoint_and_decisions_of_rank_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SECOND.items():
        monkeypatch.setenv(name, value)
    start = _start(make_run(tmp_path))
    own = facts_of(start)
    assert own is not None
    assert (own.node, own.config) == (1, {"train": {"steps": 3}})
    decided = "train: {steps: 3, batch: 2}\n"
    first = replace(own, node=0, resume="step-000002", accept_changed=["data"], resolved=decided)
    agreed = agreed_start(start, [first, own])
    assert (agreed.resume, agreed.accept_changed) == ("step-000002", frozenset({"data"}))
    assert start.run.config.read_text() == decided


def test_the_end_of_a_node_is_read_as_it_was_recorded(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    assert recorded_node_end(run) is None
    record_node_end(run, 2)
    assert recorded_node_end(run) == 2
    (run.path / "node-end.json").write_text("no number")
    assert recorded_node_end(run) is None
