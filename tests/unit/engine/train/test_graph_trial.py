"""A model that computes something else in static shapes trains without them, and says so."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM
from transformers.models.llama import modeling_llama

from fttui.engine.errors import ConfigError
from fttui.engine.protocol.events import LogEmitted, RunStarted
from fttui.engine.train.cuda_graphs import fusion
from fttui.engine.train.cuda_graphs.pointwise import Kernels
from tests.support.matrix import in_part
from tests.support.tiny import tiny_llama
from tests.support.training import new_run, play

SETS: dict[str, Any] = {"train__steps": 2, "checkpoint__every": 0, "adapter__dropout": 0.0}


def losses(folder: Path, fast: str) -> dict[int, float]:
    folder.mkdir()
    return play(new_run(folder, "sft", train__fast=fast, **SETS)).losses()


@pytest.mark.parametrize(
    "harm",
    in_part(
        ["other values", "an error", "an error in the backward pass"],
        ["other values", "an error in the backward pass"],
    ),
)
def test_what_the_trial_finds_turns_fast_mode_off(
    harm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = losses(tmp_path / "plain", "off")
    usual = fusion._product_of

    def harmed(kernels: Any, mlp: Any, x: torch.Tensor) -> torch.Tensor:
        out = usual(kernels, mlp, x)
        if not out.requires_grad and harm == "other values":
            return out + 1.0
        if harm == "an error":
            raise RuntimeError("no such kernel")
        if out.requires_grad and harm == "an error in the backward pass":
            out.register_hook(lambda gradient: gradient[..., :1].expand(3))
        return out

    monkeypatch.setattr(fusion, "_product_of", harmed)
    monkeypatch.setattr(fusion, "_is_gated", lambda mlp: True)
    folder = tmp_path / "harmed"
    folder.mkdir()
    played = play(new_run(folder, "sft", train__fast="static", **SETS))
    assert played.losses() == plain
    assert played.events(RunStarted)[-1].facts["fast mode"].startswith("off: ")
    said = [e.text for e in played.events(LogEmitted) if "fast mode is off" in e.text]
    assert len(said) == 1


def test_fast_mode_that_is_demanded_is_refused_with_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(fusion, "_product_of", broken)
    monkeypatch.setattr(fusion, "_is_gated", lambda mlp: True)
    monkeypatch.setattr("fttui.engine.train.cuda_graphs.eligibility.why_not", lambda *_: None)
    with pytest.raises(ConfigError, match=r"train\.fast: got on, but .*no such kernel"):
        play(new_run(tmp_path, "sft", train__fast="on", **SETS))


def test_the_layers_get_their_own_forward_pass_again(tmp_path: Path) -> None:
    from transformers import LlamaConfig

    config = LlamaConfig(
        hidden_size=16, intermediate_size=32, num_attention_heads=2, num_key_value_heads=2
    )
    mlp = modeling_llama.LlamaMLP(config)
    own = mlp.forward
    fused = fusion.fuse(mlp, Kernels())
    assert mlp.forward != own
    fusion.separate(fused)
    assert mlp.forward == own


def test_the_trial_leaves_no_autograd_nodes_behind(tmp_path: Path) -> None:
    from fttui.engine.model.hidden import HiddenStates
    from fttui.engine.train.cuda_graphs.static_forward import StaticForward
    from fttui.engine.train.cuda_graphs.trial import why_different

    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(tiny_llama(tmp_path)),
        LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear"),
    )
    hidden = HiddenStates(model).attach()
    program = StaticForward(model, nullcontext)
    assert why_different(program, model, torch.device("cpu"), 0) is None
    assert not hidden.take().requires_grad
