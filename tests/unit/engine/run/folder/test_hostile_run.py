"""A run folder from somebody else must not reach files outside itself, whatever it holds."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from fttui.engine.__main__ import main as engine_main
from fttui.engine.core.retention import to_remove
from fttui.engine.errors import CheckpointError, FttuiError
from fttui.engine.hub.__main__ import main as hub_main
from fttui.engine.hub.launch import launch_hub
from fttui.engine.run.checkpoint_store import (
    MANIFEST,
    CheckpointStore,
    FileEntry,
    Manifest,
    seal_files,
)
from fttui.engine.run.control_log import ControlReader, ControlWriter
from fttui.engine.run.data_sample import write_sample
from fttui.engine.run.folder.links import UnsafeRunFolder, require_plain
from fttui.engine.run.processes.marks import ProcessMark, write_mark
from fttui.engine.run.run_dir import RunDirectory, create_run
from fttui.engine.train.control.stop_notice import StopNotice
from fttui.engine.train.journal_writer import JournalWriter
from fttui.tui.cli.main import main
from fttui.tui.connection.engine_process import start_lock

FILES = (
    "journal.log", "journal.lock", "journal.reserve", "control.log", "control.lock", "control.seq",
    "start.lock", "engine.json", "endpoint.json", "desired.json", "stop.json",
    "data_sample.json",
    "logs/hub.log", "logs/rank-0.log", "logs/engine.log",
)  # fmt: skip
FOLDERS = ("checkpoints", "logs", "reports", "profiles")


def _journal(run: RunDirectory) -> None:
    writer = JournalWriter(run, lambda _: None)
    writer.close()


def _control(run: RunDirectory) -> None:
    ControlWriter(run).close()
    ControlReader(run)


def _start(run: RunDirectory) -> None:
    with start_lock(run):
        pass


def _marks(run: RunDirectory) -> None:
    write_mark(run.engine, ProcessMark.current())
    write_mark(run.endpoint, ProcessMark.current())


def _checkpoint(run: RunDirectory) -> None:
    store = CheckpointStore(run)
    store.sweep()
    folder = store.make_folder("step-000001")
    (folder / "weights").write_bytes(b"w")
    store.commit(manifest("step-000001", 1, seal_files(folder)))


WAYS: dict[str, Callable[[RunDirectory], object]] = {
    "engine": lambda run: engine_main([str(run.path)]),
    "hub": lambda run: hub_main([str(run.path)]),
    "journal": _journal,
    "control": _control,
    "start": _start,
    "marks": _marks,
    "sample": lambda run: write_sample(run, []),
    "stop notice": lambda run: StopNotice(run, b"now").give(by_signal=True),
    "settings": lambda run: run.write(run.path / "desired.json", b"{}"),
    "checkpoint": _checkpoint,
}


def manifest(name: str, step: int, files: dict[str, FileEntry] | None = None) -> Manifest:
    return Manifest(
        name=name, step=step, timeline=1, time=float(step), world_size=1, incarnation=1,
        files=files or {}, number=step,
    )  # fmt: skip


def fingerprint(folder: Path) -> dict[str, tuple[int, str]]:
    return {
        str(file.relative_to(folder)): (
            file.lstat().st_mode,
            hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "",
        )
        for file in sorted(folder.rglob("*"))
    }


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return create_run(
        tmp_path / "runs", name="r", config=tmp_path / "c.yaml", source="", resolved="",
        overrides=[], version="0",
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _process_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub limits the memory of its process and takes its signals, here that of the tests."""
    monkeypatch.setattr("fttui.engine.hub.__main__._bound_resources", lambda: None)
    monkeypatch.setattr("fttui.engine.hub.__main__._TerminationSignal", lambda: None)
    monkeypatch.setattr(os, "umask", lambda _: 0)


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """A folder outside, whose content must be the same after the test."""
    folder = tmp_path / "victim"
    (folder / "step-000009").mkdir(parents=True)
    (folder / "step-000009" / "thesis.txt").write_bytes(b"years of work")
    (folder / "file").write_bytes(b"x" * 20_000)
    before = fingerprint(folder)
    yield folder
    assert fingerprint(folder) == before


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FILES)
def test_a_link_in_place_of_a_file_is_never_followed(
    run: RunDirectory, victim: Path, name: str, way: str
) -> None:
    place = run.path / name
    for target in (victim / "file", victim / "not-there"):
        place.unlink(missing_ok=True)
        place.symlink_to(target)
        with suppress(FttuiError, OSError):
            WAYS[way](run)


@pytest.mark.parametrize("name", ["logs", "logs/hub.log"])
def test_the_log_of_a_hub_is_no_link(run: RunDirectory, victim: Path, name: str) -> None:
    place = run.path / name
    if place.is_dir():
        place.rmdir()
    place.symlink_to(victim if name == "logs" else victim / "file")
    with pytest.raises(OSError, match="link"):
        launch_hub(run)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FOLDERS)
def test_a_link_in_place_of_a_folder_is_never_followed(
    run: RunDirectory, victim: Path, name: str, way: str
) -> None:
    place = run.path / name
    if place.is_dir():
        shutil.rmtree(place)
    place.symlink_to(victim)
    with suppress(FttuiError, OSError):
        WAYS[way](run)


def test_a_planted_temporary_file_is_not_followed(run: RunDirectory, victim: Path) -> None:
    (run.path / f".engine.json.{threading.get_native_id()}.{os.getpid()}.tmp").symlink_to(
        victim / "file"
    )
    write_mark(run.engine, ProcessMark.current())
    assert run.engine.is_file()


def test_engine_and_hub_refuse_links_and_pipes_with_their_names(run: RunDirectory) -> None:
    require_plain(run.path)
    (run.path / "exports").mkdir()
    (run.path / "exports" / "model").symlink_to("/tmp")
    require_plain(run.path)
    os.mkfifo(run.path / "reports" / "pipe")
    (run.path / "journal.log").symlink_to("/etc/hostname")
    with pytest.raises(UnsafeRunFolder) as refused:
        require_plain(run.path)
    assert "journal.log" in str(refused.value)
    assert "reports/pipe" in str(refused.value)
    assert engine_main([str(run.path)]) == hub_main([str(run.path)]) == UnsafeRunFolder.exit_code


@pytest.mark.parametrize("words", [["run", "--headless", "--resume"], ["export", "--merged"]])
def test_resume_and_export_refuse_links(
    run: RunDirectory, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    store = CheckpointStore(run)
    store.make_folder("step-000001")
    store.commit(manifest("step-000001", 1))
    (run.path / "logs" / "rank-0.log").symlink_to("/etc/hostname")
    assert main([*words, str(run.path)]) == UnsafeRunFolder.exit_code
    assert "rank-0.log" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["../../../victim", "{victim}", "..", "step-000009", "a/../../b", ""]
)
def test_the_name_in_a_manifest_removes_nothing(run: RunDirectory, victim: Path, name: str) -> None:
    store = CheckpointStore(run)
    for step in range(1, 6):
        folder = store.make_folder(f"step-{step:06d}")
        told = manifest(name.format(victim=victim) if step < 4 else folder.name, step)
        (folder / MANIFEST).write_bytes(msgspec.json.encode(told))
    assert [m.name for m in store.all()] == ["step-000004", "step-000005"]
    for gone in to_remove(store.all(), keep=1):
        store.remove(gone)
    store.remove(name.format(victim=victim))
    store.sweep()
    assert sorted(os.listdir(run.checkpoints)) == [
        f"step-{step:06d}" for step in (1, 2, 3, 5)
    ]  # fmt: skip


@pytest.mark.parametrize("file", ["../../run.json", "/etc/passwd", "..", "a/../../../x", ""])
def test_a_manifest_that_lists_files_outside_is_none(run: RunDirectory, file: str) -> None:
    store = CheckpointStore(run)
    store.make_folder("step-000001")
    store.commit(manifest("step-000001", 1, {file: FileEntry(size_bytes=1, sha256="0")}))
    assert store.all() == []


def test_a_linked_file_of_a_checkpoint_is_refused(run: RunDirectory, victim: Path) -> None:
    store = CheckpointStore(run)
    folder = store.make_folder("step-000001")
    (folder / "weights").write_bytes((victim / "file").read_bytes())
    store.commit(manifest("step-000001", 1, seal_files(folder)))
    (folder / "weights").unlink()
    (folder / "weights").symlink_to(victim / "file")
    with pytest.raises(CheckpointError, match="not a plain file"):
        store.verify(store.find("last"))


def test_a_copied_checkpoint_is_shown_once_and_kept(run: RunDirectory) -> None:
    store = CheckpointStore(run)
    for step in range(1, 8):
        folder = store.make_folder(f"step-{step:06d}")
        (folder / "weights").write_bytes(b"w%d" % step)
        store.commit(manifest(folder.name, step, seal_files(folder)))
    shutil.copytree(store.path("step-000003"), store.path("my backup"))
    shutil.copytree(store.path("step-000004"), store.path("step-000099"))
    removed: list[str] = []
    for _ in range(3):
        removed += [name for name in to_remove(store.all(), keep=2) if store.remove(name)]
        store.sweep()
    assert removed == [f"step-{step:06d}" for step in range(1, 6)]
    assert sorted((c.manifest.name, c.original) for c in store.copies()) == [
        ("my backup", "step-000003"),
        ("step-000099", "step-000004"),
    ]
    assert [m.step for m in store.all()] == [6, 7]
    assert store.find("last").step == 7
    assert store.verify(store.find("my backup")).name == "my backup"
    assert not store.remove("my backup")
    with pytest.raises(CheckpointError, match=r"copies: my backup \(of step-000003\)"):
        store.find("nothing")


def test_sweep_keeps_folders_of_the_user(run: RunDirectory) -> None:
    store = CheckpointStore(run)
    for name in ("step-000003", "step-000003-t2.4", "step-000003.bak", "notes", "step-abc"):
        store.make_folder(name)
    store.sweep()
    assert sorted(os.listdir(run.checkpoints)) == ["notes", "step-000003.bak", "step-abc"]
