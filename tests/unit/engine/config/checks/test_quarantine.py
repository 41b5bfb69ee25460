"""The list of samples in quarantine, as a file and in the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fttui.engine.config.checks.quarantine import ids_as_text, read_ids
from fttui.engine.config.load import load_config, parse_resolved
from fttui.engine.errors import ConfigError

CONFIG = """
model: {{id: m}}
data: {{train: {data}, quarantine: {quarantine}}}
train: {{steps: 2}}
"""


@given(st.lists(st.text(min_size=1), unique=True))
def test_any_id_survives_the_file(tmp_path_factory: pytest.TempPathFactory, ids: list[str]) -> None:
    ids = [one.encode("utf-8", "replace").decode() for one in ids]
    file = tmp_path_factory.mktemp("ids") / "quarantine.txt"
    file.write_bytes(ids_as_text(ids).encode())
    assert read_ids(file) == list(dict.fromkeys(ids))


def test_comments_and_empty_lines_are_no_ids(tmp_path: Path) -> None:
    file = tmp_path / "ids.txt"
    file.write_text('# odd ones\n\ntrain.jsonl:7\r\n train.jsonl:9 \n"a\\tb"\ntrain.jsonl:7\n')
    assert read_ids(file) == ["train.jsonl:7", "train.jsonl:9", "a\tb"]


def load(folder: Path, quarantine: str) -> tuple[str, ...]:
    data = folder / "rows.jsonl"
    data.write_text('{"text": "a"}\n')
    path = folder / "run.yaml"
    path.write_text(CONFIG.format(data=data, quarantine=quarantine))
    loaded = load_config(path)
    assert parse_resolved(loaded.resolved).data.kept_out == loaded.config.data.kept_out
    return loaded.config.data.kept_out


def test_a_file_beside_the_configuration_is_kept_as_its_ids(tmp_path: Path) -> None:
    (tmp_path / "out.txt").write_text("x:1\nx:2\n")
    assert load(tmp_path, "out.txt") == ("x:1", "x:2")
    assert load(tmp_path, "['x:1', 'x:1', '7']") == ("x:1", "7")
    assert load(tmp_path, "[]") == ()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "no such file"),
        (b"\xff", "not UTF-8"),
        (b'ok\n"open\n', "out.txt:2: got '\"open'"),
        (b"x\n" * 3 + b"".join(b"%d\n" % n for n in range(1000)), "1,001 samples"),
    ],
)
def test_a_list_that_cannot_be_used_is_refused_with_its_place(
    tmp_path: Path, content: bytes | None, text: str
) -> None:
    if content is not None:
        (tmp_path / "out.txt").write_bytes(content)
    with pytest.raises(ConfigError, match=r"run.yaml:3: data.quarantine: ") as error:
        load(tmp_path, "out.txt")
    assert text in str(error.value)
