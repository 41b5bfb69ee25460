"""Weight files are checked by their headers: cut off, absent, or without a layer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from fttui.engine.errors import ModelError
from fttui.engine.model.files.weight_files import check_weight_files
from tests.support.tiny import tiny_llama

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("whole"), tied=False)


@pytest.fixture
def model(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "model"))


def weights_of(model: Path) -> dict[str, torch.Tensor]:
    with safe_open(model / WEIGHTS, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 -- no mapping


def split(model: Path) -> None:
    """Write the weights as two files with an index."""
    weights = weights_of(model)
    names = sorted(weights)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, held in halves.items():
        save_file({name: weights[name] for name in held}, model / file, {"format": "pt"})
    index = {name: file for file, held in halves.items() for name in held}
    (model / INDEX).write_text(json.dumps({"weight_map": index}))
    (model / WEIGHTS).unlink()


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def without_layer(model: Path) -> None:
    kept = {name: value for name, value in weights_of(model).items() if ".layers.0." not in name}
    save_file(kept, model / WEIGHTS, {"format": "pt"})


def with_one_weight_elsewhere(model: Path) -> None:
    split(model)
    index = json.loads((model / INDEX).read_text())
    first = next(name for name, file in index["weight_map"].items() if file == "a.safetensors")
    index["weight_map"][first] = "b.safetensors"
    (model / INDEX).write_text(json.dumps(index))


def only_an_adapter(model: Path) -> None:
    (model / WEIGHTS).unlink()
    (model / "adapter_config.json").write_text("{}")


def split_without_a_part(model: Path) -> None:
    split(model)
    (model / "b.safetensors").unlink()


def nested_deeply(model: Path) -> None:
    header = b"[" * 200_000
    (model / WEIGHTS).write_bytes(len(header).to_bytes(8, "little") + header)


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n"


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda model: cut(model / WEIGHTS, 20_000), r"has 20,000 of [\d,]+ bytes"),
        (lambda model: cut(model / WEIGHTS, 40), "not a safetensors file, or is damaged"),
        (lambda model: cut(model / WEIGHTS, 0), "not a safetensors file, or is damaged"),
        (nested_deeply, "not a safetensors file, or is damaged"),
        (lambda model: (model / WEIGHTS).write_text(POINTER), "Git LFS pointer"),
        (lambda model: (model / WEIGHTS).unlink(), "but no weights"),
        (only_an_adapter, "holds an adapter, but not the weights"),
        (without_layer, "config.json has 2 layers, but the weights of layer 0 are missing"),
        (split_without_a_part, r"names 2 weight files, of which b\.safetensors is missing"),
        (with_one_weight_elsewhere, "lacks 1 of the weights that the index assigns to it"),
    ],
    ids=[
        "cut",
        "cut header",
        "empty",
        "deep",
        "pointer",
        "none",
        "adapter",
        "layer",
        "part",
        "index",
    ],
)
def test_damaged_weight_files_are_refused(
    model: Path, harm: Callable[[Path], object], said: str
) -> None:
    harm(model)
    with pytest.raises(ModelError, match=said):
        check_weight_files(str(model))


def test_whole_weight_files_pass(model: Path) -> None:
    assert check_weight_files(str(model)) is None
    split(model)
    assert check_weight_files(str(model)) is None


def test_a_layer_that_lacks_weights_of_another_is_remarked(model: Path) -> None:
    hole = {name: value for name, value in weights_of(model).items() if "1.mlp" not in name}
    save_file(hole, model / WEIGHTS, {"format": "pt"})
    assert check_weight_files(str(model)) == (
        "layer 1 lacks mlp.down_proj.weight, mlp.gate_proj.weight, mlp.up_proj.weight, "
        "which other layers have"
    )


def test_a_file_of_torch_that_is_cut_off_is_refused(model: Path) -> None:

    torch.save(weights_of(model), model / "pytorch_model.bin")
    (model / WEIGHTS).unlink()
    check_weight_files(str(model))
    cut(model / "pytorch_model.bin", 30_000)
    with pytest.raises(ModelError, match="not written to its end"):
        check_weight_files(str(model))


def test_a_model_of_the_hub_that_is_not_here_is_left_to_the_download() -> None:
    check_weight_files("nobody/has-this-model")
