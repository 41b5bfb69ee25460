"""Vision-language models are trained on text, with all but the language model frozen."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForImageTextToText

from fttui.engine.errors import ModelError
from fttui.engine.export.__main__ import main as export
from fttui.engine.protocol.events import RunStarted
from tests.support.architectures import VISION, settings, tiny_model, try_architecture
from tests.support.matrix import in_part
from tests.support.training import new_run, play

NOT_CAUSAL = "paligemma"
ONE_OF_A_KIND = ("llava", "qwen2_5_vl")
"""Image tokens among those of the text, and positions in three dimensions."""


@pytest.mark.parametrize(
    "architecture",
    [
        name if name in ONE_OF_A_KIND else pytest.param(name, marks=pytest.mark.long)
        for name in VISION
        if name != NOT_CAUSAL
    ],
)
def test_losses_equal_those_of_plain_training(architecture: str, tmp_path: Path) -> None:
    trial = try_architecture(architecture, tmp_path, "cpu")
    assert trial.verdict == "equal", trial.texts


def test_a_model_that_sees_later_tokens_is_refused(tmp_path: Path) -> None:
    model = tiny_model(NOT_CAUSAL, tmp_path)
    with pytest.raises(ModelError, match="attends to later tokens of a text"):
        play(new_run(tmp_path, "sft", **settings(model, "off")))


@pytest.mark.parametrize("quantize", in_part(["none", "nf4"], ["nf4"]))
def test_only_the_language_model_changes_and_the_whole_is_exported(
    tmp_path: Path, quantize: str
) -> None:
    folder = tiny_model("llava", tmp_path)
    run = new_run(tmp_path, "sft", **settings(folder, "off"), model__quantize=quantize)
    (folder / "preprocessor_config.json").write_text('{"do_resize": true}')
    played = play(run)
    facts = played.events(RunStarted)[-1].facts
    assert facts["vision"].startswith("model.vision_tower, model.multi_modal_projector: ")
    for kind in ("merged", "adapter"):
        out = str(tmp_path / kind)
        assert export([str(run.path), "last", "--kind", kind, "--out", out]) == 0
    assert (tmp_path / "merged" / "preprocessor_config.json").is_file()
    before = AutoModelForImageTextToText.from_pretrained(folder)
    after = AutoModelForImageTextToText.from_pretrained(tmp_path / "merged")
    old, new = before.state_dict(), after.state_dict()
    changed = {name for name in old if not torch.equal(old[name], new[name])}
    assert changed
    assert all(".language_model." in name for name in changed)
    if quantize == "none":
        ids = torch.arange(10, 30)[None]
        adapted = PeftModel.from_pretrained(before, tmp_path / "adapter").eval()
        with torch.no_grad():
            torch.testing.assert_close(
                adapted(input_ids=ids).logits, after(input_ids=ids).logits, atol=1e-4, rtol=0
            )
    card = (tmp_path / "adapter" / "README.md").read_text()
    assert "AutoModelForImageTextToText.from_pretrained" in card
