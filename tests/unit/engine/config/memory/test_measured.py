"""Estimates against peaks of whole runs of `tests.bench.memory` on an H200, GiB."""

from __future__ import annotations

from typing import Any

import pytest

from fttui.engine.config.memory.estimate import GIB, Architecture, estimate_memory

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
        (SMOLLM2, 1024, WHOLE | {"batch": 4}, {"adapter": DROPOUT}, 3.576),
        (LLAMA_1B, 512, ON, {"adapter": DROPOUT}, 1.475),
        (LLAMA_1B, 512, WHOLE, {"adapter": DROPOUT}, 2.281),
        (LLAMA_1B, 2048, ON, {"adapter": DROPOUT}, 1.662),
        (LLAMA_3B, 1024, WHOLE | FP32, {}, 5.357),
        (LLAMA_8B, 1024, ON, {"adapter": DROPOUT}, 6.555),
        (LLAMA_8B, 1024, WHOLE, {"adapter": DROPOUT}, 12.650),
        (LLAMA_8B, 1024, ON | {"whole_layers": 10}, {"adapter": DROPOUT}, 8.371),
        (LLAMA_1B, 1024, ON, {"contrastive": SIMCTG}, 1.592),
        (LLAMA_1B, 512, ON | {"batch": 2}, {"contrastive": ALONE, "task": "contrastive"}, 1.662),
        (LLAMA_1B, 512, WHOLE | {"batch": 2}, {"contrastive": ALONE, "task": "contrastive"}, 3.869),
        (
            LLAMA_1B, 512, WHOLE | {"batch": 2, "accumulate": 4},
            {"contrastive": AHEAD, "task": "contrastive"}, 3.871,
        ),
        (LLAMA_1B, 1024, ON, {"task": "dpo"}, 1.623),
        (LLAMA_1B, 512, WHOLE | {"batch": 2}, {"task": "dpo", "adapter": DROPOUT}, 4.963),
        (LLAMA_1B, 1024, ON | {"batch": 2}, {"task": "kto"}, 1.604),
        (LLAMA_1B, 512, ON | {"memory": "lean"}, {"adapter": DROPOUT}, 1.127),
        (LLAMA_1B, 2048, ON | {"memory": "lean"}, {"adapter": DROPOUT}, 1.314),
        (LLAMA_8B, 1024, ON | {"memory": "lean"}, {"adapter": DROPOUT}, 4.844),
        (LLAMA_8B, 2048, LEAN, {}, 5.100),
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
