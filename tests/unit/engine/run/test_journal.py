from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fttui.engine.run.folder.open_folder import OpenFolder
from fttui.engine.run.journal import (
    MAGIC,
    DamagedPart,
    FrameReader,
    FrameWriter,
    JournalLocked,
    frame,
    frames_after_damage,
    read_past_damage,
)
from tests.support.matrix import in_part

PAYLOADS = [b"a", b"bc" * 40, b"\x00" * 30, b"last"]


def write(folder: Path, payloads: list[bytes]) -> Path:
    path = folder / "j.log"
    writer = FrameWriter(path, folder / "j.lock")
    writer.append(*payloads)
    writer.close()
    return path


def test_reads_back_what_was_written_and_then_what_is_added(tmp_path: Path) -> None:
    path = write(tmp_path, PAYLOADS[:2])
    reader = FrameReader(path)
    assert list(reader) == PAYLOADS[:2]
    assert list(reader) == []
    writer = FrameWriter(path, tmp_path / "j.lock")
    assert writer.recovered == PAYLOADS[:2]
    writer.append(*PAYLOADS[2:])
    assert list(reader) == PAYLOADS[2:]
    writer.close()


def test_what_a_writer_found_is_synced_before_it_appends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, PAYLOADS)
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", lambda file: synced.append(os.fstat(file).st_ino))
    writer = FrameWriter(path, tmp_path / "j.lock")
    assert synced == [path.stat().st_ino]
    writer.close()


def test_a_journal_cut_at_any_byte_keeps_its_whole_frames_and_goes_on(tmp_path: Path) -> None:
    whole = write(tmp_path, PAYLOADS).read_bytes()
    ends = [len(MAGIC)]
    for payload in PAYLOADS:
        ends.append(ends[-1] + len(frame(payload)))
    for size in range(len(whole)):
        path = tmp_path / f"cut-{size}"
        path.write_bytes(whole[:size])
        kept = PAYLOADS[: max(0, sum(end <= size for end in ends) - 1)]
        assert list(FrameReader(path)) == kept
        writer = FrameWriter(path, tmp_path / "cut.lock")
        assert writer.recovered == kept
        writer.append(b"new")
        writer.close()
        assert list(FrameReader(path)) == [*kept, b"new"]
        path.unlink()


def test_every_flipped_bit_ends_the_valid_prefix(tmp_path: Path) -> None:
    whole = write(tmp_path, PAYLOADS).read_bytes()
    path = tmp_path / "flipped"
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        found = list(FrameReader(path))
        assert found == PAYLOADS[: len(found)]
        assert len(found) < len(PAYLOADS)


def test_a_tail_of_zeros_is_no_frame(tmp_path: Path) -> None:
    path = write(tmp_path, PAYLOADS)
    with open(path, "ab") as file:
        file.write(bytes(4096))
    assert list(FrameReader(path)) == PAYLOADS
    writer = FrameWriter(path, tmp_path / "j.lock")
    assert writer.recovered == PAYLOADS
    writer.close()


def test_a_reader_beside_a_writer_sees_every_frame_once(tmp_path: Path) -> None:
    path = tmp_path / "j.log"
    writer = FrameWriter(path, tmp_path / "j.lock")
    expected = [b"%d" % index * (index % 50 + 1) for index in range(3000)]

    def fill() -> None:
        for payload in expected:
            writer.append(payload)

    thread = threading.Thread(target=fill)
    thread.start()
    reader = FrameReader(path)
    seen: list[bytes] = []
    while thread.is_alive():
        seen += reader
    thread.join()
    seen += reader
    writer.close()
    assert seen == expected


def test_a_frame_larger_than_the_read_limit_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, [b"x" * 5000, b"y"])
    reader = FrameReader(path)
    assert [p for _, p in reader.read(limit_bytes=100)] == [b"x" * 5000, b"y"]


def test_what_was_cut_off_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "j.log"
    writer = FrameWriter(path, tmp_path / "j.lock")
    writer.append(b"stays")
    writer.cut(writer.append(b"goes"))
    writer.append(b"next")
    writer.close()
    assert list(FrameReader(path)) == [b"stays", b"next"]


def test_a_full_disk_leaves_whole_frames(tmp_path: Path) -> None:
    # RLIMIT_FSIZE stands in for a full disk: the write comes back short or fails.
    script = """
import resource, signal, sys
from pathlib import Path
from fttui.engine.run.journal import FrameWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
writer = FrameWriter(Path(sys.argv[1]), Path(sys.argv[1] + ".lock"))
writer.append(b"fits")
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
try:
    writer.append(b"x" * 8192)
except OSError:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    writer.append(b"again")
"""
    path = tmp_path / "j.log"
    subprocess.run([sys.executable, "-c", script, str(path)], check=True, timeout=60)
    assert list(FrameReader(path)) == [b"fits", b"again"]


def test_a_second_writer_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from fttui.engine.run.journal import FrameWriter
writer = FrameWriter(Path(sys.argv[1]), Path(sys.argv[1] + ".lock"))
print("ready", flush=True)
sys.stdin.read()
"""
    path = tmp_path / "j.log"
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"ready\n"
    lock = Path(f"{path}.lock")
    with pytest.raises(JournalLocked, match="another process"):
        FrameWriter(path, lock)
    holder.kill()
    holder.wait()
    holder.stdin.close()
    holder.stdout.close()
    FrameWriter(path, lock).close()


@given(st.lists(st.binary(min_size=1, max_size=200), max_size=30), st.integers(1, 300))
def test_any_payloads_come_back_at_any_read_size(payloads: list[bytes], limit: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        reader = FrameReader(write(Path(folder), payloads))
        seen: list[bytes] = []
        while frames := reader.read(limit_bytes=limit):
            seen += [payload for _, payload in frames]
        assert seen == payloads


@pytest.mark.parametrize("limit", [30, 100, 150, 1 << 20])
def test_payloads_alone_are_the_same_in_the_same_portions(tmp_path: Path, limit: int) -> None:
    path = write(tmp_path, [*PAYLOADS, b"x" * 200, *PAYLOADS])
    whole, alone = FrameReader(path), FrameReader(path)
    found: list[bytes] = []
    while portion := alone.read_payloads(limit):
        assert portion == [payload for _, payload in whole.read(limit)]
        assert alone.offset == whole.offset
        found += portion
    assert found == [*PAYLOADS, b"x" * 200, *PAYLOADS]
    assert whole.read(limit) == []


@pytest.mark.parametrize("damage", ["zeros", "flipped", "cut"])
def test_payloads_alone_end_where_the_frames_are_damaged(tmp_path: Path, damage: str) -> None:
    path = write(tmp_path, PAYLOADS)
    reader = FrameReader(path)
    reader.read_payloads(20)  # the start of the file is read elsewhere
    data = bytearray(path.read_bytes())
    if damage == "zeros":
        data += bytes(64)
    elif damage == "flipped":
        data[-1] ^= 1
    else:
        del data[-1]
    path.write_bytes(bytes(data))
    expected = PAYLOADS[1:] if damage == "zeros" else PAYLOADS[1:-1]
    assert reader.read_payloads(1 << 20) == expected
    assert reader.read_payloads(1 << 20) == []


@pytest.mark.parametrize("limit", [30, 100, 150, 1 << 20])
def test_frames_of_one_buffer_are_those_of_the_file(tmp_path: Path, limit: int) -> None:
    payloads = [*PAYLOADS, *[b"%03d" % n for n in range(40)], b"x" * 200, *PAYLOADS]
    path = write(tmp_path, payloads)
    reader, found = FrameReader(path), list[bytes]()
    while frames := reader.read_frames(limit, path.stat().st_size):
        assert list(frames) == frames[:]
        found += frames
    assert found == payloads
    assert reader.offset == path.stat().st_size


def test_frames_are_read_up_to_the_first_one_that_begins_later(tmp_path: Path) -> None:
    payloads = [b"%03d" % n for n in range(20)]
    path = write(tmp_path, payloads)
    size = len(frame(payloads[0]))
    for before in (len(MAGIC) + 5 * size - 1, len(MAGIC) + 5 * size, len(MAGIC) + 5 * size + 1):
        reader = FrameReader(path)
        count = 5 + (before > len(MAGIC) + 5 * size)
        assert list(reader.read_frames(1 << 20, before)) == payloads[:count]
        assert not reader.read_frames(1 << 20, before)
        assert list(reader.read_frames(1 << 20, 1 << 20)) == payloads[count:]


@pytest.mark.parametrize("place", [0, 3, 7, 19])
def test_frames_of_one_length_end_where_one_is_damaged(tmp_path: Path, place: int) -> None:
    payloads = [b"%03d" % n for n in range(20)]
    path = write(tmp_path, payloads)
    size, data = len(frame(payloads[0])), bytearray(path.read_bytes())
    for offset in (0, 4, 9):
        damaged = bytearray(data)
        damaged[len(MAGIC) + place * size + offset] ^= 0x40
        path.write_bytes(damaged)
        assert list(FrameReader(path).read_frames(1 << 20, 1 << 20)) == payloads[:place]


def test_frames_are_found_again_after_damage() -> None:
    data = b"broken" + frame(b"one") + frame(b"two") + b"\x00" * 9 + frame(b"three") + b"tail"
    assert list(frames_after_damage(data)) == [b"one", b"two", b"three"]
    assert list(frames_after_damage(frame(b"one")[:-1])) == []


def test_a_journal_without_its_beginning_is_not_emptied_before_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, lock = tmp_path / "j.log", tmp_path / "j.lock"
    damaged = b"?" * len(MAGIC) + frame(b"one") + frame(b"two")
    path.write_bytes(damaged)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(OpenFolder, "write", full)
        with pytest.raises(OSError, match="No space"):
            FrameWriter(path, lock)
    assert path.read_bytes() == damaged


def test_a_file_system_without_locks_is_named_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", unsupported)
    with pytest.raises(OSError, match="No locks available"):
        FrameWriter(tmp_path / "j.log", tmp_path / "j.lock")


def test_a_tail_made_to_take_long_does_not(tmp_path: Path) -> None:
    """Every fourth byte begins a length of which the checksum would be computed in vain."""
    hostile = struct.pack("<I", 900_000) * 500_000
    path = tmp_path / "j.log"
    path.write_bytes(MAGIC + frame(b"one") + hostile + frame(b"two"))
    started = time.process_time()
    found = list(read_past_damage(path, len(MAGIC)))
    assert time.process_time() - started < 30.0  # 500 s without a limit
    assert found[0] == b"one"
    damaged = [part.size_bytes for part in found if isinstance(part, DamagedPart)]
    assert sum(damaged) >= len(hostile)


@pytest.mark.parametrize(
    "behind", in_part([b"", frame(b"two")], [frame(b"two")]), ids=["nothing", "a frame"]
)
def test_a_huge_sparse_journal_fills_neither_memory_nor_time(tmp_path: Path, behind: bytes) -> None:
    path = tmp_path / "j.log"
    path.write_bytes(MAGIC + frame(b"one"))
    start = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(start + 2**24)
        file.seek(start + 2**24)
        file.write(behind)
        file.truncate(2**40)
    began = time.process_time()
    found = list(read_past_damage(path, start))
    writer = FrameWriter(path, tmp_path / "j.lock")
    assert time.process_time() - began < 60.0
    payloads = [part for part in found if isinstance(part, bytes)]
    assert payloads == writer.cut_off == ([b"two"] if behind else [])
    damaged = [part.size_bytes for part in found if isinstance(part, DamagedPart)]
    assert sum(damaged) + len(behind) == 2**40 - start
    assert writer.recovered == [b"one"]
    assert path.stat().st_size == start
    writer.close()
