"""Results in the journal of a run that has ended; a live one is in tests/integration/test_bench."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from fttui.engine.bench import __main__ as process
from fttui.engine.bench import recording
from fttui.engine.bench.recording import ResultJournal
from fttui.engine.errors import FttuiError
from fttui.engine.protocol.benchmarks.result import BenchmarkFinished, BenchmarkScore
from fttui.engine.protocol.codec import encode
from fttui.engine.run.checkpoint_store import CheckpointStore, Manifest
from fttui.engine.run.journal import JournalLocked
from fttui.engine.run.journal_summary import summarize_records
from fttui.engine.run.records.record_feed import read_whole
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.run.run_status import EngineStatus
from tests.support.benchmarks import result
from tests.support.journaled import new_run, records, write_journal


@pytest.fixture
def ended(tmp_path: Path) -> RunDirectory:
    run = new_run(tmp_path)
    write_journal(run, records())
    store = CheckpointStore(run)
    store.make_folder("step-000004")
    store.commit(
        Manifest(
            name="step-000004", step=4, timeline=1, time=0, world_size=1, incarnation=1, files={},
            metrics={"loss": 0.5},
        )
    )  # fmt: skip
    return run


def test_a_result_is_appended_and_joins_its_checkpoint(ended: RunDirectory) -> None:
    before = summarize_records(records())
    journal = ResultJournal(ended, print)
    journal.record(result(0.75))
    found, not_read = read_whole(ended)
    assert not_read == []
    assert [encode(record) for record in found[:-1]] == [encode(record) for record in records()]
    last = found[-1]
    assert (last.seq, last.step, last.timeline) == (len(found), 8, 2)
    assert last.event == BenchmarkFinished(result=result(0.75), after_end=True)
    assert journal.results == [result(0.75)]
    metrics = CheckpointStore(ended).find("step-000004").metrics
    assert metrics == {"loss": 0.5, "bench.words.acc": 0.75}
    after = summarize_records(found)
    assert after.status.reported is before.status.reported
    assert after.used == before.used, "the time since the end is no time of the run"


def test_a_result_of_a_removed_checkpoint_is_recorded_all_the_same(ended: RunDirectory) -> None:
    ResultJournal(ended, print).record(result(step=6))
    assert ResultJournal(ended, print).results == [result(step=6)]


def test_the_base_is_known_from_an_earlier_result_under_the_same_conditions(
    ended: RunDirectory,
) -> None:
    score = BenchmarkScore(value=0.75, base=0.5, base_stderr=0.2)
    journal = ResultJournal(ended, print)
    assert journal.known_base(result()) == {}
    journal.record(result(scores={"acc": score}))
    journal.record(result(0.9))
    assert journal.known_base(result()) == {"acc": BenchmarkScore(value=0.5, stderr=0.2)}
    assert journal.known_base(result(total=90)) == {}
    assert journal.known_base(result(task="other")) == {}
    assert journal.others(result()) == []
    assert len(journal.others(result(fewshot=3))) == 2


def test_a_journal_that_stays_locked_is_named_with_the_result(
    ended: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "_LOCK_PATIENCE_S", 0.0)

    def locked(*_: object, **__: object) -> None:
        raise JournalLocked("another process is writing the journal")

    monkeypatch.setattr(recording, "JournalWriter", locked)
    journal = ResultJournal(ended, print)
    with pytest.raises(FttuiError, match=r"another process is writing .*is lost: benchmark w"):
        journal.record(result())


def test_a_run_of_another_machine_is_refused_before_anything_is_measured(
    ended: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = EngineStatus(pid=1, incarnation=1, alive=True, host="gpu-box")
    monkeypatch.setattr(recording, "read_engine_status", lambda _: status)
    with pytest.raises(FttuiError, match=r"trains on gpu-box.*run fttui bench there"):
        ResultJournal(ended, print)


def test_an_error_is_recorded_at_the_step_of_its_checkpoint(ended: RunDirectory) -> None:
    journal = ResultJournal(ended, print)
    journal.record_failure("step-4", "words,other", "no such task")
    (failed,) = journal.results
    assert (failed.step, failed.timeline, failed.error) == (4, 1, "no such task")
    assert journal.others(result()) == [], "nothing was measured under other conditions"
    assert CheckpointStore(ended).find("step-000004").metrics == {"loss": 0.5}


@pytest.mark.parametrize("error", [FttuiError("no room"), ValueError("odd")])
def test_where_nobody_sees_the_output_every_error_is_recorded(
    ended: RunDirectory, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(process, "Measurement", fail)
    words = [str(ended.path), "step-4", "--tasks", "words"]
    with suppress(ValueError):
        assert process.main(words) == 1
    assert ResultJournal(ended, print).results == []
    with suppress(ValueError):
        assert process.main([*words, "--record-errors"]) == 1
    (failed,) = ResultJournal(ended, print).results
    wanted = "no room" if isinstance(error, FttuiError) else "ValueError: odd (see the log)"
    assert failed.error == wanted
