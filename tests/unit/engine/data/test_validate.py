from __future__ import annotations

from pathlib import Path

import pytest

from fttui.engine.config.schema import DataConfig, ModelConfig, RunConfig, TrainConfig
from fttui.engine.data.validate import validate_files
from fttui.engine.errors import DataError

GOOD = '{"prompt": "a", "completion": "b"}\n'


def _look(file: Path, text: str) -> list[str]:
    file.write_text(text)
    data = DataConfig(train=str(file), eval=str(file))
    return list(
        validate_files(
            RunConfig(model=ModelConfig(id="a/b"), data=data, train=TrainConfig(steps=1))
        )
    )


def test_good_files_are_counted(tmp_path: Path) -> None:
    lines = _look(tmp_path / "d.jsonl", 3 * GOOD)
    assert lines == 2 * [f"{tmp_path / 'd.jsonl'}: 3 records (prompt + completion), all valid"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (3 * GOOD + '{"prompt": "a"}\n', r"d\.jsonl:4: no column completion"),
        (2 * GOOD + '{"prompt": "a", "compl', r"d\.jsonl:3: not valid JSON at column \d+"),
        (GOOD + '{"prompt": null, "completion": "b"}', r"d\.jsonl:2: column 'prompt': got null"),
        ('{"words": "a"}\n', r"d\.jsonl: the columns words match no known format"),
        ('{"anchor": "a", "positive": "b"}\n', r"have the format pairs, but task sft needs"),
        ("", r"d\.jsonl: no records"),
    ],
)
def test_the_first_record_that_cannot_be_used_is_named(
    tmp_path: Path, text: str, told: str
) -> None:
    with pytest.raises(DataError, match=told):
        _look(tmp_path / "d.jsonl", text)


def test_a_source_elsewhere_is_not_looked_into() -> None:
    data = DataConfig(train="someone/data")
    config = RunConfig(model=ModelConfig(id="a/b"), data=data, train=TrainConfig(steps=1))
    assert not list(validate_files(config))
