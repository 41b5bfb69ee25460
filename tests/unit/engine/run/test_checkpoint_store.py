from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from fttui.engine.errors import CheckpointError, FttuiError
from fttui.engine.run.checkpoint_store import MANIFEST, CheckpointStore, Manifest, seal_files
from fttui.engine.run.reports import read_report, report_names
from fttui.engine.run.run_dir import RunDirectory


def save(ledger: CheckpointStore, name: str, step: int, time: float) -> Manifest:
    folder = ledger.path(name)
    (folder / "rng").mkdir(parents=True)
    (folder / "adapter.bin").write_bytes(bytes(range(256)))
    (folder / "rng" / "rank-0").write_bytes(b"state")
    manifest = Manifest(
        name=name,
        step=step,
        timeline=1,
        time=time,
        world_size=1,
        incarnation=1,
        files=seal_files(folder),
    )
    ledger.commit(manifest)
    return manifest


@pytest.fixture
def ledger(tmp_path: Path) -> CheckpointStore:
    run = RunDirectory(tmp_path)
    run.checkpoints.mkdir()
    return CheckpointStore(run)


def test_a_metric_that_is_not_finite_hides_no_checkpoint(ledger: CheckpointStore) -> None:
    manifest = save(ledger, "s10", 10, 1.0)
    measured = {"loss": math.nan, "perplexity": math.inf, "accuracy": 0.5}
    ledger.commit(msgspec.structs.replace(manifest, metrics=measured, eval_loss=math.nan))
    assert [one.metrics for one in ledger.all()] == [{"accuracy": 0.5}]
    assert ledger.add_metrics("s10", {"bench.words.ppl": math.inf, "bench.words.acc": 1.0})
    assert ledger.find("last").metrics == {"accuracy": 0.5, "bench.words.acc": 1.0}


def test_checkpoints_are_found_by_name_step_and_last(ledger: CheckpointStore) -> None:
    first, second = save(ledger, "s10", 10, 1.0), save(ledger, "s20", 20, 2.0)
    again = save(ledger, "t2-s10", 10, 3.0)
    assert ledger.all() == [first, second, again]
    assert ledger.find("s10") == first
    assert ledger.find("10") == again  # the newest of that step
    assert ledger.find("last") == again
    with pytest.raises(CheckpointError, match="s10, s20"):
        ledger.find("11")


def test_checkpoints_keep_their_order_when_the_clock_jumps_back(ledger: CheckpointStore) -> None:
    names = []
    for number, time in enumerate((50.0, 10.0, 30.0), start=1):
        assert ledger.next_number() == number
        manifest = save(ledger, f"s{number}", number, time)
        ledger.commit(msgspec.structs.replace(manifest, number=number))
        names.append(manifest.name)
    assert [m.name for m in ledger.all()] == names
    assert ledger.find("last").name == "s3"


def test_a_folder_without_a_manifest_is_no_checkpoint(ledger: CheckpointStore) -> None:
    save(ledger, "s10", 10, 1.0)
    torn = ledger.path("s20")
    torn.mkdir()
    (torn / "adapter.bin").write_bytes(b"half")
    broken = ledger.path("s30")
    broken.mkdir()
    (broken / MANIFEST).write_text("{")
    assert [m.name for m in ledger.all()] == ["s10"]


def test_an_intact_checkpoint_verifies(ledger: CheckpointStore) -> None:
    manifest = save(ledger, "s10", 10, 1.0)
    assert set(manifest.files) == {"adapter.bin", "rng/rank-0"}
    assert manifest.size_bytes == 261
    assert ledger.verify(manifest) == ledger.path("s10")


@pytest.mark.parametrize("bit", range(0, 2048, 97))
def test_one_flipped_bit_is_found_and_named(ledger: CheckpointStore, bit: int) -> None:
    manifest = save(ledger, "s10", 10, 1.0)
    file = ledger.path("s10") / "adapter.bin"
    data = bytearray(file.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"adapter\.bin is damaged"):
        ledger.verify(manifest)


def test_missing_and_short_files_are_named(ledger: CheckpointStore) -> None:
    manifest = save(ledger, "s10", 10, 1.0)
    file = ledger.path("s10") / "rng" / "rank-0"
    file.write_bytes(b"stat")
    with pytest.raises(CheckpointError, match="has 4 bytes, expected 5"):
        ledger.verify(manifest)
    file.unlink()
    with pytest.raises(CheckpointError, match="rng/rank-0 is missing"):
        ledger.verify(manifest)


def test_a_removed_checkpoint_is_gone(ledger: CheckpointStore) -> None:
    save(ledger, "s10", 10, 1.0)
    ledger.remove("s10")
    assert ledger.all() == []
    assert not ledger.path("s10").exists()


def test_reports_are_read_by_name_and_never_from_elsewhere(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.reports.mkdir()
    (tmp_path / "secret.md").write_text("no")
    (run.reports / "spike-12.md").write_text("# spike")
    (run.reports / "spike-12.json").write_text("{}")
    assert report_names(run) == ["spike-12"]
    assert read_report(run, "spike-12") == read_report(run, "spike-12.md") == "# spike"
    for name in ("../secret", "/etc/passwd", "", ".", "other"):
        with pytest.raises(FttuiError, match="spike-12"):
            read_report(run, name)
