from __future__ import annotations

import csv
import io
import math
import sys
from pathlib import Path

import pytest

from fttui.engine.errors import FttuiError
from fttui.engine.followers.table import MetricsTable, table_of
from fttui.engine.protocol.benchmarks.result import BenchmarkFinished
from fttui.engine.protocol.events import Record
from fttui.engine.protocol.races.variant_step import VariantStep
from fttui.tui.cli.main import main
from tests.support.benchmarks import result
from tests.support.journaled import new_run, records, write_journal


def rows(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode())))


def test_each_step_of_each_timeline_is_a_row() -> None:
    found = rows(MetricsTable(records()).csv())
    places = [(int(row["timeline"]), int(row["step"])) for row in found]
    assert places == [*((1, step) for step in range(1, 7)), *((2, step) for step in range(5, 9))]
    fourth = found[3]
    assert (fourth["loss"], fourth["loss.ce"], fourth["eval.loss"]) == ("0.5", "0.5", "0.5")
    assert found[0]["eval.loss"] == "", "what was not measured is empty"
    assert math.isnan(float(found[5]["loss"]))
    assert list(found[0])[:4] == ["timeline", "step", "time", "loss"]


def test_parquet_has_the_same_figures() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(io.BytesIO(MetricsTable(records()).parquet()))
    assert table.num_rows == 10
    assert table.column("step").to_pylist() == [1, 2, 3, 4, 5, 6, 5, 6, 7, 8]
    assert table.column("eval.loss").to_pylist()[:4] == [None, None, None, 0.5]
    assert math.isnan(table.column("loss").to_pylist()[5])


def test_without_pyarrow_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(FttuiError, match="pip install pyarrow, or use: --metrics csv"):
        MetricsTable(records()).parquet()


def test_the_command_writes_into_the_run_folder_or_a_new_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = new_run(tmp_path)
    command = ["export", str(run.path), "--metrics", "csv"]
    assert main(command) == 2
    assert "no step and no evaluation is finished" in capsys.readouterr().err
    write_journal(run, records())
    assert main(command) == main(command) == 0
    assert len(rows((run.path / "exports" / "metrics.csv").read_bytes())) == 10
    out = tmp_path / "mine.csv"
    assert main([*command, "--out", str(out)]) == 0
    assert main([*command, "--out", str(out)]) == 2
    assert main(["export", f"{run.path}@4", "--metrics", "csv"]) == 2
    assert len(rows(out.read_bytes())) == 10


def test_what_could_not_be_read_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = new_run(tmp_path)
    write_journal(run, records())
    with open(run.journal, "r+b") as file:
        file.seek(400)
        file.write(b"\xff\xff")
    table, not_read = table_of(run)
    assert len(table.rows) == 9
    assert len(not_read) == 1
    assert main(["export", str(run.path), "--metrics", "csv"]) == 0
    assert "left out:" in capsys.readouterr().err


def test_a_benchmark_joins_the_row_of_its_checkpoint() -> None:
    finished = BenchmarkFinished(result=result(0.75, step=4, timeline=1))
    late = Record(seq=90, time=0.0, step=8, timeline=2, event=finished)
    found = rows(MetricsTable([*records(), late]).csv())
    measured = [(row["timeline"], row["step"]) for row in found if row["bench.words.acc"]]
    assert measured == [("1", "4")]
    assert len(found) == 10


def test_a_step_of_a_variant_is_a_row_of_its_own() -> None:
    step = VariantStep(variant="lr 2e-4", at=11, loss=1.5)
    late = Record(seq=90, time=0.0, step=8, timeline=3, event=step)
    (row,) = [one for one in rows(MetricsTable([*records(), late]).csv()) if one["timeline"] == "3"]
    assert (row["step"], row["loss"]) == ("11", "1.5")
