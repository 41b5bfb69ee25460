"""Routers stay as they are, and the load balancing loss has the weight that was chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import safetensors.torch
from transformers import AutoConfig, AutoModelForCausalLM

from fttui.engine.config.schema import AdapterConfig, RunConfig
from fttui.engine.errors import ConfigError, ModelError
from fttui.engine.model.adapter.attach import unquantized_layers
from fttui.engine.model.adapter.targets import untargeted
from fttui.engine.model.experts import (
    balance_weight,
    experts_fact,
    experts_per_layer,
    quantize_experts,
    router_layers,
    stacked_experts,
)
from fttui.engine.model.host_embedding import skeleton_of
from fttui.engine.model.load import weights_bytes
from fttui.engine.protocol.events import RunStarted, StepFinished
from tests.support.architectures import COMMON, SIZES, settings, tiny_model, try_architecture
from tests.support.matrix import in_part
from tests.support.training import new_run, play

SFT = msgspec.convert(
    {"model": {"id": "m"}, "task": "sft", "data": {"train": "d"}, "train": {"steps": 1}}, RunConfig
)


def skeleton(architecture: str, **more: Any) -> Any:
    sizes = {**COMMON, "vocab_size": 260, "pad_token_id": 0, **SIZES[architecture], **more}
    return skeleton_of(AutoConfig.for_model(architecture, **sizes))


def test_a_dense_model_has_no_experts_and_nothing_to_balance() -> None:
    model = skeleton("llama")
    assert experts_per_layer(model) == 0
    assert stacked_experts(model) == []
    assert router_layers(model) == untargeted(model) == unquantized_layers(model) == []
    assert experts_fact(model, SFT) == {}
    assert balance_weight(model, None) == balance_weight(model, 0.0) == 0.0


def test_a_weight_that_no_loss_could_have_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"got 0\.01, but LlamaForCausalLM computes no load"):
        balance_weight(skeleton("llama"), 0.01)


def test_the_weight_is_the_models_own_unless_one_is_set() -> None:
    model = skeleton("mixtral", router_aux_loss_coef=0.25)
    assert balance_weight(model, None) == 0.25
    assert balance_weight(model, 0.5) == 0.5
    assert balance_weight(model, 0.0) == 0.0


@pytest.mark.parametrize("architecture", ["jetmoe", "phimoe", "qwen2_moe"])
def test_linear_routers_get_no_adapter_and_stay_unquantized(architecture: str) -> None:
    model = skeleton(architecture)
    routers = router_layers(model)
    assert len(routers) >= 2
    assert all("router" in name or "gate" in name for name in routers)
    assert {name.rpartition(".")[2] for name in routers} == set(untargeted(model))


def test_experts_in_one_tensor_are_counted_in_the_facts() -> None:
    model = skeleton("mixtral")
    assert sum(p.numel() for *_, p in stacked_experts(model)) == 2 * 4 * 3 * 64 * 128
    text = experts_fact(model, SFT)["experts"]
    assert text.startswith("4 per layer; their 0.2 M weights are not quantized and get no adapters")
    pairs = experts_fact(model, msgspec.structs.replace(SFT, task="contrastive"))["experts"]
    assert pairs.endswith("; no load balancing loss in task contrastive")


@pytest.mark.parametrize(
    "architecture", in_part(["mixtral", "gpt_oss", "deepseek_v3"], ["deepseek_v3"])
)
def test_experts_are_quantized_and_train_alike(architecture: str, tmp_path: Path) -> None:
    trial = try_architecture(architecture, tmp_path, "cpu", "nf4")
    assert trial.verdict == "equal", trial.texts
    model = AutoModelForCausalLM.from_pretrained(tmp_path / f"tiny-{architecture}")
    before = {n: p.clone() for n, p in model.named_parameters() if p.dim() == 3}
    plain_bytes = weights_bytes(model)
    quantize_experts(model, "nf4", double_quant=True)
    packed = sum(value.numel() for value in before.values())
    assert 0 < weights_bytes(model) - (plain_bytes - 4 * packed + packed // 2) < 0.2 * packed + 9000
    assert "in NF4" in experts_fact(model, SFT)["experts"]
    for name, value in before.items():
        module, _, last = name.rpartition(".")
        packed = getattr(model.get_submodule(module), last)
        assert 0 < (packed - value).norm() < 0.2 * value.norm()


def test_weights_that_state_spaces_read_directly_stay_unquantized() -> None:
    names = {name.rpartition(".")[2] for name in unquantized_layers(skeleton("jamba"))}
    assert names == {"x_proj", "dt_proj", "out_proj"}


def test_a_layer_that_kernels_read_past_an_adapter_is_refused_as_a_target(tmp_path: Path) -> None:
    model = tiny_model("falcon_h1", tmp_path)
    sets = {**settings(model, "off"), "adapter__targets": "[out_proj]"}
    with pytest.raises(ModelError, match="out_proj cannot have an adapter in this model"):
        play(new_run(tmp_path, "sft", **sets))
    assert AdapterConfig().targets == "all-linear"


@pytest.mark.parametrize("family", in_part(["mixtral", "qwen3_moe", "qwen2_moe"], ["qwen2_moe"]))
def test_neither_routers_nor_stacked_experts_get_adapters(tmp_path: Path, family: str) -> None:
    model = tiny_model(family, tmp_path)
    sets = {**settings(model, "off"), "train__steps": 1, "adapter__dropout": 0.05}
    run = new_run(tmp_path, "sft", **sets)
    assert play(run).losses()
    checkpoint = next(run.checkpoints.glob("step-000001"))
    names = set(safetensors.torch.load_file(checkpoint / "adapter_model.safetensors"))
    assert names
    assert not [name for name in names if ".experts." in name or ".gate." in name]


def test_the_loss_includes_the_balance_and_shows_it(tmp_path: Path) -> None:
    model = tiny_model("mixtral", tmp_path)
    losses = {}
    for weight in (0.0, 1.0):
        folder = tmp_path / str(weight)
        folder.mkdir()
        sets = {**settings(model, "off"), "train__router_aux_loss": weight}
        played = play(new_run(folder, "sft", **sets))
        first = played.events(StepFinished)[0]
        losses[weight] = first.loss_or_nan
        assert ("balance" in first.parts) == (weight > 0)
        assert "experts" in played.events(RunStarted)[-1].facts
    assert losses[1.0] - losses[0.0] > 1.0


def test_rwkv_is_refused_in_4_bits_by_name(tmp_path: Path) -> None:
    model = tiny_model("rwkv", tmp_path)
    sets = {**settings(model, "off"), "model__quantize": "nf4"}
    with pytest.raises(ModelError, match=r"type rwkv.*Set model\.quantize: none"):
        play(new_run(tmp_path, "sft", **sets))


def test_a_model_that_changes_its_logits_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model("llama", tmp_path)
    kind = type(AutoModelForCausalLM.from_pretrained(model))
    usual = kind.forward

    def shifted(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = usual(self, *args, **kwargs)
        found.logits = found.logits * 2
        return found

    monkeypatch.setattr(kind, "forward", shifted)
    with pytest.raises(ModelError, match="changes its logits in a way that fttui does not know"):
        play(new_run(tmp_path, "sft", **settings(model, "off")))
