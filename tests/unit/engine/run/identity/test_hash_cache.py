"""Hashes of files are computed once per version of a file, and never wrong."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from pathlib import Path

import pytest

from fttui.engine.run import files
from fttui.engine.run.identity import hash_cache
from fttui.engine.run.identity.hash_cache import SMALLEST_BYTES, HashCache, cache_folder

DAY_NS = 86_400 * 10**9


def later() -> int:
    """A clock on which every file of the test is old."""
    return time.time_ns() + DAY_NS


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that are read as a whole, in order."""
    found: list[Path] = []

    def hash_file(path: Path) -> str:
        found.append(path)
        return files.hash_file(path)

    monkeypatch.setattr(hash_cache, "hash_file", hash_file)
    return found


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(os.urandom(SMALLEST_BYTES))
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_file_is_read_once_by_all_processes(
    tmp_path: Path, weights: Path, read: list[Path]
) -> None:
    caches = [HashCache(tmp_path / "cache", later) for _ in range(3)]
    assert {cache.hash(weights) for cache in caches} == {sha256(weights)}
    assert read == [weights]


@pytest.mark.parametrize("kept_times", [False, True])
def test_a_changed_file_is_read_again(
    tmp_path: Path, weights: Path, read: list[Path], *, kept_times: bool
) -> None:
    """Also if a program sets the modification time back, as copying tools do."""
    first = HashCache(tmp_path / "cache", later).hash(weights)
    before = weights.stat()
    with weights.open("r+b") as file:
        byte = file.read(1)
        file.seek(0)
        file.write(bytes([byte[0] ^ 1]))
    if kept_times:
        os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    second = HashCache(tmp_path / "cache", later).hash(weights)
    assert second == sha256(weights) != first
    assert len(read) == 2


def test_the_hash_of_a_file_that_was_just_written_is_not_kept(
    tmp_path: Path, weights: Path, read: list[Path]
) -> None:
    """It may change again without another modification time."""
    cache = HashCache(tmp_path / "cache", lambda: weights.stat().st_mtime_ns + 10**6)
    assert cache.hash(weights) == cache.hash(weights)
    assert len(read) == 2
    assert not (tmp_path / "cache").exists()


def test_another_file_in_the_same_place_is_read(tmp_path: Path, weights: Path) -> None:
    cache = HashCache(tmp_path / "cache", later)
    cache.hash(weights)
    other = tmp_path / "other"
    other.write_bytes(os.urandom(SMALLEST_BYTES))
    os.utime(other, ns=(weights.stat().st_atime_ns, weights.stat().st_mtime_ns))
    other.replace(weights)
    assert cache.hash(weights) == sha256(weights)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: b"\xff\xfe" + data,
        lambda data: b'{"path": 3}',
        lambda data: data.replace(data[data.index(b'"sha256":"') + 10 :][:8], b"00000000"),
    ],
    ids=["empty", "cut", "not text", "other fields", "changed hash"],
)
def test_a_damaged_cache_is_ignored_and_mended(
    tmp_path: Path, weights: Path, read: list[Path], damage
) -> None:
    folder = tmp_path / "cache"
    HashCache(folder, later).hash(weights)
    (entry,) = folder.iterdir()
    entry.write_bytes(damage(entry.read_bytes()))
    assert HashCache(folder, later).hash(weights) == sha256(weights)
    assert HashCache(folder, later).hash(weights) == sha256(weights)
    assert len(read) == 2


def test_a_cache_that_cannot_be_written_does_not_matter(
    tmp_path: Path, weights: Path, read: list[Path]
) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    cache = HashCache(in_the_way / "cache", later)
    assert cache.hash(weights) == cache.hash(weights) == sha256(weights)
    assert read == [weights], "this process still knows it"


def test_many_writers_at_once(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.bin" for number in range(4)]
    for file in paths:
        file.write_bytes(os.urandom(SMALLEST_BYTES))
    found: list[dict[Path, str]] = []

    def work() -> None:
        cache = HashCache(tmp_path / "cache", later)
        found.append({file: cache.hash(file) for file in paths})

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [{file: sha256(file) for file in paths}] * 6
    assert HashCache(tmp_path / "cache", later).hash(paths[0]) == sha256(paths[0])


def test_a_file_that_keeps_changing_is_hashed_but_not_kept(
    tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def appending(path: Path) -> str:
        with path.open("ab") as file:
            file.write(b"x")
        return sha256(path)

    monkeypatch.setattr(hash_cache, "hash_file", appending)
    assert HashCache(tmp_path / "cache", later).hash(weights) == sha256(weights)
    assert not (tmp_path / "cache").exists()


def test_the_hub_names_its_files_by_their_hash(tmp_path: Path, read: list[Path]) -> None:
    blob = tmp_path / "blobs" / ("ab" * 32)
    blob.parent.mkdir()
    blob.write_bytes(b"downloaded and verified")
    link = tmp_path / "model.safetensors"
    link.symlink_to(blob)
    assert HashCache(tmp_path / "cache").hash(link) == "ab" * 32
    assert read == []


def test_the_folder_follows_the_desktop_standard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "fttui" / "hashes"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "fttui" / "hashes"
