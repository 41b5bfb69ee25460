from __future__ import annotations

from pathlib import Path

import pytest

from fttui.engine.errors import FttuiError
from fttui.engine.followers.trackers.ledger import FOLDER, Busy, LedgerFile
from fttui.engine.run.run_dir import RunDirectory
from tests.support.journaled import new_run

SECRET = "https://ann:hunter2@host/x"


def opened(run: RunDirectory, destination: str = "there") -> LedgerFile:
    return LedgerFile(run, "mlflow", destination, "shown")


def only_file(run: RunDirectory) -> Path:
    (file,) = (run.path / FOLDER).glob("*.json")
    return file


def test_what_is_delivered_is_found_again(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with opened(run) as file:
        file.ledger.of(2).through_seq = 7
        file.ledger.count("too long", 3)
        file.save()
    with opened(run) as file:
        assert file.ledger.of(2).through_seq == 7
        assert file.ledger.left_out == {"too long": 3}
    with opened(run, "elsewhere") as file:
        assert file.ledger.timelines == {}, "another destination has got nothing yet"


def test_two_processes_never_deliver_to_the_same_destination(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with opened(run):
        with pytest.raises(Busy, match="another process delivers x-"):
            opened(run)
        opened(run, "elsewhere").close()
    opened(run).close()


def test_no_address_is_in_the_run_folder(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with opened(run, SECRET) as file:
        file.save()
    found = b"".join(file.read_bytes() for file in run.path.rglob("*") if file.is_file())
    names = " ".join(str(file) for file in run.path.rglob("*"))
    assert b"hunter2" not in found
    assert "hunter2" not in names


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[1]", b'{"version": 9, "tracker": "mlflow", "shown": ""}', b"\xff"]
)
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, data: bytes) -> None:
    run = new_run(tmp_path)
    with opened(run) as file:
        file.save()
    only_file(run).write_bytes(data)
    with pytest.raises(FttuiError, match="remove the file if"):
        opened(run)
    assert only_file(run).read_bytes() == data


def test_links_are_not_followed(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    outside = tmp_path / "outside"
    outside.mkdir()
    (run.path / FOLDER).symlink_to(outside)
    with pytest.raises(OSError, match="link"):
        opened(run)
    assert list(outside.iterdir()) == []
