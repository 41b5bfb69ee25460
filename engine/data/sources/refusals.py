"""Recognize files that hold no readable records by their first bytes, and name a remedy."""

from __future__ import annotations

import re
from collections.abc import Sequence

_WEB_PAGE = "a web page, not the data; download the raw file"
_PICKLE = "a Python pickle, which is not safe to read; write it as JSON lines"
_UNPACK = "unpack it and name a file or the folder"
_TENSORS = "a file of model weights, not of records; name a data file"
_BEGINNINGS: tuple[tuple[bytes, str], ...] = (
    (b"version https://git-lfs", "a pointer of Git LFS, not the data; run: git lfs pull"),
    (b"/annex/objects/", "a pointer of git-annex, not the data; run: git annex get"),
    (b"<!doctype html", _WEB_PAGE),
    *(
        (b"<" + tag, _WEB_PAGE)
        for tag in (b"html", b"head>", b"head ", b"body", b"title", b"script")
    ),
    (b"<?xml", "XML; convert it to JSON lines or CSV"),
    (b"{\\rtf", "a document with formats (RTF); save it as plain text"),
    (b"%pdf", "a PDF; extract its text first"),
    (b"\xd0\xcf\x11\xe0", "an old Excel or Word file; save it as CSV"),
    *((b"\x80" + bytes([protocol]), _PICKLE) for protocol in (2, 3, 4, 5)),
    *((start, _PICKLE) for start in (b"(lp0\n", b"(dp0\n", b"ccopy_reg\n", b"]q\x00", b"}q\x00")),
    (b"sqlite format 3", "an SQLite database; export a table as CSV"),
    (b"\x89hdf", "an HDF5 file; write it as Parquet or JSON lines"),
    (b"\x93numpy", "a NumPy array; write its texts as JSON lines"),
    (b"fea1\x00", "a Feather file of version 1; write it again with a newer pyarrow or pandas"),
    (b'\x04"m\x18', "compressed with LZ4; unpack it with: lz4 -d"),
    (b"obj\x01", "an Avro file; write it as Parquet or JSON lines"),
    (b"rar!\x1a", f"a RAR archive; {_UNPACK}"),
    (b"7z\xbc\xaf", f"a 7-Zip archive; {_UNPACK}"),
    *((b"gguf" + bytes([version]), _TENSORS) for version in (1, 2, 3)),
    (b"pk\x05\x06", "an archive without files; write it again"),
    (b"pk\x03\x04", f"an archive inside an archive; {_UNPACK}"),
    (b"\x1f\x8b", "compressed twice; unpack it once"),
    (b"bzh", "compressed twice; unpack it once"),
    (b"\xfd7zxz", "compressed twice; unpack it once"),
    (b"(\xb5/\xfd", "compressed twice; unpack it once"),
)
_SAFETENSORS = re.compile(rb".{8}\{\s*\"[^\"]+\":\s*\{", re.S)
_ANSWER = re.compile(
    r"(\d{3}:? )?(not found|entry not found|repository not found|file not found|forbidden|"
    r"unauthorized|bad gateway|invalid username or password|access denied|"
    r"access to \w+ \S+ is restricted.*|rate limit.*|too many requests)\W*",
    re.I | re.S,
)
"""The text with which servers answer that there is no such file."""
_LONGEST_ANSWER = 400
_TAR = slice(257, 262)


def describe_binary(head: bytes) -> str:
    """Recognize a file that holds no records; return a description with a remedy, or an empty text.

    Args:
        head: The first bytes of its content.
    """
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    lowered = start[:64].lower()
    if head[_TAR] == b"ustar":
        return f"a tar archive; {_UNPACK}"
    if head.startswith(b"ORC"):
        return "an ORC file; write it as Parquet"
    if _SAFETENSORS.match(head) and b"\x00" in head[:8]:
        return _TENSORS
    if len(head) < _LONGEST_ANSWER and _ANSWER.fullmatch(start.decode("utf-8", "replace").strip()):
        said = start.decode("utf-8", "replace")[:80]
        return f"the answer of a server, not data: {said!r}; download the file again"
    return next((what for first, what in _BEGINNINGS if lowered.startswith(first)), "")


def describe_archive(names: Sequence[str], mimetype: str) -> str:
    """Recognize a zip archive that is not data, such as an Excel file.

    Returns:
        A description with a remedy; empty if the archive may hold data.

    Args:
        names: The names of its files.
        mimetype: The content of its file `mimetype`; empty if it has none.
    """
    if "[Content_Types].xml" in names:
        return "an Excel or Word file; save it as CSV"
    if "opendocument" in mimetype:
        return "a spreadsheet or document of OpenOffice; save it as CSV"
    if "epub" in mimetype:
        return "an e-book; convert it to plain text"
    if any(name.endswith("data.pkl") for name in names):
        return "a file of PyTorch, which is not safe to read; write its records as JSON lines"
    if names and all(name.endswith(".npy") for name in names):
        return "an archive of NumPy arrays; write their texts as JSON lines"
    return ""


def describe_markup(head: bytes) -> str:
    """Recognize a web page in place of a table or JSON; return a description, or an empty text."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    return _WEB_PAGE if re.match(rb"<[A-Za-z!?/]", start) else ""
