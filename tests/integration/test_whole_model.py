"""Training of the model's own weights, all or a part, keeps every promise of an adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from fttui.engine.config.load import parse_resolved
from fttui.engine.errors import ConfigError, FttuiError, ModelError
from fttui.engine.export.__main__ import main as export
from fttui.engine.protocol.events import RunStarted, SampleGenerated, StepFinished
from fttui.engine.run.checkpoint_store import CheckpointStore
from tests.support.matrix import in_part
from tests.support.training import Script, new_run, play

from .test_adapter_forms import STILL, plain_losses
from .test_export import continued

WHOLE = {"adapter": "none", "train__lr": 1e-3}
STEADY = {name: value for name, value in STILL.items() if name != "adapter__dropout"} | WHOLE
CHOICES: dict[str, Any] = {
    "null": lambda name: True,
    "1": lambda name: ".layers.1." in name,
    ".*mlp.*": lambda name: ".mlp." in name,
}


@pytest.mark.parametrize("layers", CHOICES)
def test_weights_train_as_in_transformers(tmp_path: Path, layers: str) -> None:
    run = new_run(tmp_path, "sft", train__layers=layers, **STEADY)
    played = play(run)
    base = AutoModelForCausalLM.from_pretrained(parse_resolved(run.config.read_text()).model.id)
    for name, weight in base.named_parameters():
        weight.requires_grad_(CHOICES[layers](name))
    assert list(played.losses().values()) == pytest.approx(plain_losses(run, base), abs=5e-5)
    count = sum(p.numel() for p in base.parameters() if p.requires_grad)
    started = played.events(RunStarted)[-1]
    assert started.trainable_params == count
    assert f"{count:,} weights of the model itself are trained" in started.facts["adapter"]
    out = tmp_path / "out"
    assert export([str(run.path), "last", "--kind", "merged", "--out", str(out)]) == 0
    model = AutoModelForCausalLM.from_pretrained(out)
    assert continued(model, out) == played.events(SampleGenerated)[-1].text
    assert "The weights of the base model itself were trained." in (out / "README.md").read_text()


@pytest.mark.parametrize("task", in_part(["sft", "dpo", "contrastive"], ["dpo"]))
def test_resume_and_rollback_are_exact(tmp_path: Path, task: str) -> None:
    sets = {**WHOLE, "train__ema": 0.5, "eval__every": 4, "train__optimizer": "adamw"}
    folders = [tmp_path / name for name in ("whole", "back", "stopped")]
    for folder in folders:
        folder.mkdir()
    whole = play(new_run(folders[0], task, **sets))
    back = play(new_run(folders[1], task, **sets), Script({6: ["rollback 4"]}))
    stopped = new_run(folders[2], task, **sets)
    play(stopped, Script({5: ["stop"]}))
    resumed = play(stopped, resume=CheckpointStore(stopped).all()[-1].name)
    assert back.losses() == whole.losses()
    assert resumed.losses() == whole.losses()
    if task == "dpo":  # the reference is the model before training
        assert whole.events(StepFinished)[0].loss == pytest.approx(0.6931, abs=1e-4)
        assert whole.losses()[8] < 0.69


def test_an_adapter_export_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = new_run(tmp_path, "sft", train__steps=1, **WHOLE)
    play(run)
    out = str(tmp_path / "out")
    assert export([str(run.path), "last", "--kind", "adapter", "--out", out]) == 2
    assert "no adapter, because adapter: none trained the model itself" in capsys.readouterr().err
    with pytest.raises(FttuiError, match=r"has no adapter, because it trained the weights"):
        new_run(tmp_path, "sft", adapter__start=run.path)


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        ({"adapter": "none", "model__quantize": "nf4"}, r"model\.quantize: got nf4, but adapter"),
        ({"train__layers": 1}, r"train\.layers: got 1, .* but an adapter is trained"),
        ({"adapter": "none", "train__layers": "(x"}, r"train\.layers: .* not a regular expression"),
        ({"adapter": "nothing"}, r"adapter: got 'nothing'"),
    ],
)
def test_settings_that_contradict_are_refused(
    tmp_path: Path, sets: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        new_run(tmp_path, "sft", **sets)


@pytest.mark.parametrize(
    ("layers", "words"), [("3", "but the model has 2 layers"), ("nope.*", "no weight of this")]
)
def test_layers_that_the_model_lacks_are_refused(tmp_path: Path, layers: str, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        play(new_run(tmp_path, "sft", adapter="none", train__layers=layers))
