"""Exports in the formats of GPTQ and AWQ stand for nearly the weights of the merged model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from fttui.engine.config.load import read_resolved
from fttui.engine.data.tokens.examples import (
    Example,
    PackedExample,
    PreferenceExample,
    TextExample,
)
from fttui.engine.errors import DataError, ModelError
from fttui.engine.export.__main__ import main
from fttui.engine.export.four_bits import (
    FourBits,
    _examples,
    _without,
    calibration_rows,
    group_size,
    require_quantizable,
)
from fttui.engine.model.progress import ignore_progress
from fttui.engine.model.tokenizer import load_tokenizer
from fttui.engine.run.run_dir import RunDirectory
from fttui.tui.cli.main import main as fttui
from tests.support.tiny import tiny_llama
from tests.support.training import new_run, play

SHIFTS = 4 * torch.arange(8)


def text(count: int, first: int = 0) -> TextExample:
    ids = list(range(first, first + count))
    return TextExample(f"t{first}", ids, ids)


def test_rows_are_records_one_after_another() -> None:
    rows = calibration_rows([text(5), text(4, 5), text(3, 9)], 4, 9)
    assert rows.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert len(calibration_rows([text(5), text(4, 5)], 4, 1)) == 1


def test_few_tokens_make_one_shorter_row_and_none_are_refused() -> None:
    assert calibration_rows([text(3)], 100, 8).tolist() == [[0, 1, 2]]
    with pytest.raises(DataError, match="no tokens"):
        calibration_rows([], 100, 8)


def test_a_sample_in_quarantine_is_left_out_of_its_packed_row() -> None:
    rows: list[Example] = [PackedExample((text(3), text(2, 3))), text(4, 9)]
    assert [one.id for one in _without(rows, {"t3"})] == ["t0", "t9"]


def test_of_a_pair_of_answers_the_chosen_one_is_used() -> None:
    pair = PreferenceExample("p", text(4), text(4, 50))
    assert calibration_rows([pair], 4, 8).tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize(("inputs", "size"), [([256, 128], 128), ([576, 1536], 64), ([96], 32)])
def test_the_largest_group_that_divides_all_layers_is_taken(inputs: list[int], size: int) -> None:
    assert group_size(inputs) == size


def test_layers_without_such_a_group_are_refused() -> None:
    with pytest.raises(ModelError, match=r"common divisor 16.*128, 64, 32.*--gguf"):
        group_size([64, 48])


# the formats, unpacked as their inventors describe them


def unpacked(packed: Tensor, dim: int) -> Tensor:
    """Numbers of 4 bits, eight to an integer, lowest bits first, along a dimension."""
    apart = packed.unsqueeze(dim + 1) >> SHIFTS.view(-1, *[1] * (packed.dim() - dim - 1)) & 15
    return apart.flatten(dim, dim + 1)


def meant(folder: Path, method: str, group: int) -> dict[str, Tensor]:
    """The weights that the files of an export stand for, [out, in] for a layer."""
    stored = safetensors.torch.load_file(folder / "model.safetensors")
    found = {name: one for name, one in stored.items() if name.endswith("weight")
             and not name.endswith("qweight")}  # fmt: skip
    order = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])
    for name in [one for one in stored if one.endswith(".qweight")]:
        layer = name.removesuffix(".qweight")
        zeros = unpacked(stored[f"{layer}.qzeros"], 1)
        if method == "gptq":
            numbers, zeros = unpacked(stored[name], 0), zeros + 1
        else:
            numbers, zeros = (
                one.view(one.shape[0], -1, 8)[:, :, order].flatten(1)
                for one in (unpacked(stored[name], 1), zeros)
            )
        scales = stored[f"{layer}.scales"].float()
        rows = torch.arange(len(numbers)) // group
        found[f"{layer}.weight"] = ((numbers - zeros[rows]) * scales[rows]).T
    return found


def untrained(folder: Path) -> RunDirectory:
    model = tiny_llama(folder, hidden=128, tied=False)
    return new_run(folder, "sft", train__steps=2, train__lr=0.01, model__id=str(model))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    run = untrained(tmp_path_factory.mktemp("four-bits"))
    play(run)
    return run


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = model.eval()(input_ids=torch.arange(10, 60).unsqueeze(0)).logits
    return found


@pytest.mark.long
@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_an_export_in_four_bits_stands_for_the_merged_model(
    trained: RunDirectory, tmp_path: Path, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("auto_round")
    from transformers import AutoModelForCausalLM

    options = [str(trained.path), "last", "--out"]
    assert main([*options, str(tmp_path / "m"), "--kind", "merged"]) == 0
    out = tmp_path / "q"
    assert main([*options, str(out), "--kind", method, "--calibration", "8"]) == 0
    assert "quantized to 4 bits in groups of 128, calibrated on" in capsys.readouterr().out
    settings = json.loads((out / "config.json").read_text())["quantization_config"]
    assert settings["sym"] == (method == "gptq")
    assert (settings["quant_method"], settings["bits"], settings["group_size"]) == (method, 4, 128)
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    before = logits(whole)
    found = meant(out, method, 128)
    assert set(found) == set(whole.state_dict())
    whole.load_state_dict(found)
    apart = (logits(whole) - before).norm() / before.norm()
    assert 0 < apart < 0.2
    card = (out / "README.md").read_text()
    assert "vLLM loads this folder" in card
    assert "## Not carried over" in card
    assert not (out / "merged").exists()


@pytest.mark.parametrize(
    ("task", "said"), [("contrastive", "an embedding model"), ("reward", "a reward model")]
)
def test_models_that_generate_no_text_are_refused(tmp_path: Path, task: str, said: str) -> None:
    config = read_resolved(new_run(tmp_path, task).config)
    with pytest.raises(ModelError, match=rf"{said}; use --merged"):
        require_quantizable(config, FourBits("awq", 8))


def test_a_missing_package_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fttui.engine.export.four_bits.find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"auto-round.*pip install 'fttui\[quantize\]'"):
        require_quantizable(read_resolved(untrained(tmp_path).config), FourBits("gptq", 8))


def test_options_of_a_quantization_are_refused_elsewhere(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert fttui(["export", "--merged", "--calibration", "3"]) == 2
    assert "--calibration applies only to --gptq and --awq" in capsys.readouterr().err


def test_samples_in_quarantine_are_not_calibrated_on(tmp_path: Path) -> None:
    config = read_resolved(untrained(tmp_path).config)
    tokenizer = load_tokenizer(config.model, config.data, ignore_progress)
    every = _examples(config, [], tokenizer, 8, ignore_progress)
    without = _examples(config, [every[0].id], tokenizer, 8, ignore_progress)
    assert [one.id for one in without] != [one.id for one in every]
    assert {one.id for one in every} - {one.id for one in without} == {every[0].id}
