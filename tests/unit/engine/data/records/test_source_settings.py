"""Settings of one source of a mix, with those of the section as the default."""

from __future__ import annotations

import json

import msgspec

from fttui.engine.config.checks import check_config
from fttui.engine.config.schema import (
    STDLIB_PAIRS,
    DataConfig,
    DataSource,
    ModelConfig,
    RunConfig,
    TrainConfig,
)
from fttui.engine.data.reading import first_records, read_records
from fttui.engine.data.streams import first_streamed

ASKED = {"role": "user", "content": "q"}
GOOD = {"role": "assistant", "content": "g"}


def turns(parts):
    """The messages of the first record of each source."""
    return [list(part[0].messages) for part in parts]


def test_every_source_of_a_mix_has_columns_roles_labels_and_a_system_message_of_its_own(tmp_path):
    chat = tmp_path / "chat.jsonl"
    chat.write_text(json.dumps({"turns": [{"from": "narrator", "value": "q"}, GOOD]}) + "\n")
    asked = tmp_path / "asked.jsonl"
    asked.write_text(json.dumps({"ask": "q", "tell": "g"}) + "\n")
    plain = tmp_path / "plain.jsonl"
    plain.write_text(json.dumps({"messages": [ASKED, GOOD]}) + "\n")
    data = DataConfig(
        train=[
            DataSource(path=str(chat), columns={"messages": "turns"}, roles={"narrator": "user"}),
            DataSource(
                path=str(asked), columns={"instruction": "ask", "output": "tell"}, system=""
            ),
            DataSource(path=str(plain)),
        ],
        columns={"tools": None},
        system="s",
        eval_fraction=0,
    )
    config = RunConfig(model=ModelConfig(id="m"), data=data, train=TrainConfig(steps=1))
    system = {"role": "system", "content": "s"}
    expected = [[system, ASKED, GOOD], [ASKED, GOOD], [system, ASKED, GOOD]]
    read = read_records(config, lambda label, done, total: None)
    assert turns(read.train) == expected
    streamed = msgspec.structs.replace(
        config, data=msgspec.structs.replace(data, streaming=True, eval_fraction=0)
    )
    assert turns(first_streamed(streamed, 5).train) == expected
    first = first_records(config, 5, lambda label, done, total: None)
    assert turns([[one] for one in first]) == expected


def test_the_first_records_of_the_standard_library_obey_the_limit_of_the_data():
    data = DataConfig(train=STDLIB_PAIRS, train_limit=3)
    config = RunConfig(model=ModelConfig(id="m"), data=data, train=TrainConfig(steps=1))
    limited = first_records(config, 5, lambda label, done, total: None)
    assert [len(limited), len(first_records(config, 2, lambda label, done, total: None))] == [3, 2]


def test_settings_of_a_source_are_checked():
    data = DataConfig(train=[DataSource(path="a", columns={"promt": "x"}, label="class")])
    config = RunConfig(model=ModelConfig(id="m"), data=data, train=TrainConfig(steps=1))
    told = [one.text for one in check_config(config) if one.key == "data.train"]
    assert [text.split(":")[0] for text in told] == ["a", "a"]
    assert "'promt'" in told[0]
    assert "label" in told[1]
