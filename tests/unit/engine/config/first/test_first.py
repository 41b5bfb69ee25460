"""A first configuration is valid, fits the card, and says what its values mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fttui.engine.config.first.choices import (
    DataFacts,
    Size,
    fitting_size,
    interval,
    lengths,
    likely_size,
    sized,
    sizes,
    suggested_model,
    together,
)
from fttui.engine.config.first.writing import First, first_configuration
from fttui.engine.config.load import load_config
from fttui.engine.config.memory.architecture import read_architecture
from fttui.engine.config.memory.fit import fit
from fttui.engine.config.memory.hardware import Hardware, with_cards

GIB = 2**30
CPU = Hardware(kind="cpu", host_total_bytes=16 * GIB, host_free_bytes=12 * GIB)
ARCHITECTURE = read_architecture(
    {
        "model_type": "qwen2",
        "hidden_size": 1536,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "intermediate_size": 8960,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    }
)


def facts(task: str = "sft", records: int = 1_000, **changes: Any) -> DataFacts:
    contrastive = {"kind": "infonce"} if task == "contrastive" else {}
    values = {"characters_p95": 3_000, "tokens_p95": 800, "tokens_most": 1_500} | changes
    return DataFacts(
        records=records, task=task, source="my data.jsonl", contrastive=contrastive, **values
    )


def first(data: DataFacts, hardware: Hardware = CPU, name: str = "chats") -> First:
    return First(name, "org/model", data, likely_size(data), hardware, estimated=False)


@pytest.mark.parametrize("task", ["sft", "dpo", "kto", "contrastive"])
@pytest.mark.parametrize("free_gib", [None, 6.0])
def test_it_loads(tmp_path: Path, task: str, free_gib: float | None) -> None:
    hardware = CPU if free_gib is None else with_cards(CPU, 1, int(free_gib * GIB))
    path = tmp_path / "chats.yaml"
    path.write_text(first_configuration(first(facts(task), hardware), str(path)))
    config = load_config(path).config
    assert (config.name, config.task, config.model.id) == ("chats", task, "org/model")
    assert config.model.quantize == ("none" if free_gib is None else "nf4")
    assert str(config.data.train).endswith("my data.jsonl")
    train = config.train
    if task == "contrastive":
        assert train.micro_batch_size * train.accumulation == 64
    else:
        assert (train.batch, train.sequences_per_update) == ("auto", 16)


@pytest.mark.parametrize(
    ("task", "records", "expected"),
    [
        ("sft", 1, 1), ("sft", 8, 1), ("sft", 20, 4), ("dpo", 40, 8), ("sft", 72, 16),
        ("contrastive", 3, 2), ("contrastive", 8, 2), ("contrastive", 150, 32),
        ("contrastive", 300, 64),
    ],
)  # fmt: skip
def test_few_records_make_several_steps(task: str, records: int, expected: int) -> None:
    data = facts(task, records)
    assert together(data) == expected
    for size in (likely_size(data), *sizes(data)):
        assert size.batch * size.accumulate == expected


@given(st.text(min_size=1), st.text(min_size=1, max_size=40))
def test_any_name_of_data_survives(source: str, name: str) -> None:
    data = DataFacts(1, "sft", source, {}, None)
    plain = yaml.safe_load(first_configuration(first(data, name=name), "x.yaml"))
    assert plain["data"]["train"] == source
    assert str(plain["name"]) == name


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({}, [1536, 832, 416, 208]),
        ({"tokens_most": None}, [832, 416, 208]),
        ({"tokens_most": 20_000}, [4096, 832, 416, 208]),
        ({"tokens_p95": None, "tokens_most": None}, [1024, 512, 256, 128]),
        ({"tokens_p95": 5, "tokens_most": 9}, [128, 128]),
        ({"tokens_p95": None, "tokens_most": None, "characters_p95": None}, [1024, 512, 256, 128]),
    ],
)
def test_lengths_begin_with_the_longest_record(known: dict[str, Any], expected: list[int]) -> None:
    assert list(lengths(facts(**known))) == expected


@pytest.mark.parametrize("free_gib", [3.0, 6.0, 12.0, 24.0, 80.0])
def test_the_best_size_that_fits_is_chosen(tmp_path: Path, free_gib: float) -> None:
    data, card = facts("contrastive"), with_cards(CPU, 1, int(free_gib * GIB))
    path = tmp_path / "x.yaml"
    path.write_text(first_configuration(first(data, card), "x.yaml"))
    config = load_config(path).config
    chosen = fitting_size(data, config, ARCHITECTURE, card)
    assert chosen is not None
    for one in sizes(data):
        found = fit(sized(config, one), ARCHITECTURE, card)
        if one == chosen:
            assert found.estimate.high <= found.free_bytes
            break
        assert found.estimate.high > found.free_bytes


@pytest.mark.parametrize("free_gib", [3.0, 6.0, 12.0, 24.0, 80.0])
def test_the_longest_text_that_fits_is_chosen_and_the_run_divides_it(
    tmp_path: Path, free_gib: float
) -> None:
    data, card = facts(), with_cards(CPU, 1, int(free_gib * GIB))
    path = tmp_path / "x.yaml"
    path.write_text(first_configuration(first(data, card), "x.yaml"))
    config = load_config(path).config
    chosen = fitting_size(data, config, ARCHITECTURE, card)
    assert chosen is not None
    assert chosen.batch * chosen.accumulate == 16
    for length in lengths(data):
        found = fit(sized(config, Size(length, 1, 16)), ARCHITECTURE, card)
        assert (found.estimate.high <= found.free_bytes) == (length == chosen.max_length)
        if length == chosen.max_length:
            break


def test_nothing_fits_a_card_without_memory(tmp_path: Path) -> None:
    data, card = facts(), with_cards(CPU, 1, GIB // 8)
    path = tmp_path / "x.yaml"
    path.write_text(first_configuration(first(data, card), "x.yaml"))
    assert fitting_size(data, load_config(path).config, ARCHITECTURE, card) is None


def test_larger_cards_get_larger_models() -> None:
    found = [suggested_model("sft", with_cards(CPU, 1, gib * GIB)) for gib in (3, 6, 12, 24)]
    assert len(set(found)) == 4
    assert suggested_model("contrastive", with_cards(CPU, 1, 6 * GIB)) not in found
    assert suggested_model("sft", CPU) not in found


@given(st.integers(1, 10**7), st.sampled_from([1, 4, 16]))
def test_every_run_is_evaluated_about_ten_times(records: int, batch: int) -> None:
    every = interval(facts(records=records), Size(512, batch, 16 // batch))
    assert 1 <= every <= 100


def test_what_is_cut_is_said() -> None:
    assert "the longest record has 1,500" in text_of(Size(1536, 1, 16))
    assert "95 % of the records have at most 800; others are cut" in text_of(Size(832, 1, 16))
    assert "longer records are truncated" in text_of(Size(256, 1, 16))


def text_of(size: Size) -> str:
    return first_configuration(First("x", "m", facts(), size, CPU, estimated=True), "x.yaml")
