"""Runs of earlier versions keep reading their data as these versions did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest
from msgspec.structs import replace

from fttui.engine.config.earlier import read_as_before
from fttui.engine.config.load import dump_config, parse_resolved
from fttui.engine.config.schema import DataConfig, ModelConfig, RunConfig, TrainConfig
from fttui.engine.data.reading import read_records
from fttui.engine.data.records.formats import (
    MessagesRecord,
    PairRecord,
    RatedRecord,
    TextRecord,
    label_number,
)
from fttui.engine.errors import DataError

LATER = (
    *("columns", "roles", "system", "label", "yes_labels", "positives", "text", "template"),
    *("train_on", "reasoning", "accept", "dedup", "special_tokens"),
)
"""Keys of the section `data` that earlier versions did not write."""
CHAT = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "g"}]


def resolved(
    folder: Path,
    task: Literal["sft", "contrastive", "kto"],
    rows: list[dict[str, Any]],
    without: tuple[str, ...],
) -> RunConfig:
    """A configuration as an earlier version wrote it, and its data."""
    file = folder / "d.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = DataConfig(train=str(file), eval_fraction=0)
    config = RunConfig(model=ModelConfig(id="m"), data=data, train=TrainConfig(steps=1), task=task)
    lines = dump_config(config).splitlines()
    kept = [line for line in lines if not line.startswith(tuple(f"  {key}:" for key in without))]
    assert len(kept) < len(lines)
    return parse_resolved("\n".join(kept))


def records(config: RunConfig) -> list[Any]:
    return read_records(config, lambda label, done, total: None).train[0]


def test_labels_beside_two_sentences_stay_classes(tmp_path: Path) -> None:
    rows = [{"sentence1": "a", "sentence2": "b", "label": label} for label in (0, 0.5, "x")]
    old = resolved(tmp_path, "contrastive", rows, LATER)
    assert records(old) == [
        PairRecord(f"d:{number}", "a", "b", label=label_number(row["label"]))
        for number, row in enumerate(rows, start=1)
    ]
    with pytest.raises(DataError, match=r"set data\.label"):
        records(replace(old, data=DataConfig(train=old.data.train)))


def test_the_first_of_several_positives_stays_the_only_one(tmp_path: Path) -> None:
    rows = [{"query": "a", "pos": ["b", "c"], "neg": ["n"], "similarity": 0.5}]
    assert records(resolved(tmp_path, "contrastive", rows, LATER)) == [
        PairRecord("d:1", "a", "b", ("n",))
    ]


@pytest.mark.parametrize(
    ("row", "record"),
    [
        ({"text": "t", "label": "g"}, TextRecord("d:1", "t")),
        ({"text": "t", "image_path": "a.png"}, TextRecord("d:1", "t")),
        (
            {"messages": CHAT, "system": "s", "history": [["a", "b"]], "tools": [{"name": "n"}]},
            MessagesRecord("d:1", tuple(CHAT)),
        ),
        (
            {"messages": [{"role": "critic", "content": "q"}, CHAT[1]]},
            MessagesRecord("d:1", ({"role": "critic", "content": "q"}, CHAT[1])),
        ),
    ],
)
def test_columns_that_were_not_read_stay_unread(tmp_path: Path, row, record) -> None:
    assert records(resolved(tmp_path, "sft", [row], LATER)) == [record]


def test_roles_and_ratings_of_the_last_version_stay_as_they_were(tmp_path: Path) -> None:
    rows = [
        {"messages": [{"role": "critic", "content": "q"}, CHAT[1]], "label": label}
        for label in (1, 0, -1, "good")
    ]
    found = records(resolved(tmp_path, "kto", rows, ("yes_labels",)))
    ratings = [one.desirable for one in found if isinstance(one, RatedRecord)]
    assert ratings == [True, False, False, True]
    assert "critic" in str(found[0])


def test_what_a_continued_run_sets_anew_stays() -> None:
    data = DataConfig(train="d", label="score", columns={"tools": "t"}, roles={"a": "user"})
    config = RunConfig(
        model=ModelConfig(id="m"), data=data, train=TrainConfig(steps=1), task="contrastive"
    )
    found = read_as_before(config, ["train"]).data
    assert (found.label, found.columns["tools"]) == ("score", "t")
    assert found.roles == {"*": "*", "a": "user"}


def test_configurations_of_this_version_are_unchanged(tmp_path: Path) -> None:
    config = RunConfig(
        model=ModelConfig(id="m"), data=DataConfig(train="d"), train=TrainConfig(steps=1)
    )
    assert parse_resolved(dump_config(config)) == config
