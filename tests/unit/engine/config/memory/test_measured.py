"""Estimates against peaks of whole runs of `tests.bench.memory` on an H200, GiB."""

from __future__ import annotations

from typing import Any

import pytest

from fttui.engine.config.memory.estimate import (
    GIB,
    Architecture,
    estimate_memory,
    read_architecture,
)
from tests.bench.memory_cases import FAMILY_LAYERS, MODES
from tests.support.families import family_shape

from .test_estimate import LLAMA_1B, LLAMA_8B, SMOLLM2, configured

LLAMA_3B = Architecture(3072, 28, 24, 8, 128, 8192, 128256, tied=True)
ON: dict[str, Any] = {"activation_checkpointing": True, "adapter_precision": "bf16"}
WHOLE: dict[str, Any] = {"activation_checkpointing": False, "adapter_precision": "bf16"}
FP32: dict[str, Any] = {"adapter_precision": "fp32"}
LEAN: dict[str, Any] = ON | {"memory": "lean", "optimizer": "paged_adamw_8bit"}
DROPOUT = {"dropout": 0.05}
ALONE = {"kind": "infonce", "hard_negatives": 0, "cross_accumulation": "off"}
AHEAD = {"kind": "infonce", "hard_negatives": 0, "cross_accumulation": "on"}
SIMCTG = {"kind": "simctg"}


def compared(arch: Architecture, length: int, train: dict[str, Any], **more: Any) -> float:
    """What the planner says of a row; unlike there, everything is set."""
    sections = {"adapter": {"dropout": 0.0}, **more}
    usual = {"optimizer": "adamw", "accumulate": 2, "batch": 1, "fast": "off"}
    config = configured(data={"max_length": length}, train=usual | train, **sections)
    return estimate_memory(config, arch).compared / GIB


@pytest.mark.parametrize(
    ("arch", "length", "train", "more", "measured_gib"),
    [
        (SMOLLM2, 1024, WHOLE | {"batch": 4}, {"adapter": DROPOUT}, 3.709),
        (LLAMA_1B, 512, ON, {"adapter": DROPOUT}, 1.436),
        (LLAMA_1B, 512, WHOLE, {"adapter": DROPOUT}, 2.242),
        (LLAMA_1B, 2048, ON, {"adapter": DROPOUT}, 1.662),
        (LLAMA_3B, 1024, WHOLE | FP32, {}, 5.455),
        (LLAMA_8B, 1024, ON, {"adapter": DROPOUT}, 6.594),
        (LLAMA_8B, 1024, WHOLE, {"adapter": DROPOUT}, 12.650),
        (LLAMA_8B, 1024, ON | {"whole_layers": 10}, {"adapter": DROPOUT}, 8.430),
        (LLAMA_1B, 1024, ON, {"contrastive": SIMCTG}, 1.629),
        (LLAMA_1B, 512, ON | {"batch": 2}, {"contrastive": ALONE, "task": "contrastive"}, 1.701),
        (LLAMA_1B, 512, WHOLE | {"batch": 2}, {"contrastive": ALONE, "task": "contrastive"}, 3.889),
        (
            LLAMA_1B, 512, WHOLE | {"batch": 2, "accumulate": 4},
            {"contrastive": AHEAD, "task": "contrastive"}, 3.891,
        ),
        (LLAMA_1B, 1024, ON, {"task": "dpo"}, 1.682),
        (LLAMA_1B, 512, WHOLE | {"batch": 2}, {"task": "dpo", "adapter": DROPOUT}, 5.002),
        (LLAMA_1B, 1024, ON | {"batch": 2}, {"task": "kto"}, 1.662),
        (LLAMA_1B, 512, ON | {"memory": "lean"}, {"adapter": DROPOUT}, 1.127),
        (LLAMA_1B, 2048, ON | {"memory": "lean"}, {"adapter": DROPOUT}, 1.314),
        (LLAMA_8B, 1024, ON | {"memory": "lean"}, {"adapter": DROPOUT}, 4.844),
        (LLAMA_8B, 2048, LEAN, {}, 5.080),
    ],
)  # fmt: skip
def test_what_graphs_reserve_is_met_within_four_percent(
    arch, length, train, more, measured_gib
) -> None:
    found = compared(arch, length, train | {"fast": "on"}, **more)
    assert found == pytest.approx(measured_gib, rel=0.04)


@pytest.mark.parametrize(
    ("arch", "length", "train", "more", "measured_gib"),
    [
        (LLAMA_3B, 1024, ON, {}, 2.684),
        (LLAMA_3B, 2048, ON | FP32 | {"batch": 2}, {"adapter": DROPOUT}, 4.002),
        (LLAMA_8B, 1024, LEAN, {}, 4.411),
        (LLAMA_8B, 2048, LEAN, {}, 4.850),
        (LLAMA_8B, 4096, LEAN | {"activations": "host"}, {}, 4.820),
        (LLAMA_1B, 512, ON | {"batch": 2}, {"contrastive": ALONE, "task": "contrastive"}, 1.491),
        (
            LLAMA_1B, 512, WHOLE | {"batch": 2},
            {"contrastive": ALONE, "task": "contrastive", "adapter": DROPOUT}, 5.500,
        ),
        (
            LLAMA_1B, 512, ON | {"batch": 2, "accumulate": 8},
            {"contrastive": AHEAD, "task": "contrastive"}, 1.491,
        ),
        (
            LLAMA_1B, 512, WHOLE | {"batch": 2, "accumulate": 4},
            {"contrastive": AHEAD, "task": "contrastive"}, 4.386,
        ),
        (LLAMA_1B, 512, LEAN | {"batch": 2}, {"contrastive": AHEAD, "task": "contrastive"}, 1.072),
        (LLAMA_1B, 1024, ON, {"task": "dpo"}, 1.491),
        (LLAMA_1B, 512, WHOLE | {"batch": 2}, {"task": "dpo", "adapter": DROPOUT}, 5.490),
        (LLAMA_1B, 1024, LEAN, {"task": "dpo"}, 1.072),
        (LLAMA_1B, 1024, ON | FP32 | {"batch": 2}, {"task": "kto"}, 1.576),
        (LLAMA_1B, 1024, ON, {"contrastive": SIMCTG}, 1.313),
        (LLAMA_8B, 1024, ON | {"whole_layers": 10}, {}, 7.764),
    ],
)  # fmt: skip
def test_what_is_allocated_is_met_within_two_percent(
    arch, length, train, more, measured_gib
) -> None:
    assert compared(arch, length, train, **more) == pytest.approx(measured_gib, rel=0.02)


FAMILY_ROWS = {
    "llama-3.2-1b": (1.313, 3.223, 3.275, 1.547),
    "qwen2-0.5b": (0.670, 2.250, 2.258, 0.939),
    "qwen2.5-1.5b": (1.488, 4.477, 4.755, 1.760),
    "qwen3-1.7b": (1.694, 4.686, 5.088, 1.951),
    "gemma-2-2b": (1.989, 5.031, 4.638, 2.336),
    "gemma-3-1b": (1.233, 4.297, 3.936, 1.527),
    "phi-3-mini": (1.448, 3.221, 3.102, 1.658),
    "phi-4": (3.279, 4.232, 4.046, 3.354),
    "phi-4-mini": (2.136, 3.955, 3.661, 2.373),
    "mistral-7b": (1.621, 2.760, 2.832, 1.764),
    "olmo-2-1b": (1.658, 3.764, 3.957, 1.830),
    "granite-3.3-2b": (1.227, 3.393, 3.756, 1.361),
    "smollm3-3b": (1.500, 3.748, 3.810, 1.727),
    "gemma-3-4b": (2.806, 4.523, 4.326, 2.961),
    "qwen2.5-vl-3b": (2.662, 4.324, 4.453, 2.820),
}
"""Peaks in GiB by family, in the order of `MODES`; decoder layers are those of `FAMILY_LAYERS`."""


@pytest.mark.parametrize("mode", range(len(MODES)), ids=list(MODES))
@pytest.mark.parametrize("name", FAMILY_ROWS)
def test_families_are_met_within_five_percent(name: str, mode: int) -> None:
    arch = read_architecture(family_shape(name, FAMILY_LAYERS[name]))
    sets = list(MODES.values())[mode]
    fast = {"fast": sets.get("train.fast", "off")}
    recompute = sets["train.activation_checkpointing"] == "true"
    train = {"adapter_precision": "bf16", "activation_checkpointing": recompute} | fast
    adapter = {"dropout": float(sets.get("adapter.dropout", 0))}
    found = compared(arch, 1024, train, adapter=adapter)
    assert found == pytest.approx(FAMILY_ROWS[name][mode], rel=0.05)


MIXTURE_ROWS = {
    "olmoe-1b-7b": (2.263, 5.052),
    "qwen3-30b-a3b": (3.187, 4.566),
    "mixtral-8x7b": (4.260, 4.346),
}
"""Peaks in GiB of mixtures of experts, which have no CUDA graphs: modes off and off-whole."""


@pytest.mark.parametrize("mode", ["off", "off-whole"])
@pytest.mark.parametrize("fast", ["off", "auto"])
@pytest.mark.parametrize("name", MIXTURE_ROWS)
def test_mixtures_of_experts_are_met_within_two_percent(name: str, mode: str, fast: str) -> None:
    arch = read_architecture(family_shape(name, FAMILY_LAYERS[name]))
    train = (ON if mode == "off" else WHOLE) | {"fast": fast}
    adapter = {"dropout": float(MODES[mode].get("adapter.dropout", 0))}
    found = compared(arch, 1024, train, adapter=adapter)
    assert found == pytest.approx(MIXTURE_ROWS[name][mode != "off"], rel=0.02)


@pytest.mark.parametrize(
    ("name", "mode"),
    [(name, mode) for name in ("granite-3.3-2b", "gemma-2-2b", "gemma-3-4b", "qwen2.5-vl-3b")
     for mode in ("off", "off-whole")],
)  # fmt: skip
def test_losses_in_chunks_of_logits_are_met_within_one_percent(name: str, mode: str) -> None:
    """TRL's head computes no scaled or capped logits, and none of a model with a tower."""
    arch = read_architecture(family_shape(name, FAMILY_LAYERS[name]))
    adapter = {"dropout": float(MODES[mode].get("adapter.dropout", 0))}
    found = compared(arch, 1024, ON if mode == "off" else WHOLE, adapter=adapter)
    assert found == pytest.approx(FAMILY_ROWS[name][list(MODES).index(mode)], rel=0.01)


@pytest.mark.parametrize(
    ("name", "train", "measured_gib"),
    [
        ("qwen2.5-1.5b", FP32 | {"activation_checkpointing": True}, 25.856),
        ("qwen2.5-1.5b", FP32 | {"activation_checkpointing": False}, 29.827),
        ("qwen2.5-1.5b", FP32 | {"activation_checkpointing": True, "layers": 4}, 5.886),
        ("llama-3.2-1b", FP32 | {"activation_checkpointing": True, "layers": 4}, 6.130),
        ("llama-3.2-1b", ON, 10.890),
    ],
)
def test_training_of_the_model_itself_is_met_within_five_percent(
    name: str, train: dict[str, Any], measured_gib: float
) -> None:
    whole = {"adapter": {"kind": "none"}, "model": {"id": "m", "quantize": "none"}}
    arch = read_architecture(family_shape(name))
    assert compared(arch, 1024, train, **whole) == pytest.approx(measured_gib, rel=0.05)
