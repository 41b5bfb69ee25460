from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from fttui.engine.config.memory.architecture import Architecture, read_architecture
from fttui.engine.config.memory.estimate import GIB, estimate_memory
from fttui.engine.config.memory.fit import changes_to_fit, fit, surely_fits, too_large
from fttui.engine.config.memory.hardware import Device, Hardware
from fttui.engine.config.schema import RunConfig
from tests.support.families import family_shape

from .test_estimate import LLAMA_8B, SMOLLM2, configured


def card(free_gib: float) -> Hardware:
    free = int(free_gib * GIB)
    device = Device(name="card", total_bytes=free, free_bytes=free, bf16=True)
    return Hardware("cuda", 64 * GIB, 64 * GIB, devices=(device,))


def lora(length: int = 2048, **train: object) -> RunConfig:
    return configured(
        data={"max_length": length},
        train={"adapter_precision": "auto", **train},
        adapter={"dropout": 0.0},
    )


def test_nothing_is_changed_where_there_is_room() -> None:
    found = fit(lora(), LLAMA_8B, card(24))
    assert (found.config.train.memory, found.config.train.activations) == ("plain", "device")
    assert found.fits
    assert found.chosen == ()


@pytest.mark.parametrize(
    ("free_gib", "memory", "activations"),
    [(8.2, "plain", "host"), (6.2, "lean", "host")],
)
def test_what_costs_least_is_taken_first(free_gib, memory, activations) -> None:
    found = fit(lora(length=4096), LLAMA_8B, card(free_gib))
    assert (found.config.train.memory, found.config.train.activations) == (memory, activations)
    assert found.fits
    assert f"train.activations: {activations}" in found.chosen


@pytest.mark.parametrize(
    "trained",
    [
        {"data": {"special_tokens": ["<a>"]}},
        {"model": {"add_tokens": [{"token": "<a>"}]}},
        {"adapter": {"modules_to_save": ["lm_head"]}},
        {"adapter": {"targets": ["q_proj", "lm_head"]}},
    ],
)
def test_ends_that_are_trained_are_not_put_into_lean_forms(trained) -> None:
    config = configured(**trained)
    found = fit(config, LLAMA_8B, card(6.2))
    assert found.config.train.memory == "plain"
    assert "lean" not in advised(config, LLAMA_8B)
    assert fit(configured(), LLAMA_8B, card(6.2)).config.train.memory == "lean"
    assert "lean" in advised(configured(), LLAMA_8B)


def advised(config: RunConfig, arch: Architecture) -> str:
    """All changes that are advised where nothing fits."""
    changes = changes_to_fit(estimate_memory(config, arch), 1, config)
    return "; ".join(change.text for change in changes)


def test_what_a_run_does_not_support_is_neither_chosen_nor_advised() -> None:
    vision = dataclasses.replace(LLAMA_8B, sees_images=True)
    assert fit(configured(), vision, card(6.2)).config.train.memory == "plain"
    assert "lean" not in advised(configured(), vision)
    whole = {"model": {"quantize": "none"}}
    assert "nf4" in advised(configured(**whole), LLAMA_8B)
    assert "nf4" not in advised(configured(**whole, adapter={"init": "pissa"}), LLAMA_8B)
    large = {"train": {"batch": 1}, "data": {"max_length": 128}}
    assert "adapter.r" in advised(configured(**large, adapter={"r": 1024}), LLAMA_8B)
    continued = {"r": 1024, "start": "folder"}
    assert "adapter.r" not in advised(configured(**large, adapter=continued), LLAMA_8B)


def test_rows_of_new_tokens_are_planned_for() -> None:
    """Their optimizer state is small, but the whole head is copied with them and has a gradient."""
    plain = estimate_memory(configured(), LLAMA_8B)
    tokens = estimate_memory(configured(data={"special_tokens": ["<a>", "<b>"]}), LLAMA_8B)
    rows = 2 * LLAMA_8B.hidden * (1 if LLAMA_8B.tied else 2)
    assert tokens.adapters - plain.adapters == 4 * rows
    matrix = 2 * LLAMA_8B.vocabulary * LLAMA_8B.hidden
    assert matrix < tokens.likely - plain.likely < 2.2 * matrix


def test_graphs_are_taken_in_lean_mode_where_they_fit() -> None:
    lean = lora(memory="lean", activation_checkpointing=True)
    with_graphs = estimate_memory(lean, LLAMA_8B)
    without = estimate_memory(replace(lean, train=replace(lean.train, fast="off")), LLAMA_8B)
    assert with_graphs.graphs
    assert without.high < with_graphs.high
    roomy, tight = (fit(lean, LLAMA_8B, card(e.high / GIB)) for e in (with_graphs, without))
    assert (roomy.config.train.fast, roomy.chosen) == ("auto", ())
    assert (tight.config.train.fast, tight.chosen) == ("off", ("train.fast: off",))


def test_graphs_that_do_not_fit_are_left_out_before_anything_else() -> None:
    need = estimate_memory(lora(), LLAMA_8B)
    between = need.high / GIB - 0.05
    found = fit(lora(), LLAMA_8B, card(between))
    assert found.chosen == ("train.fast: off",)
    assert found.estimate.high <= found.free_bytes
    asked = fit(lora(fast="on", activations="device", memory="plain"), LLAMA_8B, card(between))
    assert (asked.config.train.fast, asked.chosen) == ("on", ())


def test_what_is_set_is_not_overruled() -> None:
    found = fit(lora(memory="plain", activations="device"), LLAMA_8B, card(6.2))
    assert (found.config.train.memory, found.config.train.activations) == ("plain", "device")
    assert not found.fits


def test_activations_stay_where_graphs_are_asked_for() -> None:
    found = fit(lora(length=4096, fast="on"), LLAMA_8B, card(7.5))
    assert (found.config.train.memory, found.config.train.activations) == ("lean", "device")
    advised = list(changes_to_fit(found.estimate, 4 * GIB, found.config))
    assert not any("host" in change.text.split("(")[0] for change in advised)


def test_what_does_not_help_enough_is_not_done() -> None:
    found = fit(lora(), LLAMA_8B, card(1.2))
    assert not found.fits
    assert (found.config.train.memory, found.chosen) == ("plain", ())


def test_weights_stream_only_where_nothing_else_fits() -> None:
    found = {free: fit(lora(), LLAMA_8B, card(free)) for free in (5.7, 4.0, 2.3)}
    chosen = {free: one.config.train.memory for free, one in found.items()}
    assert chosen == {5.7: "lean", 4.0: "streamed", 2.3: "streamed"}
    assert found[4.0].chosen == ("train.memory: streamed",)
    assert found[2.3].chosen == ("train.memory: streamed", "train.activations: host")
    assert all(one.estimate.high <= one.free_bytes for free, one in found.items() if free < 5)


def test_weights_stream_only_from_host_memory_that_is_there() -> None:
    need = fit(lora(), LLAMA_8B, card(4)).estimate.host
    assert 3.6 * GIB + 2 * 2 * LLAMA_8B.vocabulary * LLAMA_8B.hidden < need < 5.7 * GIB
    little = dataclasses.replace(card(4), host_free_bytes=need)
    assert fit(lora(), LLAMA_8B, little).config.train.memory == "plain"
    forced = fit(lora(memory="streamed"), LLAMA_8B, little)
    assert forced.estimate.high <= forced.free_bytes
    assert not forced.fits
    assert "do not fit there: 5.6 GiB is needed, and 90% of the 5.6 GiB" in too_large(forced)
    changes = changes_to_fit(estimate_memory(lora(), LLAMA_8B), 1, lora(), need)
    assert "streamed" not in "; ".join(change.text for change in changes)
    assert "streamed" in advised(lora(), LLAMA_8B)


@pytest.mark.parametrize(
    "kind",
    [
        {"train": {"fast": "on"}},
        {"adapter": {"dora": True}},
        {"model": {"quantize": "none"}},
    ],
)
def test_what_cannot_stream_is_not_streamed(kind: dict[str, dict[str, object]]) -> None:
    config = configured(**kind)
    assert fit(config, LLAMA_8B, card(3)).config.train.memory == "plain"
    assert "streamed" not in advised(config, LLAMA_8B).partition("nf4")[0]


def test_a_larger_micro_batch_fits_if_its_estimate_does() -> None:
    config = lora(memory="streamed", activation_checkpointing=True, accumulate=8)
    found = fit(config, LLAMA_8B, card(4))
    assert [surely_fits(found, size) for size in (1, 2, 8)] == [True, True, False]


def test_a_gpu_without_bf16_computes_in_fp32() -> None:
    new = card(80)
    old = dataclasses.replace(new, devices=(dataclasses.replace(new.devices[0], bf16=False),))
    config = lora(activation_checkpointing=True, fast="off")
    found = fit(config, LLAMA_8B, old)
    fp32 = replace(config, model=replace(config.model, precision="fp32"))
    assert found.estimate.terms() == estimate_memory(fp32, LLAMA_8B).terms()
    assert found.estimate.likely > fit(config, LLAMA_8B, new).estimate.likely
    for change in changes_to_fit(found.estimate, GIB, found.config):
        assert change.need.bf16 is False


def test_a_cpu_run_is_left_as_it_is() -> None:
    found = fit(lora(), SMOLLM2, Hardware("cpu", 8 * GIB, 1 * GIB))
    assert found.config.train.memory == "plain"
    assert not found.fits


def test_an_8b_in_lean_mode_fits_six_gibibytes() -> None:
    config = lora(length=4096, memory="lean", activations="host")
    assert fit(config, LLAMA_8B, card(6.0)).fits


def test_activations_are_kept_as_far_as_there_is_room() -> None:
    choices = {
        free: fit(lora(), LLAMA_8B, card(free)).config.train for free in (80, 12, 10, 9.5, 8.5)
    }
    assert choices[80].activation_checkpointing is False
    assert choices[80].whole_layers == 0
    whole = [choices[free].whole_layers for free in (12, 10, 9.5, 8.5)]
    assert all(choices[free].activation_checkpointing is True for free in (12, 10, 9.5, 8.5))
    assert 32 > whole[0] > whole[1] > whole[2] > whole[3] == 0


@pytest.mark.parametrize("free_gib", [8.0, 9.0, 12.0, 16.0, 24.0])
def test_what_is_kept_leaves_a_spare_and_one_layer_more_would_not(free_gib: float) -> None:
    found = fit(lora(), LLAMA_8B, card(free_gib))
    train = found.config.train
    assert found.estimate == estimate_memory(found.config, LLAMA_8B)
    if not train.recomputes:
        assert found.faster == ("train.activation_checkpointing: false",)
        assert found.estimate.high <= 0.9 * found.free_bytes
        return
    more = replace(found.config, train=replace(train, whole_layers=train.whole_layers + 1))
    assert estimate_memory(more, LLAMA_8B).high > 0.9 * found.free_bytes
    if train.whole_layers:
        assert found.faster == (
            f"train.whole_layers: {train.whole_layers} (of 32; they keep their activations)",
        )
        assert found.estimate.high <= 0.9 * found.free_bytes


@pytest.mark.parametrize("set_", [True, False])
def test_checkpointing_that_is_set_stays(set_: bool) -> None:
    found = fit(lora(activation_checkpointing=set_), SMOLLM2, card(80))
    assert found.config.train.activation_checkpointing is set_
    assert found.faster == ()


def test_a_cpu_run_computes_activations_again_as_ever() -> None:
    found = fit(lora(), SMOLLM2, Hardware("cpu", 64 * GIB, 64 * GIB))
    assert found.config.train.activation_checkpointing is True
    assert found.faster == ()


@pytest.mark.parametrize(("batch", "advised"), [(3, set()), (4, {2}), (8, {4, 2})])
def test_a_contrastive_batch_is_halved_but_keeps_two_pairs(batch: int, advised: set[int]) -> None:
    config = configured(
        task="contrastive",
        contrastive={"kind": "infonce"},
        data={"max_length": 512},
        train={"batch": batch},
    )
    changes = changes_to_fit(estimate_memory(config, LLAMA_8B), 1, config)
    assert {change.config.train.batch for change in changes} - {batch} == advised


def test_a_mixture_that_does_not_fit_while_it_is_loaded_is_refused() -> None:
    """Experts are quantized after loading, so that 14 GiB of them pass through 57."""
    arch = read_architecture(family_shape("qwen3-30b-a3b"))
    found = fit(lora(), arch, card(40))
    assert found.estimate.likely < 40 * GIB < found.estimate.loading
    assert not found.fits
    assert "while it is loaded" in too_large(found)
    assert fit(lora(), arch, card(60)).fits


def test_a_mixture_keeps_activations_where_memory_allows() -> None:
    arch = read_architecture(family_shape("olmoe-1b-7b", 4))
    assert fit(lora(1024), arch, card(80)).config.train.activation_checkpointing is False
    some = fit(lora(1024), arch, card(5)).config.train
    assert some.activation_checkpointing is True
    assert 0 < some.whole_layers < 4


@pytest.mark.parametrize("quantize", ["none", "int8"])
def test_experts_that_are_not_quantized_need_no_more_while_loading(quantize: str) -> None:
    arch = read_architecture(family_shape("olmoe-1b-7b"))
    need = estimate_memory(configured(model={"quantize": quantize}), arch)
    assert need.loading == 0
    assert need.base > 2 * arch.expert_params
