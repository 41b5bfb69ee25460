"""What is decided before a run starts, and which decisions a resumed run keeps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from fttui.engine.config.load import LoadedConfig, load_config, parse_resolved, with_config
from fttui.engine.config.memory.architecture import MixtureOfExperts
from fttui.engine.config.memory.estimate import estimate_memory, read_architecture
from fttui.engine.config.memory.hardware import Device, Hardware
from fttui.engine.config.memory.planning import (
    architecture_of,
    fit_on,
    known_architecture,
    with_earlier_decisions,
    with_smallest_batch,
)
from fttui.engine.config.schema import TrainConfig
from fttui.engine.config.sections.model import PACKAGE_MODEL
from fttui.engine.errors import ConfigError, FttuiError, ModelError

GIB = 2**30
LLAMA_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}


@pytest.fixture
def loaded(tmp_path: Path) -> LoadedConfig:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    path = tmp_path / "run.yaml"
    path.write_text(
        f"model: {{id: {tmp_path}}}\ndata: {{train: t.jsonl, max_length: 4096}}\n"
        "adapter: {dropout: 0}\ntrain: {steps: 1, optimizer: paged_adamw_8bit}\n"
    )
    return load_config(path)


def card(free_gib: float) -> Hardware:
    free = int(free_gib * GIB)
    device = Device(name="card", total_bytes=free, free_bytes=free, bf16=True)
    return Hardware("cuda", 64 * GIB, 64 * GIB, devices=(device,))


def resumed(loaded: LoadedConfig, free_gib: float) -> TrainConfig:
    """The training section of a run that started on such a card and is resumed."""
    found = fit_on(loaded, card(free_gib), force=False)
    assert found is not None
    started = with_config(loaded, found.config)
    return with_earlier_decisions(loaded, parse_resolved(started.resolved)).config.train


def test_what_was_decided_so_that_it_fits_is_kept(loaded: LoadedConfig) -> None:
    train = resumed(loaded, 6.5)
    assert (train.memory, train.activations) == ("lean", "host")


def test_activations_kept_for_speed_stay_kept(loaded: LoadedConfig) -> None:
    train = resumed(loaded, 12)
    assert train.activation_checkpointing is True
    assert 0 < train.whole_layers < 32


def test_graphs_left_out_so_that_it_fits_stay_out(loaded: LoadedConfig, tmp_path: Path) -> None:
    shorter = load_config(tmp_path / "run.yaml", ["data.max_length=2048"])
    need = estimate_memory(shorter.config, read_architecture(LLAMA_8B))
    assert resumed(shorter, need.high / GIB - 0.05).fast == "off"


def test_what_the_configuration_sets_itself_is_not_taken_from_the_earlier_start(
    loaded: LoadedConfig, tmp_path: Path
) -> None:
    asked = ["memory=plain", "activations=device", "fast=on", "activation_checkpointing=false"]
    now = load_config(tmp_path / "run.yaml", [f"train.{one}" for one in asked])
    found = fit_on(loaded, card(6.5), force=False)
    assert found is not None
    train = with_earlier_decisions(now, found.config).config.train
    assert (train.memory, train.activations, train.fast) == ("plain", "device", "on")
    assert train.activation_checkpointing is False


def test_what_cannot_fit_is_refused_unless_forced(loaded: LoadedConfig) -> None:
    with pytest.raises(ModelError, match=r"--force\.$"):
        fit_on(loaded, card(1.5), force=False)
    forced = fit_on(loaded, card(1.5), force=True)
    assert forced is not None
    assert not forced.fits


def test_a_model_of_unknown_shape_is_not_planned(loaded: LoadedConfig, tmp_path: Path) -> None:
    (tmp_path / "config.json").unlink()
    assert isinstance(known_architecture(loaded), FttuiError)
    assert fit_on(loaded, card(4), force=False) is None


def test_experts_have_no_known_shape_and_no_graphs(loaded: LoadedConfig, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B | {"num_local_experts": 8}))
    assert isinstance(known_architecture(loaded), MixtureOfExperts)
    with pytest.raises(ConfigError, match=r"train\.fast"):
        known_architecture(load_config(tmp_path / "run.yaml", ["train.fast=on"]))


def test_a_planned_mixture_has_no_graphs(loaded: LoadedConfig, tmp_path: Path) -> None:
    sizes = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B | sizes))
    found = known_architecture(loaded)
    assert not isinstance(found, FttuiError)
    assert not estimate_memory(loaded.config, found).graphs
    with pytest.raises(ConfigError, match=r"train\.fast"):
        known_architecture(load_config(tmp_path / "run.yaml", ["train.fast=on"]))


def test_more_whole_layers_than_the_model_has_are_refused(
    loaded: LoadedConfig, tmp_path: Path
) -> None:
    settings = ["train.activation_checkpointing=true", "train.whole_layers=33"]
    with pytest.raises(ConfigError, match="has 32 layers"):
        known_architecture(load_config(tmp_path / "run.yaml", settings))


def test_the_packaged_model_needs_no_download(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(
        f"model: {{id: '{PACKAGE_MODEL}'}}\ndata: {{train: t.jsonl}}\ntrain: {{steps: 1}}\n"
    )
    shape = architecture_of(load_config(tmp_path / "p.yaml").config, local=True)
    assert (shape.hidden, shape.layers, shape.vocabulary, shape.tied) == (576, 30, 49152, True)


def test_planning_loads_no_torch() -> None:
    code = "import sys, fttui.engine.config.memory.planning; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_divided_update_keeps_its_micro_batch(loaded: LoadedConfig, tmp_path: Path) -> None:
    divided = ["train.batch=auto", "train.sequences_per_update=12", "data.max_length=256"]
    now = load_config(tmp_path / "run.yaml", divided)
    found = fit_on(now, card(80), force=False)
    assert found is not None
    assert found.config.train.batch == 12
    smaller = fit_on(now, card(8), force=False)
    assert smaller is not None
    assert smaller.config.train.micro_batch_size < 12
    kept = with_earlier_decisions(now, smaller.config).config.train
    assert (kept.batch, kept.sequences_per_update) == (smaller.config.train.batch, 12)


def test_another_number_of_sequences_has_to_fit_the_earlier_micro_batch(
    loaded: LoadedConfig, tmp_path: Path
) -> None:
    divided = ["train.batch=auto", "train.sequences_per_update=16"]
    now = load_config(tmp_path / "run.yaml", divided)
    train = replace(loaded.config.train, batch=8)
    earlier = replace(loaded.config, train=train)
    assert with_earlier_decisions(now, earlier).config.train.accumulation == 2
    other = load_config(tmp_path / "run.yaml", [*divided, "train.sequences_per_update=12"])
    with pytest.raises(ConfigError, match=r"train.batch 8 × 1 rank.*set 8 or 16"):
        with_earlier_decisions(other, earlier)


def test_single_sequences_are_taken_where_memory_is_unknown(
    loaded: LoadedConfig, tmp_path: Path
) -> None:
    assert with_smallest_batch(loaded) is loaded
    now = load_config(tmp_path / "run.yaml", ["train.batch=auto", "train.sequences_per_update=12"])
    found = with_smallest_batch(now)
    assert (found.config.train.batch, found.config.train.accumulation) == (1, 12)
    assert "batch: 1\n" in found.resolved
