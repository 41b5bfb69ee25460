from __future__ import annotations

import os
from pathlib import Path

import pytest

from fttui.engine.run.folder.open_folder import OpenFolder, open_plain, read_plain


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder outside the run folder, with a file that must stay as it is."""
    folder = tmp_path / "victim"
    folder.mkdir()
    (folder / "kept").write_bytes(b"precious")
    return folder


@pytest.fixture
def inside(tmp_path: Path, victim: Path) -> Path:
    folder = tmp_path / "run"
    (folder / "sub").mkdir(parents=True)
    (folder / "file-link").symlink_to(victim / "kept")
    (folder / "folder-link").symlink_to(victim)
    (folder / "dangling").symlink_to(victim / "new")
    return folder


@pytest.mark.parametrize(
    "name",
    ["../victim/kept", "/etc/passwd", "sub/../../victim/kept", "", ".", "a//b", "folder-link/kept"],
)
@pytest.mark.parametrize("way", ["write", "remove", "remove_tree", "make_folder", "open_file"])
def test_no_name_and_no_link_leads_outside(inside: Path, victim: Path, name: str, way: str) -> None:
    with OpenFolder(inside) as folder:
        calls = {
            "write": lambda: folder.write(name, b"x"),
            "remove": lambda: folder.remove(name),
            "remove_tree": lambda: folder.remove_tree(name),
            "make_folder": lambda: folder.make_folder(name),
            "open_file": lambda: folder.open_file(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC),
        }
        with pytest.raises(OSError, match=r"outside|link"):
            calls[way]()
    assert [file.name for file in victim.iterdir()] == ["kept"]
    assert (victim / "kept").read_bytes() == b"precious"


def test_a_link_is_replaced_or_removed_itself(inside: Path, victim: Path) -> None:
    with OpenFolder(inside) as folder:
        folder.write("file-link", b"own")
        folder.write("dangling", b"own")
        folder.remove("folder-link")
    assert (inside / "file-link").read_bytes() == b"own"
    assert not (inside / "file-link").is_symlink()
    assert (victim / "kept").read_bytes() == b"precious"
    assert not (victim / "new").exists()


def test_a_link_inside_a_removed_folder_is_not_followed(inside: Path, victim: Path) -> None:
    (inside / "sub" / "link").symlink_to(victim)
    with OpenFolder(inside) as folder:
        folder.remove_tree("sub")
        with pytest.raises(OSError, match=r"[Ll]ink|symbolic"):
            folder.remove_tree("folder-link")
    assert not (inside / "sub").exists()
    assert (victim / "kept").exists()


def test_links_are_not_opened(inside: Path) -> None:
    for name in ("file-link", "dangling"):
        with OpenFolder(inside) as folder, pytest.raises(OSError, match="it is a link"):
            folder.open_file(name, os.O_RDWR | os.O_CREAT)
        with pytest.raises(OSError, match="it is a link"):
            read_plain(inside / name, 100)


def test_a_pipe_is_refused_and_does_not_wait_for_a_writer(inside: Path) -> None:
    pipe = inside / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="not a plain file"):
        read_plain(pipe, 100)
    with pytest.raises(OSError, match="not a plain file"):
        open_plain(pipe, os.O_RDWR, shown=pipe)


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.write_bytes(b"x" * 101)
    assert read_plain(file, 101) == b"x" * 101
    with pytest.raises(OSError, match="larger than 100 bytes"):
        read_plain(file, 100)


def test_a_failed_write_keeps_the_old_file_and_leaves_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with OpenFolder(tmp_path) as folder:
        folder.write("a.json", b"one")

        def fail(*_: object) -> None:
            raise OSError(28, "no space")

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="no space"):
            folder.write("a.json", b"two")
    assert (tmp_path / "a.json").read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_folder_is_private_and_may_exist(tmp_path: Path) -> None:
    with OpenFolder(tmp_path) as folder:
        folder.make_folder("a")
        folder.make_folder("a")
        folder.make_folder("a/b")
        assert folder.folders("a") == ["b"]
        assert [folder.exists(name) for name in ("a/b", "a/c", "x/c")] == [True, False, False]
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


def test_no_descriptor_is_left_open(inside: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with OpenFolder(inside) as folder:
            folder.write("sub/file", b"x")
            for name in ("folder-link/kept", "none/file", "file-link"):
                with pytest.raises(OSError, match=r"link|No such"):
                    folder.open_file(name, os.O_RDONLY)
            folder.sync("sub")
    assert len(os.listdir("/proc/self/fd")) == before
