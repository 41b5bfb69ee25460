"""One broken run, record or host hides no other."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from fttui.engine.errors import EngineGone
from fttui.engine.protocol.codec import encode
from fttui.engine.protocol.events import LogEmitted, Record
from fttui.engine.run.journal import FrameWriter
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.run.run_index import list_runs, summarize
from fttui.tui.cli.main import main
from fttui.tui.connection.offline import OfflineSession
from fttui.tui.view_model.app_state import AppState, fold
from fttui.tui.view_model.connection_port import Delivery
from tests.support.engine_double import EngineDouble, make_run


@pytest.fixture
def good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    monkeypatch.setenv("FTTUI_RUNS", str(tmp_path / "runs"))
    return make_run(tmp_path / "runs", name="good")


def _link(run: RunDirectory) -> None:
    run.journal.symlink_to("/etc/hostname")


def _pipe(run: RunDirectory) -> None:
    os.mkfifo(run.journal)


def _pipe_as_identity(run: RunDirectory) -> None:
    run.identity_file.unlink()
    os.mkfifo(run.identity_file)


def _folder(run: RunDirectory) -> None:
    run.journal.mkdir()


def _identity(run: RunDirectory) -> None:
    run.identity_file.write_bytes(b'{"id": 3, "name": [}')


def _large_identity(run: RunDirectory) -> None:
    with run.identity_file.open("wb") as file:
        file.truncate(2**30)


def _mark(run: RunDirectory) -> None:
    run.engine.mkdir()


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "harm", [_link, _pipe, _pipe_as_identity, _folder, _identity, _large_identity, _mark]
)
def test_an_unreadable_run_is_named_and_hides_no_other(
    good: RunDirectory, harm, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = make_run(good.path.parent, name="bad")
    harm(bad)
    assert main(["ls"]) == 0
    printed = capsys.readouterr().out
    assert good.id in printed
    assert bad.id in printed
    assert main(["ls", "--json"]) == 0
    rows = {row["id"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(rows) == {good.id, bad.id}
    assert main(["show", bad.id]) in (2, 3, 1)


def test_a_name_that_is_not_utf8_is_named(good: RunDirectory, capsys) -> None:
    odd = make_run(good.path.parent, name="odd")
    os.rename(odd.path, os.fsencode(good.path.parent) + b"/odd-\xff")
    assert main(["ls"]) == 0
    assert "not UTF-8" in capsys.readouterr().out
    msgspec.msgpack.encode(list_runs(good.path.parent))


TIMES = [float("inf"), float("-inf"), float("nan"), 1e300, -1e300, 0.0]


@pytest.mark.parametrize("moment", TIMES)
async def test_no_time_of_a_record_ends_anything(
    good: RunDirectory, moment: float, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = EngineDouble(good)
    engine.start()
    engine.train(3)
    engine.emit(LogEmitted(level="error", text="x"), at=moment)
    engine.train(2)
    engine.journal.close()
    assert summarize(good).step == 5
    assert main(["ls"]) == main(["ls", "--json"]) == main(["events", good.id]) == 0
    lines = capsys.readouterr().out
    assert "Traceback" not in lines
    seen: list[Delivery] = []
    await OfflineSession(good).listen(seen.append)
    assert fold(AppState(), seen, 0.0).run.step == 5


NO_RECORDS = [
    b"\x00",
    b"text",
    msgspec.msgpack.encode([]),
    msgspec.msgpack.encode({"a": 1}),
    msgspec.msgpack.encode([1, 2.0, 3, 4, 5]),
    msgspec.msgpack.encode(["a", 2.0, 3, 4, {"k": "NoteAdded"}]),
    msgspec.msgpack.encode([7, None, 3, 4, {}]),
    b"\x91" * 5_000,
]


@pytest.mark.parametrize("payload", NO_RECORDS)
async def test_a_frame_that_is_no_record_is_counted(
    good: RunDirectory, payload: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = EngineDouble(good)
    engine.emit(LogEmitted(level="info", text="before"))
    engine.journal.append(payload)
    engine.emit(LogEmitted(level="info", text="after"))
    engine.journal.close()
    assert main(["ls"]) == main(["events", good.id]) == 0
    printed = capsys.readouterr()
    assert "before" in printed.out
    assert "after" in printed.out
    assert "1 frames of" in printed.err
    seen: list[Delivery] = []
    await OfflineSession(good).listen(seen.append)


@pytest.mark.parametrize("size", [1, 7, 100, 5_000])
async def test_damage_in_the_middle_is_passed_over_with_its_size(
    good: RunDirectory, size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = FrameWriter(good.journal, good.journal_lock)
    places = []
    for seq in range(1, 21):
        event = LogEmitted(level="info", text=f"number {seq} " + "x" * 300)
        record = Record(seq=seq, time=1e9, step=seq, timeline=1, event=event)
        places.append(writer.append(encode(record)))
    writer.close()
    data = bytearray(good.journal.read_bytes())
    data[places[5] : places[6]] = b"\xff" * size
    good.journal.write_bytes(data)
    assert main(["events", good.id]) == 0
    printed = capsys.readouterr()
    assert [json.loads(line)["seq"] for line in printed.out.splitlines()] == [
        *range(1, 6),
        *range(7, 21),
    ]
    assert f"{size:,} bytes of" in printed.err
    assert summarize(good).step == 20
    seen: list[Delivery] = []
    await OfflineSession(good).listen(seen.append)
    assert fold(AppState(), seen, 0.0).run.seq == 20


def test_a_command_to_copy_holds_no_command_of_the_run_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = make_run(tmp_path).path.rename(tmp_path / "$(id)")
    assert main(["ctl", "--runs-dir", str(tmp_path), hostile.name, "stop"]) == EngineGone.exit_code
    assert "fttui run --resume '$(id)'" in capsys.readouterr().err
