from __future__ import annotations

from pathlib import Path

import pytest

from fttui.engine.config.load import load_config
from fttui.tui.cli.main import main

OTHER = """\
base_model: org/model
adapter: lora
datasets:
  - path: a.jsonl
    type: chat_template
micro_batch_size: 2
num_epochs: 1
sequence_len: 512
learning_rate: 2e-4
"""


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "other.yml"
    file.write_text(OTHER)
    (tmp_path / "a.jsonl").write_text("{}\n")
    return file


def test_a_configuration_is_written_and_loads(
    other: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", str(other), "-o", "my.yaml", "--no-check"]) == 0
    assert load_config(Path("my.yaml")).config.train.batch == 2
    said = capsys.readouterr().out
    assert "micro_batch_size: 2" in said
    assert "→ train.batch: 2" in said
    assert "check it with: fttui check my.yaml" in said
    assert main(["import", str(other), "-o", "my.yaml", "--no-check"]) == 2
    assert "exists already" in capsys.readouterr().err


def test_without_a_file_the_configuration_is_printed(
    other: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", str(other), "--set", "train.lr=1e-3"]) == 0
    assert "  lr: 0.001  # --set" in capsys.readouterr().out


def test_what_drops_needs_consent(other: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other.write_text(OTHER + "group_by_length: true\n")
    assert main(["import", str(other)]) == 2
    assert "--accept" in capsys.readouterr().err
    assert main(["import", str(other), "--accept", "-o", "my.yaml", "--no-check"]) == 0
    assert "# dropped: group_by_length: true" in Path("my.yaml").read_text()


def test_what_cannot_be_trained_writes_nothing(
    other: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other.write_text(OTHER + "rl: grpo\n")
    assert main(["import", str(other), "--accept", "-o", "my.yaml"]) == 2
    assert "rl: grpo: the training grpo is not supported" in capsys.readouterr().err
    assert not Path("my.yaml").exists()


def test_a_model_that_is_not_named_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "arguments.json"
    file.write_text('{"output_dir": "x", "learning_rate": 2e-5, "num_train_epochs": 1}')
    assert main(["import", str(file)]) == 2
    assert "--set model.id=… --set data.train=…" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["check", "run"])
def test_other_commands_recognize_the_file(
    other: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    extra = ["--headless"] if command == "run" else []
    assert main([command, str(other), *extra]) == 2
    assert "a configuration of axolotl; import it with: fttui import" in capsys.readouterr().err


def test_a_trainer_that_only_a_name_tells_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "recipe.yaml", tmp_path / "my.yaml"
    file.write_text(
        "model_name_or_path: org/model\ndataset_name: org/data\nbeta: 0.05\nmax_length: 512\n"
        "learning_rate: 5e-6\noutput_dir: out/orpo-7b\nnum_train_epochs: 1\n"
    )
    command = ["import", str(file), "-o", str(out), "--no-check"]
    assert main(command) == 2
    assert "--set preference.loss=orpo" in capsys.readouterr().err
    assert main([*command, "--set", "adapter.start=preference.loss=orpo"]) == 2
    assert main([*command, "--set", "preference={loss: orpo}"]) == 0
    config = load_config(out).config
    assert (config.task, config.preference.loss, config.preference.beta) == ("dpo", "orpo", 0.05)


def test_what_the_user_sets_settles_what_is_refused(
    other: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other.write_text(OTHER.replace("chat_template", "own.strategy") + "optimizer: lomo\n")
    command = ["import", str(other), "--no-check"]
    assert main(command) == 2
    assert "--set train.optimizer=…" in capsys.readouterr().err
    own = "data.columns={prompt: a, completion: b}"
    assert main([*command, "--set", "train.optimizer=sgd"]) == 2
    assert main([*command, "--set", "train.optimizer=sgd", "--set", own, "-o", "my.yaml"]) == 0
    config = load_config(Path("my.yaml")).config
    assert (config.train.optimizer, config.data.columns["prompt"]) == ("sgd", "a")
