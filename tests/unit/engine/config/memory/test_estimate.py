from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fttui.engine.config.memory.estimate import GIB, Architecture, estimate_memory
from fttui.engine.config.memory.fit import advice
from fttui.engine.config.schema import RunConfig, TrainConfig
from fttui.engine.config.sections.optimizers import TrainedTensor, state_bytes
from fttui.engine.config.sections.train import SamConfig

SMOLLM2 = Architecture(576, 30, 9, 3, 64, 1536, 49152, tied=True)
LLAMA_1B = Architecture(2048, 16, 32, 8, 64, 8192, 128256, tied=True)
LLAMA_8B = Architecture(4096, 32, 32, 8, 128, 14336, 128256, tied=False)
QWEN_05B = Architecture(896, 24, 14, 2, 64, 4864, 151936, tied=True)
QWEN_3B = Architecture(2048, 36, 16, 2, 128, 11008, 151936, tied=True)
QWEN3_4B = Architecture(2560, 36, 32, 8, 128, 9728, 151936, tied=True)
LLAMA2_7B = Architecture(4096, 32, 32, 32, 128, 11008, 32000, tied=False)


def configured(**sections: dict[str, Any] | str) -> RunConfig:
    """A run on 6 GB: fp32 adapters, 8-bit optimizer, dropout; sections overridden."""
    defaults: dict[str, dict[str, Any]] = {
        "model": {"id": "m"},
        "data": {"train": "t.jsonl", "max_length": 1024},
        "train": {"steps": 1, "optimizer": "paged_adamw_8bit", "adapter_precision": "fp32"},
    }
    raw: dict[str, Any] = defaults.copy()
    for name, section in sections.items():
        raw[name] = section if isinstance(section, str) else defaults.get(name, {}) | section
    return msgspec.convert(raw, RunConfig)


BF16, FP32 = {"adapter_precision": "bf16"}, {"adapter_precision": "fp32"}
WHOLE = {"activation_checkpointing": False}
DROPOUT = {"dropout": 0.05}


@pytest.mark.parametrize(
    ("arch", "length", "batch", "train", "adapter", "measured_gib"),
    [
        (SMOLLM2, 1024, 4, FP32, DROPOUT, 0.648),
        (SMOLLM2, 2048, 1, BF16 | WHOLE, {}, 1.627),
        (QWEN_05B, 1024, 2, BF16, {}, 0.782),
        (QWEN_05B, 512, 4, FP32 | WHOLE, DROPOUT, 4.040),
        (LLAMA_1B, 512, 1, BF16, DROPOUT, 1.240),
        (LLAMA_1B, 2048, 1, FP32, {}, 1.577),
        (LLAMA_1B, 1024, 2, BF16 | WHOLE, {}, 4.333),
        (LLAMA_8B, 1024, 1, BF16, {}, 6.260),
        (LLAMA_8B, 2048, 1, BF16, {}, 6.719),
    ],
)
def test_peaks_measured_on_a_gpu_are_met_within_two_percent(
    arch, length, batch, train, adapter, measured_gib
) -> None:
    """Peaks of whole runs of `tests.bench.memory` on an H200, allocated by PyTorch."""
    config = configured(
        data={"max_length": length},
        train={"optimizer": "adamw", "fast": "off", "batch": batch, **train},
        adapter={"dropout": 0.0, **adapter},
    )
    assert estimate_memory(config, arch).allocated / GIB == pytest.approx(measured_gib, rel=0.02)


def test_lean_mode_takes_the_ends_off_the_device() -> None:
    plain, lean = (
        estimate_memory(configured(train={"memory": memory}), LLAMA_8B)
        for memory in ("plain", "lean")
    )
    head = 128256 * 4096
    assert lean.non_quantized == 2 * LLAMA_8B.norm_params
    assert lean.base - plain.base == pytest.approx(0.516 * head, rel=0.001)
    spared = plain.allocated - lean.allocated
    assert spared > 1.6 * GIB


def test_checkpoints_on_the_host_no_longer_grow_with_the_layers() -> None:
    def activations(place: str, layers: int) -> int:
        arch = Architecture(4096, layers, 32, 8, 128, 14336, 128256, tied=False)
        config = configured(train={"activations": place}, data={"max_length": 4096})
        return estimate_memory(config, arch).activations

    assert activations("host", 64) == activations("host", 32) < activations("device", 32)


def test_a_published_peak_of_an_8b_model_is_met_within_ten_percent() -> None:
    """torchtune's README: Llama-3.1-8B QLoRA, two sequences of 2048, 7.4 GiB without context."""
    config = configured(
        data={"max_length": 2048},
        train={"batch": 2, "optimizer": "adamw", "adapter_precision": "bf16"},
        adapter={"r": 8, "dropout": 0.0},
    )
    estimate = estimate_memory(config, LLAMA_8B)
    assert (estimate.likely - estimate.context) / GIB == pytest.approx(7.4, rel=0.1)


def test_exact_counts_of_weights_adapters_and_optimizer() -> None:
    linears = SMOLLM2.linear_params
    assert linears + SMOLLM2.other_params == 134_515_008
    plain = estimate_memory(configured(model={"quantize": "none", "precision": "fp32"}), SMOLLM2)
    assert plain.base + plain.non_quantized == 538_060_032
    assert plain.adapters == plain.gradients == 4_884_480 * 4
    adamw = estimate_memory(configured(train={"optimizer": "adamw"}), SMOLLM2)
    assert adamw.optimizer == 4_884_480 * 8


def test_a_moving_average_is_a_copy_of_the_adapter_in_fp32() -> None:
    plain, averaged = (
        estimate_memory(configured(train={"ema": ema, "adapter_precision": "fp32"}), SMOLLM2)
        for ema in (0.0, 0.99)
    )
    assert averaged.adapters == 2 * plain.adapters
    assert averaged.likely > plain.likely


def test_a_second_pass_holds_a_tensor_for_each_trained_weight() -> None:
    found = {
        name: estimate_memory(
            configured(train={"optimizer": name, "adapter_precision": "fp32", "fast": "off"}),
            SMOLLM2,
        )
        for name in ("adamw", "sam", "sophia")
    }
    for name in ("sam", "sophia"):
        assert found[name].adapters == 2 * found["adamw"].adapters
        assert found[name].optimizer == found["adamw"].optimizer
    on_bits = TrainConfig(optimizer="sam", sam=SamConfig(base="adamw_8bit"))
    tensor = [TrainedTensor((4096, 4))]
    assert state_bytes(on_bits, tensor, 4) == state_bytes(
        TrainConfig(optimizer="adamw_8bit"), tensor, 4
    )


def test_terms_add_up_and_the_band_holds_them() -> None:
    estimate = estimate_memory(configured(), LLAMA_1B)
    assert sum(estimate.terms().values()) == estimate.likely
    assert next(iter(estimate.terms())) == "base"
    assert 0 < estimate.low < estimate.likely < estimate.high


@pytest.mark.parametrize(
    ("cheaper", "dearer"),
    [
        ({}, {"model": {"quantize": "none"}}),
        ({}, {"model": {"double_quant": False}}),
        ({}, {"model": {"attention": "eager"}}),
        ({}, {"train": {"activation_checkpointing": False}}),
        ({}, {"train": {"optimizer": "adamw"}}),
        ({"train": {"optimizer": "sgd"}}, {"train": {"optimizer": "lion"}}),
        ({"train": {"adapter_precision": "bf16"}}, {}),
        ({"adapter": {"dropout": 0.0}}, {}),
        ({"adapter": {"r": 4}}, {}),
        ({}, {"adapter": {"dora": True}}),
        ({"adapter": {"targets": ["q_proj", "v_proj"]}}, {}),
        ({"data": {"max_length": 1024}}, {}),
        ({}, {"train": {"batch": 2}}),
        ({"train": {"fast": "off"}}, {"train": {"fast": "off", "devices": 2}}),
        ({}, {"contrastive": {"kind": "simctg"}, "data": {"max_length": 8192}}),
        (
            {"task": "contrastive", "contrastive": {"kind": "infonce", "hard_negatives": 0}},
            {"task": "contrastive", "contrastive": {"kind": "infonce", "hard_negatives": 2}},
        ),
    ],
)
def test_each_choice_moves_the_need_the_right_way(cheaper, dearer) -> None:
    needs = [
        estimate_memory(configured(**{"data": {"max_length": 4096}, **c}), LLAMA_1B).likely
        for c in (cheaper, dearer)
    ]
    assert needs[0] < needs[1]


def test_a_pair_counts_as_all_its_sequences() -> None:
    pairs = configured(
        task="contrastive",
        contrastive={"kind": "infonce", "hard_negatives": 1, "cross_accumulation": "off"},
        train={"batch": 2},
        data={"max_length": 4096},
    )
    text = configured(train={"batch": 6}, data={"max_length": 4096})
    assert estimate_memory(pairs, LLAMA_1B).activations == pytest.approx(
        estimate_memory(text, LLAMA_1B).activations
    )


def test_the_cpu_computes_in_fp32_and_has_no_cuda_context() -> None:
    config = configured(train={"adapter_precision": "auto"})
    cuda, cpu = (estimate_memory(config, SMOLLM2, kind) for kind in ("cuda", "cpu"))
    assert cpu.non_quantized == 2 * cuda.non_quantized
    assert cpu.adapters == 2 * cuda.adapters
    assert cpu.context > cuda.context


def test_nothing_is_advised_where_it_fits() -> None:
    config = configured()
    estimate = estimate_memory(config, SMOLLM2)
    assert advice(estimate, 6 * GIB, config) == []


def test_the_change_that_costs_least_comes_first_and_the_last_one_fits() -> None:
    config = configured(
        train={"activation_checkpointing": False, "optimizer": "adamw", "batch": 4},
        data={"max_length": 2048},
    )
    lines = advice(estimate_memory(config, LLAMA_1B), int(3.2 * GIB), config)
    assert lines[0].startswith("Set train.activation_checkpointing: true")
    assert lines[1].startswith("Set train.batch: 1 and train.accumulate: 32 (same gradient)")
    assert lines[-1].endswith("fits")
    assert not any("max_length" in line for line in lines), "the result was left alone"


def test_streamed_weights_are_two_slots_and_the_rest_is_counted_on_the_host() -> None:
    lean, streamed = (
        estimate_memory(configured(train={"memory": memory, "fast": "off"}), LLAMA_8B)
        for memory in ("lean", "streamed")
    )
    layer = LLAMA_8B.linear_params / LLAMA_8B.layers * (0.5 + 1 / 64 + 4 / 64 / 256)
    head_slices = 2 * 2**26 * (0.5 + 1 / 64 + 4 / 64 / 256)
    tables = LLAMA_8B.layers * 7 * 1096
    assert streamed.base == pytest.approx(2 * layer + head_slices + tables, abs=2)
    same = ("non_quantized", "adapters", "gradients", "optimizer", "activations", "logits")
    assert all(getattr(streamed, term) == getattr(lean, term) for term in same)
    assert streamed.copied == pytest.approx(2 * 30 * layer + 2 * 0.5157 * 128256 * 4096, rel=1e-3)
    assert (lean.host, lean.copied) == (0, 0)


def test_a_model_that_cannot_fit_is_told_so() -> None:
    config = configured()
    lines = advice(estimate_memory(config, LLAMA_8B), GIB, config)
    assert "Set data.max_length: 512" in " ".join(lines)
    assert lines[-1].startswith("Choose a smaller model; ")
    assert "1.0 GiB is free" in lines[-1]


def test_joint_training_gives_up_negatives_late() -> None:
    config = configured(
        task="contrastive", contrastive={"kind": "infonce"}, train={"batch": 16, "accumulate": 1}
    )
    lines = advice(estimate_memory(config, LLAMA_1B), int(2.1 * GIB), config)
    text = "\n".join(lines)
    assert "same gradient" not in text, "fewer pairs at once are fewer negatives"
    assert text.index("adapter.dropout: 0") < text.index("fewer negatives")
