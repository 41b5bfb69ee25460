"""Bases in 8 bits, FP4, FP8 and other stored forms: trained, or refused by their config.json."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from fttui.engine.config.load import parse_resolved
from fttui.engine.errors import ModelError
from fttui.engine.export.__main__ import main as export
from fttui.engine.model.load import load_model
from fttui.engine.model.progress import ignore_progress
from fttui.engine.protocol.events import RunStarted, SampleGenerated
from fttui.engine.run.checkpoint_store import CheckpointStore
from fttui.tui.cli.main import main as fttui
from tests.support.matrix import in_part
from tests.support.tiny import tiny_llama
from tests.support.training import Script, new_run, play, write_config

from .test_adapter_forms import LORA, STILL, plain_losses
from .test_export import continued


def bits(form: str) -> Any:
    if form == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=form,
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
    )


def with_adapter(base: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    for weight in base.parameters():
        weight.requires_grad_(False)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        # A base that is not in training mode is packed anew by bitsandbytes on some CPUs.
        return get_peft_model(base.train(), LoraConfig(**LORA, target_modules="all-linear"))


@pytest.mark.parametrize("form", in_part(["int8", "fp4"], ["fp4"]))
def test_bitsandbytes_forms_train_as_in_peft(tmp_path: Path, form: str) -> None:
    run = new_run(tmp_path, "sft", model__quantize=form, **STILL)
    played = play(run)
    model = parse_resolved(run.config.read_text()).model.id
    base = AutoModelForCausalLM.from_pretrained(
        model, quantization_config=bits(form), dtype=torch.float32, device_map={"": "cpu"}
    )
    losses = plain_losses(run, with_adapter(base))
    assert list(played.losses().values()) == pytest.approx(losses, abs=2e-3)
    assert played.events(RunStarted)[-1].facts["weights"].startswith(form.upper())
    out = tmp_path / "merged"
    assert export([str(run.path), "last", "--kind", "merged", "--out", str(out)]) == 0
    assert "quantization_config" not in json.loads((out / "config.json").read_text())
    whole = AutoModelForCausalLM.from_pretrained(out)
    assert continued(whole, out) == played.events(SampleGenerated)[-1].text


@pytest.mark.parametrize("form", in_part(["nf4", "int8", "fp4"], ["nf4"]))
def test_a_stored_bitsandbytes_form_is_trained(tmp_path: Path, form: str) -> None:
    plain = tiny_llama(tmp_path)
    stored = tmp_path / "stored"
    base = AutoModelForCausalLM.from_pretrained(
        plain, quantization_config=bits(form), dtype=torch.float32, device_map={"": "cpu"}
    )
    base.save_pretrained(stored)
    for file in plain.glob("*token*"):
        (stored / file.name).write_bytes(file.read_bytes())
    for file in plain.glob("*.jinja"):
        (stored / file.name).write_bytes(file.read_bytes())
    sets = {"model__id": stored, "model__quantize": form, **STILL}
    losses = play(new_run(tmp_path, "sft", **sets)).losses()
    again = play(new_run(tmp_path, "sft", **{**sets, "model__id": plain})).losses()
    assert losses == pytest.approx(again, abs=1e-5)
    with pytest.raises(ModelError, match=rf"got none, but .*already quantized to {form}"):
        play(new_run(tmp_path, "sft", **{**sets, "model__quantize": "none"}))


@pytest.mark.parametrize("form", ["int8"])
def test_rollback_and_resume_are_exact(tmp_path: Path, form: str) -> None:
    folders = [tmp_path / name for name in ("whole", "back", "stopped")]
    for folder in folders:
        folder.mkdir()
    whole = play(new_run(folders[0], "dpo", model__quantize=form))
    back = play(new_run(folders[1], "dpo", model__quantize=form), Script({6: ["rollback 4"]}))
    stopped = new_run(folders[2], "dpo", model__quantize=form)
    play(stopped, Script({5: ["stop"]}))
    resumed = play(stopped, resume=CheckpointStore(stopped).all()[-1].name)
    assert back.losses() == whole.losses()
    assert resumed.losses() == whole.losses()


BLOCK = 16


def in_fp8(plain: Path, folder: Path) -> dict[str, torch.Tensor]:
    """Write a model with its linear layers in FP8 by blocks; return the weights it stands for."""
    folder.mkdir()
    weights = safetensors.torch.load_file(plain / "model.safetensors")
    stored, meant = {}, {}
    for name, weight in weights.items():
        stored[name] = meant[name] = weight
        if name.endswith("_proj.weight"):
            rows, columns = (size // BLOCK for size in weight.shape)
            blocks = weight.view(rows, BLOCK, columns, BLOCK)
            scale = blocks.abs().amax(dim=(1, 3)) / 448.0
            packed = (blocks / scale[:, None, :, None]).to(torch.float8_e4m3fn)
            stored[name] = packed.view_as(weight)
            stored[name.replace(".weight", ".weight_scale_inv")] = scale
            meant[name] = (packed.float() * scale[:, None, :, None]).view_as(weight)
    safetensors.torch.save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    for file in plain.iterdir():
        if file.name != "model.safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    settings = json.loads((folder / "config.json").read_text())
    settings["quantization_config"] = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
    }
    (folder / "config.json").write_text(json.dumps(settings))
    return meant


def in_compressed_tensors(plain: Path, folder: Path) -> dict[str, torch.Tensor]:
    """Write a model with its linear layers in 8-bit integers; return what they stand for."""
    folder.mkdir()
    weights = safetensors.torch.load_file(plain / "model.safetensors")
    stored, meant = {}, {}
    for name, weight in weights.items():
        stored[name] = meant[name] = weight
        if name.endswith("_proj.weight"):
            scale = weight.abs().amax(dim=1, keepdim=True) / 127
            stored[name] = (weight / scale).round().to(torch.int8)
            stored[name.replace(".weight", ".weight_scale")] = scale
            meant[name] = stored[name].float() * scale
    safetensors.torch.save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    for file in plain.iterdir():
        if file.name != "model.safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    form = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    settings = json.loads((folder / "config.json").read_text())
    settings["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": form}},
        "ignore": ["lm_head"],
    }
    (folder / "config.json").write_text(json.dumps(settings))
    return meant


def in_gptq(plain: Path, folder: Path, *, by_activation: bool = False) -> dict[str, torch.Tensor]:
    """Write a model with its linear layers in 4 bits as GPTQ stores them; return their meaning.

    With `by_activation` the columns of a group are not neighbours.
    """
    form = {"quant_method": "gptq", "desc_act": by_activation, "checkpoint_format": "gptq"}
    return in_four_bits(plain, folder, form | {"sym": True}, by_activation=by_activation)


def in_awq(plain: Path, folder: Path, *, by_activation: bool = False) -> dict[str, torch.Tensor]:
    """Write a model with its linear layers in 4 bits as AWQ stores them; return their meaning."""
    assert not by_activation, "AWQ has no such order"
    form = {"quant_method": "awq", "version": "gemm", "zero_point": True}
    return in_four_bits(plain, folder, form)


def in_four_bits(
    plain: Path, folder: Path, form: dict[str, Any], *, by_activation: bool = False
) -> dict[str, torch.Tensor]:
    """Write a model with its linear layers in 4 bits; return the weights they stand for."""
    folder.mkdir()
    weights = safetensors.torch.load_file(plain / "model.safetensors")
    stored, meant = {}, {}
    shifts = 4 * torch.arange(8)
    for name, weight in weights.items():
        if not name.endswith("_proj.weight"):
            stored[name] = meant[name] = weight
            continue
        rows, columns = weight.shape
        count = columns // BLOCK
        group = torch.arange(columns) % count if by_activation else torch.arange(columns) // BLOCK
        scale = torch.stack([weight[:, group == one].abs().amax(1) for one in range(count)], 1)
        scale = (scale / 7).half()  # [out, groups]
        whole = (weight / scale[:, group].float()).round().clamp(-8, 7)
        meant[name] = (whole.half() * scale[:, group]).float()
        numbers = (whole + 8).T.long()  # [in, out], zero point 8
        layer = name.removesuffix(".weight")
        if form["quant_method"] == "gptq":
            packed = (numbers.view(columns // 8, 8, rows) << shifts[None, :, None]).sum(1)
            zeros = torch.full((count, rows // 8, 8), 7)  # the zero point less one
            stored[f"{layer}.g_idx"] = group.to(torch.int32)
        else:
            order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
            packed = (numbers.view(columns, rows // 8, 8)[:, :, order] << shifts).sum(2)
            zeros = torch.full((count, rows // 8, 8), 8)
        stored[f"{layer}.qweight"] = packed.to(torch.int32)
        stored[f"{layer}.qzeros"] = (zeros << shifts).sum(2).to(torch.int32)
        stored[f"{layer}.scales"] = scale.T.contiguous()
    safetensors.torch.save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    for file in plain.iterdir():
        if file.name != "model.safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    settings = json.loads((folder / "config.json").read_text())
    settings["quantization_config"] = {"bits": 4, "group_size": BLOCK, **form}
    (folder / "config.json").write_text(json.dumps(settings))
    return meant


NEEDED = {
    in_compressed_tensors: ["compressed_tensors"],
    in_gptq: ["gptqmodel", "optimum"],
    in_awq: ["gptqmodel"],
}
"""Packages without which a form is refused."""


@pytest.mark.parametrize(
    "write", in_part([in_fp8, in_compressed_tensors, in_gptq, in_awq], [in_fp8, in_gptq])
)
def test_stored_weights_are_dequantized_and_trained(tmp_path: Path, write: Any) -> None:
    for package in NEEDED.get(write, []):
        pytest.importorskip(package)
    plain = tiny_llama(tmp_path)
    meant = write(plain, tmp_path / "stored")
    run = new_run(tmp_path, "sft", model__id=tmp_path / "stored", **STILL)
    played = play(run)
    base = AutoModelForCausalLM.from_pretrained(plain)
    base.load_state_dict(meant, strict=False)
    base.tie_weights()
    other = with_adapter(base)
    # The layers of a GPTQ model are in another order, in which their adapters are initialized.
    config = parse_resolved(run.config.read_text())
    start = dict(load_model(config, torch.device("cpu"), ignore_progress).model.named_parameters())
    for name, weight in other.named_parameters():
        if not weight.requires_grad:
            assert torch.equal(weight, start[name]), name
    trained = {name: weight for name, weight in start.items() if weight.requires_grad}
    other.load_state_dict(trained, strict=False)
    losses = plain_losses(run, other)
    assert list(played.losses().values()) == pytest.approx(losses, abs=1e-4)
    out = tmp_path / "merged"
    assert export([str(run.path), "last", "--kind", "merged", "--out", str(out)]) == 0
    assert "quantization_config" not in json.loads((out / "config.json").read_text())
    whole = AutoModelForCausalLM.from_pretrained(out)
    assert continued(whole, out) == played.events(SampleGenerated)[-1].text


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("write", "by_activation"), [(in_gptq, False), (in_gptq, True), (in_awq, False)]
)
def test_weights_in_four_bits_are_those_that_are_stored(
    tmp_path: Path, write: Any, by_activation: bool, dtype: torch.dtype
) -> None:
    for package in NEEDED[write]:
        pytest.importorskip(package)
    plain = tiny_llama(tmp_path)
    meant = write(plain, tmp_path / "stored", by_activation=by_activation)
    precision = {torch.float32: "fp32", torch.bfloat16: "bf16"}[dtype]
    sets = {"model__id": tmp_path / "stored", "model__precision": precision, **STILL}
    run = new_run(tmp_path, "sft", **sets)
    config = parse_resolved(run.config.read_text())
    base = load_model(config, torch.device("cpu"), ignore_progress).model.unload()
    found = dict(base.named_parameters())
    whole = AutoModelForCausalLM.from_pretrained(plain, dtype=dtype)
    for own, other in zip(base.named_buffers(), whole.named_buffers(), strict=True):
        assert (own[0], own[1].dtype) == (other[0], other[1].dtype)
    assert base.config.dtype == dtype
    for name, weight in meant.items():
        assert torch.equal(found[name], weight.to(dtype)), name


def refusal(write: Any, name: str) -> str:
    """Return what is said of a form whose packages may be missing."""
    if all(find_spec(package) for package in NEEDED[write]):
        return f"{name} weights of .* cannot be quantized again"
    return "which needs the package"


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        ({"quant_method": "gptq", "bits": 4}, refusal(in_gptq, "GPTQ")),
        ({"quant_method": "awq", "bits": 4}, refusal(in_awq, "AWQ")),
        ({"quant_method": "hqq"}, "already quantized with hqq"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "already quantized to int8"),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"}, "already quantized to fp4"),
        ({"quant_method": "fp8"}, "FP8 weights of .* cannot be quantized again"),
        ({"quant_method": "mxfp4"}, "MXFP4 weights of .* cannot be quantized again"),
        ({"bits": 3}, "already quantized with an unknown method"),
    ],
)
def test_check_refuses_other_forms_by_config_json_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], stored: dict[str, Any], words: str
) -> None:
    import re

    path, sets = write_config(tmp_path, "sft", model__quantize="nf4")
    file = next(tmp_path.glob("tiny-llama*")) / "config.json"
    settings = json.loads(file.read_text()) | {"quantization_config": stored}
    file.write_text(json.dumps(settings))
    words_of = [word for one in sets for word in ("--set", one)]
    assert fttui(["check", str(path), *words_of]) == 2
    assert re.search(words, capsys.readouterr().err)
