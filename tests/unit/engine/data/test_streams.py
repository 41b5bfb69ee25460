"""Rows that make no record in streamed data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fttui.engine.config.data_reasons import MIXED_MARGINS
from fttui.engine.config.data_reasons.rows import (
    INVALID_ROWS,
    MISSING_WORDS,
    NOT_MATCHING,
    OTHER_FORM,
    UNLABELLED,
)
from fttui.engine.config.schema import DataConfig, ModelConfig, RunConfig, TrainConfig
from fttui.engine.data.dataset import examine_stream
from fttui.engine.data.streams import first_streamed, stream_batches
from fttui.engine.data.tokens.examples import TextExample
from fttui.engine.errors import DataError
from tests.support.tokenizer import tiny_tokenizer

ROWS = 40
ODD = 5
"""Every row with a number that this divides has another form."""


def streamed(folder: Path) -> RunConfig:
    file = folder / "d.jsonl"
    rows = [{"url": n} if n % ODD == 0 else {"text": f"row {n}"} for n in range(ROWS)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = DataConfig(train=str(file), streaming=True, eval_fraction=0, shuffle_buffer=8)
    return RunConfig(model=ModelConfig(id="m"), data=data, train=TrainConfig(steps=1, batch=3))


def test_rows_of_another_form_keep_their_number_and_are_counted_once(tmp_path: Path) -> None:
    config, tokenizer = streamed(tmp_path), tiny_tokenizer()
    stream = stream_batches(config, tokenizer, 0, 1)
    steps = [stream.take(position) for position in range(14)]
    trained = {one.id for step in steps for one in step if isinstance(one, TextExample)}
    assert len(trained) == ROWS - ROWS // ODD, "one pass of 40 rows in 14 micro-batches of 3"
    assert stream.findings.count(OTHER_FORM) == ROWS // ODD
    for position in (5, 9, 2):
        assert stream_batches(config, tokenizer, 0, 1).take(position) == steps[position]


def test_the_first_rows_of_a_stream_name_those_of_another_form(tmp_path: Path) -> None:
    read = first_streamed(streamed(tmp_path), 10)
    assert len(read.train[0]) == 8
    assert read.findings.count(OTHER_FORM) == 2


def test_rows_of_a_stream_that_do_not_match_are_counted(tmp_path: Path) -> None:
    file, labels = tmp_path / "p.jsonl", ["1", "0", "-", "1", "0", "1"]
    rows = [{"text1": f"a{n}", "text2": f"b{n}", "label": one} for n, one in enumerate(labels)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = DataConfig(train=str(file), streaming=True, eval_fraction=0, label="match")
    model, train = ModelConfig(id="m"), TrainConfig(steps=1, batch=3)
    config = RunConfig(model=model, data=data, train=train, task="contrastive")
    first = first_streamed(config, len(rows)).findings
    stream = stream_batches(config, tiny_tokenizer(), 0, 1)
    assert sum(len(stream.take(position)) for position in range(2)) == 3
    for findings in (first, stream.findings):
        assert (findings.count(NOT_MATCHING), findings.count(UNLABELLED)) == (2, 1)


def test_margins_of_a_stream_are_counted_where_they_differ_from_the_first(tmp_path: Path) -> None:
    file = tmp_path / "d.jsonl"
    rows = [{"chosen": f"good {n}", "rejected": f"bad {n}", "margin": n % 3 or None}
            for n in range(1, 9)]  # fmt: skip
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = DataConfig(train=str(file), streaming=True, eval_fraction=0, shuffle_buffer=3)
    model, train = ModelConfig(id="m"), TrainConfig(steps=1, batch=2)
    config = RunConfig(model=model, data=data, train=train, task="reward")
    stream = stream_batches(config, tiny_tokenizer(), 0, 1)
    for position in range(6):
        stream.take(position)
    assert stream.findings.count(MIXED_MARGINS) == 2
    checked = examine_stream(config, tiny_tokenizer(), lambda *progress: None, len(rows))
    assert checked.findings.count(MIXED_MARGINS) == 2


def test_what_is_noticed_in_a_row_counts_once_in_several_passes(tmp_path: Path) -> None:
    file = tmp_path / "d.jsonl"
    rows = [{"text": "nan" if n in (2, 5) else f"row {n}"} for n in range(9)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = DataConfig(train=str(file), streaming=True, eval_fraction=0, shuffle_buffer=3)
    config = RunConfig(model=ModelConfig(id="m"), data=data, train=TrainConfig(steps=1, batch=3))
    stream = stream_batches(config, tiny_tokenizer(), 0, 1)
    for position in range(9):
        stream.take(position)
    assert stream.findings.count(MISSING_WORDS) == 2


def test_a_row_that_cannot_be_read_leaves_the_stream_running_and_is_counted(tmp_path: Path) -> None:
    file = tmp_path / "d.jsonl"
    rows = [{"text": 4 if n == 7 else f"row {n}"} for n in range(12)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = DataConfig(train=str(file), streaming=True, eval_fraction=0, shuffle_buffer=4)
    config = RunConfig(model=ModelConfig(id="m"), data=data, train=TrainConfig(steps=1, batch=1))
    assert first_streamed(config, 12).findings.count(INVALID_ROWS) == 1
    stream = stream_batches(config, tiny_tokenizer(), 0, 1)
    trained = {one.id for position in range(12) for one in stream.take(position)}
    assert len(trained) == 11
    assert not any(one.endswith(":8") for one in trained)
    assert stream.findings.count(INVALID_ROWS) == 1


def test_a_stream_of_which_most_rows_cannot_be_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "d.jsonl"
    rows = [{"text": n if n else "row"} for n in range(4)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = DataConfig(train=str(file), streaming=True, eval_fraction=0)
    config = RunConfig(model=ModelConfig(id="m"), data=data, train=TrainConfig(steps=1, batch=1))
    with pytest.raises(DataError, match="3 of 4 rows cannot be read"):
        first_streamed(config, 4)
