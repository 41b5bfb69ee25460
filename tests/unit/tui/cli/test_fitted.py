"""What `fttui run` decides before it starts, and when it does not start."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fttui.engine.config.load import LoadedConfig, load_config, parse_resolved
from fttui.engine.config.memory import hardware
from fttui.engine.config.memory.hardware import Device, Hardware
from fttui.engine.errors import DataError, ModelError
from fttui.tui.cli.main import main
from fttui.tui.cli.preflight.plan import fitted
from fttui.tui.connection import engine_process
from tests.support.matrix import in_part

GIB = 2**30
LLAMA_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}


@pytest.fixture
def loaded(tmp_path: Path) -> LoadedConfig:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    path = tmp_path / "run.yaml"
    path.write_text(
        f"model: {{id: {tmp_path}}}\ndata: {{train: t.jsonl, max_length: 4096}}\n"
        "adapter: {dropout: 0}\ntrain: {steps: 1, optimizer: paged_adamw_8bit}\n"
    )
    return load_config(path)


def on_a_card(
    monkeypatch: pytest.MonkeyPatch, free_gib: float, link: tuple[int, int] | None = None
) -> None:
    free = int(free_gib * GIB)
    card = Device(name="card", total_bytes=free, free_bytes=free, bf16=True, link=link)
    found = Hardware("cuda", 64 * GIB, 64 * GIB, devices=(card,))
    monkeypatch.setattr(hardware, "probe_hardware", lambda: found)


def test_what_was_decided_is_said_and_written_down(loaded, monkeypatch) -> None:
    on_a_card(monkeypatch, 6.5)
    said: list[str] = []
    found = fitted(loaded, force=False, say=said.append)
    written = parse_resolved(found.resolved).train
    assert (written.memory, written.activations) == ("lean", "host")
    assert "6.5 GiB free" in said[0]
    assert re.search(r"base weights \d+\.\d [GM]iB; .*; activations \d+\.\d [GM]iB", said[1])
    assert said[2:] == [
        "chosen to fit in memory: train.memory: lean",
        "chosen to fit in memory: train.activations: host",
    ]


def test_activations_kept_for_speed_are_said(loaded, monkeypatch) -> None:
    on_a_card(monkeypatch, 12)
    said: list[str] = []
    found = fitted(loaded, force=False, say=said.append)
    train = parse_resolved(found.resolved).train
    assert said[2:] == [
        f"chosen for speed, as memory allows: train.whole_layers: {train.whole_layers} "
        "(of 32; they keep their activations)"
    ]


def test_the_cost_of_streaming_is_said(loaded, tmp_path, monkeypatch) -> None:
    on_a_card(monkeypatch, 3.5, link=(3, 8))
    said: list[str] = []
    found = fitted(loaded, force=False, say=said.append)
    assert parse_resolved(found.resolved).train.memory == "streamed"
    text = "\n".join(said[2:])
    assert "chosen to fit in memory: train.memory: streamed" in text
    assert "6.8 GiB for each micro-batch, at least 0.93 s over PCIe 3.0 × 8, at least" in text
    assert re.search(r"host memory: 6\.\d GiB for weights .*; 64\.0 GiB free", text)
    on_a_card(monkeypatch, 6)
    said.clear()
    by_hand = ["train.memory=streamed", "data.max_length=2048"]
    fitted(load_config(tmp_path / "run.yaml", by_hand), force=False, say=said.append)
    assert "about 0.23 s over PCIe 4.0 × 16 (the link is not known)" in "\n".join(said)
    assert "note: every micro-batch copies all weights; train.batch: 2 and" in "\n".join(said)


def test_what_cannot_fit_does_not_start_unless_forced(loaded, monkeypatch) -> None:
    on_a_card(monkeypatch, 1.5)
    with pytest.raises(ModelError) as refused:
        fitted(loaded, force=False, say=lambda _: None)
    text = str(refused.value)
    assert text.index("train.activations: host") < text.index("train.memory: lean")
    assert text.index("train.memory: lean") < text.index("data.max_length: 2048")
    assert text.endswith("--force.")
    forced = fitted(loaded, force=True, say=lambda _: None)
    assert forced.config.train.memory == "plain"


class _Started(Exception):
    """Raised where the folder of a run would be made."""


@pytest.mark.parametrize("command", in_part(["run", "lr-find", "profile"], ["run"]))
def test_every_command_that_trains_decides_and_refuses_alike(
    loaded, tmp_path, monkeypatch, capsys, command
) -> None:
    started: list[LoadedConfig] = []

    def new_run(
        folder: Path, source: Path, decided: LoadedConfig, overrides: list[str], job: str = ""
    ) -> None:
        started.append(decided)
        raise _Started

    monkeypatch.setattr(engine_process, "new_run", new_run)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.jsonl").write_text(2 * '{"text": "a"}\n')
    words = [command, "run.yaml", *(["--headless"] if command == "run" else ["--json"])]
    on_a_card(monkeypatch, 6.5)
    with pytest.raises(_Started):
        main(words)
    assert started[0].config.train.memory == "lean"
    on_a_card(monkeypatch, 1.5)
    assert main(words) == ModelError.exit_code
    with pytest.raises(_Started):
        main([*words, "--force"])
    (tmp_path / "t.jsonl").write_text(3 * '{"text": "a"}\n' + '{"text": "a"\n')
    on_a_card(monkeypatch, 6.5)
    capsys.readouterr()
    assert main(words) == DataError.exit_code
    assert "1 of 4 records (25 %) left out" in capsys.readouterr().err
    assert len(started) == 2


def test_a_model_of_unknown_shape_is_left_to_the_engine(loaded, tmp_path) -> None:
    (tmp_path / "config.json").unlink()
    assert fitted(loaded, force=False, say=lambda _: None) is loaded


def test_check_tells_for_a_card_that_is_not_here(loaded, tmp_path, capsys) -> None:
    config = str(tmp_path / "run.yaml")
    plain = ["--set", "train.memory=plain", "--set", "train.activations=device"]
    assert main(["check", config, "--free", "6.5", *plain]) == 8
    refused = capsys.readouterr()
    listed = [line.split("→")[0] for line in refused.err.splitlines() if "→" in line]
    assert "6.5 GiB free (cuda)" in refused.out
    assert "train.activations: host" in listed[0]
    assert "train.memory: lean" in listed[1]
    assert refused.err.rstrip().endswith("fits")
    done = ["--set", "train.memory=lean", "--set", "train.activations=host"]
    assert main(["check", config, "--free", "6.5", *done]) == 0
    assert main(["check", config, "--free", "40"]) == 0
    assert "as memory allows: train.activation_checkpointing: false" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["check", config, "--free", "nothing"])
    assert "expected free memory in GiB" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("shape", "sets", "says"),
    [
        ({}, ["train.fast=on"], "train.fast: got on, but CUDA graphs need a CUDA device"),
        (
            {"num_local_experts": 8},
            ["train.fast=on"],
            "train.fast: got on, but the model is a mixture of experts, whose routing depends on "
            "the data; set train.fast: auto",
        ),
        (
            {},
            ["train.activation_checkpointing=true", "train.whole_layers=999"],
            "train.whole_layers: got 999, but the model has 32 layers; lower it",
        ),
    ],
    ids=["no device", "experts", "layers"],
)
def test_check_refuses_what_machine_or_model_cannot_do(
    loaded, tmp_path, capsys, shape, sets, says
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B | shape))
    here = [] if says.endswith("device") else ["--free", "40"]
    settings = [word for one in sets for word in ("--set", one)]
    assert main(["check", str(tmp_path / "run.yaml"), *here, *settings]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        ([], "CUDA graphs"),
        (["train.fast=off"], "off: train.fast is off"),
        (["train.activations=host"], "off: train.activations are on the host"),
        (["train.fast=static"], "static shapes"),
    ],
)
def test_check_says_how_it_will_train(loaded, tmp_path, capsys, sets, says) -> None:
    settings = [word for one in sets for word in ("--set", one)]
    main(["check", str(tmp_path / "run.yaml"), "--free", "40", *settings])
    assert f"fast mode: {says}\n" in capsys.readouterr().out
