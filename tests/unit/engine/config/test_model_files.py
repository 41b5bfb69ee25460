"""No file of a model or adapter from elsewhere fills the memory or ends in a traceback."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fttui.engine.config.adapter.files import read_adapter_file
from fttui.engine.config.memory.architecture import read_settings
from fttui.engine.config.model_files import parsed_settings, read_settings_file
from fttui.engine.errors import ModelError
from fttui.engine.run.identity.model_content import chat_templates


def sparse(file: Path) -> Path:
    file.touch()
    os.truncate(file, 2**40)
    return file


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("config.json", read_settings),
        ("adapter_config.json", read_adapter_file),
        ("tokenizer_config.json", chat_templates),
        ("chat_template.json", chat_templates),
        ("chat_template.jinja", chat_templates),
    ],
)
def test_a_huge_file_is_refused_with_its_size(
    tmp_path: Path, name: str, read: Callable[[Path], object]
) -> None:
    sparse(tmp_path / name)
    with pytest.raises((ModelError, OSError), match="1,099,511,627,776 bytes"):
        read(tmp_path)


@pytest.mark.parametrize("text", ["[" * 100_000, "1" * 5_000, "\ud800", "", "{"])
def test_json_that_cannot_be_parsed_is_a_value_error(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ValueError, match=r"."):
        parsed_settings(file)
    with pytest.raises(ModelError, match=r"config\.json"):
        read_settings(tmp_path)


def test_a_usual_file_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer_config.json"
    file.write_text('{"a": 1}')
    assert read_settings_file(file) == b'{"a": 1}'
    assert parsed_settings(file) == {"a": 1}
