from __future__ import annotations

from pathlib import Path

import msgspec

from fttui.engine.protocol.data.sample import SampleRecord, SampleSpan, SampleText
from fttui.engine.run.data_sample import MOST_BYTES, read_sample, write_sample
from fttui.engine.run.run_dir import RunDirectory


def record(text: str) -> SampleRecord:
    spans = [SampleSpan("p", False), SampleSpan(text, True)]
    shown = SampleText(name="text", spans=spans, tokens=2, learned=1)
    return SampleRecord(id="d:1", place="d.jsonl:1", texts=[shown], notes=["truncated"])


def test_a_sample_is_read_as_it_was_written(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    write_sample(run, [record("a"), record("b")])
    assert read_sample(run) == [record("a"), record("b")]
    plain = msgspec.json.decode(run.data_sample.read_bytes())
    assert plain["records"][0]["texts"][0]["spans"] == [["p", False, 1.0], ["a", True, 1.0]]


def test_a_large_sample_keeps_its_first_records(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    write_sample(run, [record(str(n) + 60_000 * "é") for n in range(20)])
    assert run.data_sample.stat().st_size <= MOST_BYTES
    assert 2 <= len(read_sample(run)) < 20


def test_a_missing_or_damaged_sample_is_empty(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert read_sample(run) == []
    run.data_sample.write_bytes(b'{"records": [{"id": 3}]}\xff')
    assert read_sample(run) == []


def test_a_file_of_twice_the_size_is_not_read(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    write_sample(run, [record("a")])
    written = run.data_sample.read_bytes()
    run.data_sample.write_bytes(written.ljust(2 * MOST_BYTES))
    assert read_sample(run) == [record("a")]
    run.data_sample.write_bytes(written.ljust(2 * MOST_BYTES + 1))
    assert read_sample(run) == []
