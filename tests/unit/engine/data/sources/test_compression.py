"""Compressed files: damage in a later member, names that do not fit, and kinds that are rare."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import random
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow
import pytest

from fttui.engine.data.findings import Findings
from fttui.engine.data.sources import read_rows
from fttui.engine.errors import DataError

WAYS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": partial(pyarrow.compress, codec="zstd", asbytes=True),
}
TABLE = b"prompt,completion\na,b\nc,d\n"


def lines(seed: int) -> bytes:
    draw = random.Random(seed)
    texts = ("".join(draw.choices("abcdefgh", k=60)) for _ in range(200))
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


def count(path: Path, content: bytes) -> int:
    path.write_bytes(content)
    return len(read_rows(str(path), "train", None, Findings()))


@pytest.mark.parametrize("way", WAYS)
def test_all_members_are_read(tmp_path: Path, way: str) -> None:
    pack = WAYS[way]
    assert count(tmp_path / f"d.jsonl.{way}", pack(lines(1)) + pack(lines(2))) == 400


@pytest.mark.parametrize("way", ["gz", "bz2", "xz"])
def test_zeros_behind_the_content_are_padding(tmp_path: Path, way: str) -> None:
    assert count(tmp_path / f"d.jsonl.{way}", WAYS[way](lines(1)) + bytes(512)) == 200


@pytest.mark.parametrize(
    ("way", "damage"),
    [
        (way, damage)
        for way in WAYS
        for damage in ("cut", "changed", "other")
        if (way, damage) != ("zst", "changed")  # pyarrow writes no checksums
    ],
)
def test_damage_in_a_later_member_does_not_end_the_file_unnoticed(
    tmp_path: Path, way: str, damage: str
) -> None:
    first, second = WAYS[way](lines(1)), WAYS[way](lines(2))
    second = {
        "cut": second[:-30],
        "changed": second[:40] + bytes(40) + second[80:],
        "other": b"not compressed",
    }[damage]
    with pytest.raises(DataError, match=r"damaged or ends early|cannot be read"):
        count(tmp_path / f"d.jsonl.{way}", first + second)


def test_a_damaged_zip_archive_is_no_traceback(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("d.jsonl", b"".join(map(lines, range(20))))
    content = bytearray(packed.getvalue())
    content[len(content) // 2] ^= 1
    with pytest.raises(DataError, match="Bad CRC-32"):
        count(tmp_path / "d.zip", bytes(content))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("d.csv.gz", TABLE),
        ("d.csv.GZ", gzip.compress(TABLE, mtime=0)),
        ("d.csv.gzip", gzip.compress(TABLE, mtime=0)),
        ("d.csv.zstd", WAYS["zst"](TABLE)),
        ("d.csv.zst", gzip.compress(TABLE, mtime=0)),
        ("d.csv", WAYS["zst"](TABLE)),
        ("d.csv.lzma", lzma.compress(TABLE, format=lzma.FORMAT_ALONE)),
        ("d.csv.zst", b"\x50\x2a\x4d\x18\x04\0\0\0abcd" + WAYS["zst"](TABLE)),
    ],
    ids=range(8),
)
def test_the_ending_of_a_compression_does_not_hide_a_table(
    tmp_path: Path, name: str, content: bytes
) -> None:
    assert count(tmp_path / name, content) == 2
