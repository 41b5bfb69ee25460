"""Files that hold no records are named for what they are; damaged texts lose only their rows."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import tarfile
import zipfile
from pathlib import Path

import pytest

from fttui.engine.config.data_reasons import rows as row_reasons
from fttui.engine.data.findings import Findings
from fttui.engine.data.sources import read_rows
from fttui.engine.errors import DataError

ROW = b'{"text": "a"}\n'


def read(folder: Path, name: str, content: bytes) -> tuple[list[str], Findings]:
    path = folder / name
    path.write_bytes(content)
    findings = Findings()
    rows = read_rows(str(path), "train", None, findings)
    return [row.values["text"] for row in rows], findings


def zipped(**files: bytes) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return held.getvalue()


def encrypted() -> bytes:
    content = bytearray(zipped(**{"a.jsonl": ROW}))
    content[6] |= 1
    content[content.find(b"PK\x01\x02") + 8] |= 1
    return bytes(content)


def tarred(mode: str) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode=mode) as archive:  # type: ignore[call-overload]
        member = tarfile.TarInfo("a.jsonl")
        member.size = len(ROW)
        archive.addfile(member, io.BytesIO(ROW))
    return held.getvalue()


LISTING = [{"name": "a", "sha": "0", "git_url": "g", "download_url": "d", "type": "file"}]
SPREADSHEET = b"application/vnd.oasis.opendocument.spreadsheet"


CASES = [
    ("d.ods", zipped(mimetype=SPREADSHEET, **{"content.xml": b"<x/>"}), "save it as CSV"),
    ("d.xlsx", zipped(**{"[Content_Types].xml": b"", "xl/a.xml": b""}), "save it as CSV"),
    ("d.pt", zipped(**{"d/data.pkl": b"", "d/version": b"3"}), "PyTorch"),
    ("d.npz", zipped(**{"a.npy": b"\x93NUMPY"}), "NumPy"),
    ("d.zip", zipped(**{"a.jsonl": ROW, "b.jsonl": ROW}), r"2 files \(a.jsonl, b.jsonl\)"),
    ("d.zip", zipped(), "0 files"),
    ("d.zip", zipped(**{"a.jsonl.gz": gzip.compress(ROW, mtime=0)}), "compressed twice"),
    ("d.zip", encrypted(), "encrypted"),
    ("d.tar", tarred("w"), "tar archive; unpack it"),
    ("d.tar.gz", tarred("w:gz"), "tar archive; unpack it"),
    ("d.jsonl.gz", gzip.compress(ROW * 999, mtime=0)[:40], "file is complete"),
    ("d.jsonl.bz2", bz2.compress(ROW * 999)[:40], "file is complete"),
    ("d.jsonl.xz", lzma.compress(ROW * 999)[:60], "file is complete"),
    ("d.jsonl.gz", gzip.compress(ROW) + b"junk", "file is complete"),
    *(("d.pkl", pickle.dumps(["a"], protocol), "pickle") for protocol in range(6)),
    ("d.npy", b"\x93NUMPY\x01\x00v\x00{}", "NumPy"),
    ("d.avro", b"Obj\x01\x04\x16", "Avro"),
    ("d.gguf", b"GGUF\x03\x00\x00\x00", "weights"),
    ("d.safetensors", b"\x40" + b"\0" * 7 + b'{"w": {"dtype": "F32"}}', "weights"),
    ("d.rar", b"Rar!\x1a\x07\x01\x00", "RAR archive"),
    ("d.csv", b"<!-- a -->\n<html>", "web page"),
    ("d.json", b"<div>listing</div>", "web page"),
    ("d.jsonl", b"\n<title>Index of /data</title>", "web page"),
    ("d.jsonl", b"404: Not Found", "answer of a server"),
    ("d.txt", b"Forbidden \xff", "answer of a server"),
    ("d.csv", b"Invalid username or password.", "answer of a server"),
    ("d.json", b'{"error": "Repository not found"}', "answer of a server"),
    ("d.json", json.dumps(LISTING).encode(), "list of files of a folder"),
    ("d.yaml", b"- text: a\n", "convert it to JSON lines"),
    ("d.txt", b"{\\rtf1 hi}", "plain text"),
    ("d.csv", b"../.git/annex/objects/x", "no records"),
    ("d.csv", b"/annex/objects/SHA256E-s1--a.csv\n", "git annex get"),
    ("d.parquet", b"", "no records"),
    ("d.csv", b"", "no records"),
    ("d.json", b"{}", "no records"),
    ("d.json", b"[]", "no records"),
    ("d.csv", b"a,a\n1,2\n", "two columns have the name 'a'"),
]


@pytest.mark.parametrize(
    ("name", "content", "step"),
    CASES,
    ids=[f"{number} {name}" for number, (name, _, _) in enumerate(CASES)],  # content has the time
)
def test_what_holds_no_records_is_named(
    tmp_path: Path, name: str, content: bytes, step: str
) -> None:
    with pytest.raises(DataError, match=step):
        read(tmp_path, name, content)


@pytest.mark.parametrize("start", ["[Chapter 1]", "{{Box}}", "[1] A note", "<p>a tag</p>"])
def test_texts_that_begin_with_brackets_are_texts(tmp_path: Path, start: str) -> None:
    assert read(tmp_path, "d.txt", f"{start}\nmore\n".encode())[0] == [start, "more"]


@pytest.mark.parametrize("content", [b'{"text": "a\x00"}\n', b"\x00" * 512], ids=["one", "many"])
@pytest.mark.parametrize("rows", [10, 9000])
def test_zero_bytes_break_only_their_rows(tmp_path: Path, content: bytes, rows: int) -> None:
    texts, findings = read(tmp_path, "d.jsonl", ROW * rows + content)
    assert len(texts) == rows
    assert findings.count(row_reasons.BROKEN_ROWS) == 1


@pytest.mark.parametrize("text", ["café", "it\u2019s £5", "naïve \u201cquoted\u201d"])
def test_a_few_bytes_beyond_ascii_are_read_as_most_old_files_have_them(
    tmp_path: Path, text: str
) -> None:
    texts, findings = read(tmp_path, "d.csv", f"text;n\n{text};1\n".encode("cp1252"))
    assert texts == [text]
    assert findings.count(row_reasons.ENCODING_GUESSED) == 1


def test_a_file_that_is_written_anew_is_read_anew(tmp_path: Path) -> None:
    assert read(tmp_path, "d.txt", b"one\n")[0] == ["one"]
    assert read(tmp_path, "d.txt", "zwei\n".encode("utf-16"))[0] == ["zwei"]
