"""The texts of the forgetting meter."""

from __future__ import annotations

from pathlib import Path

import pytest

from fttui.engine.data.general_texts import read_texts
from fttui.engine.errors import DataError


def test_the_installed_texts_are_many_short_and_without_notices() -> None:
    texts = read_texts("general", 1000)
    assert len(texts) == len(set(texts)) == 196
    assert not [text for text in texts if "#" in text or "Copyright" in text or "\n" in text]
    assert max(map(len, texts)) < 700


def test_a_limit_takes_texts_from_everywhere(tmp_path: Path) -> None:
    path = tmp_path / "own.txt"
    path.write_text("\n\n".join(f"text {n}\ngoes on" for n in range(10)) + "\n\n\n# kept\n")
    assert read_texts(str(path), 3) == ["text 0 goes on", "text 3 goes on", "text 7 goes on"]
    assert read_texts(str(path), 99)[-1] == "# kept"


def test_json_lines_have_a_text_each_or_are_named(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"text": "one"}\n\n{"text": "two"}\n')
    assert read_texts(str(path), 9) == ["one", "two"]
    path.write_text('{"text": "one"}\n{"words": 2}\n')
    with pytest.raises(DataError, match=r"own\.jsonl:2: expected an object"):
        read_texts(str(path), 9)


@pytest.mark.parametrize("content", [b"\n\n", b"\xff\xfe"])
def test_a_file_without_texts_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "own.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"own\.txt"):
        read_texts(str(path), 9)
