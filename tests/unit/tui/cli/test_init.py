"""`fttui init` asks for what it was not told, and writes a file that `check` accepts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fttui.engine.config.first.choices import DataFacts
from fttui.engine.config.load import load_config
from fttui.engine.errors import ConfigError
from fttui.tui.cli.main import main
from fttui.tui.cli.preflight import init_config
from fttui.tui.cli.preflight.init_config import _Given, first_file
from tests.support.tiny import tiny_llama


@pytest.fixture
def chats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "My chats.jsonl"
    rows = ({"prompt": f"say {number}", "completion": f"it is {number}"} for number in range(40))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_file_becomes_a_configuration_that_is_checked(
    chats: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny_llama(tmp_path)
    assert main(["init", chats.name, "--model", str(model), "--yes"]) == 0
    said = capsys.readouterr().out
    assert "40 records, task sft" in said
    assert "my-chats.yaml: valid; sft on" in said
    config = load_config(tmp_path / "my-chats.yaml").config
    assert config.data.max_length == 128  # the records are short
    assert main(["init", chats.name, "--model", str(model), "--yes"]) == 2
    assert "exists already" in capsys.readouterr().err


def test_the_answers_decide(chats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_llama(tmp_path)
    facts = DataFacts(40, "sft", str(chats), {}, 30, 12, 15)
    monkeypatch.setattr(init_config, "facts_of", lambda *_: facts)
    answers = {"data": str(chats), "free": "6", "model": str(model), "file": "sub/mine.yaml"}
    asked: list[str] = []

    def ask(question: str, default: str) -> str:
        asked.append(question.split()[0])
        return answers[question.split()[0]]

    out, text = first_file(_Given(None, None, None, None), ask)
    assert asked == ["data", "free", "model", "file"]
    assert out == Path("sub/mine.yaml")
    assert "quantize: nf4" in text
    assert "chosen for 6.0 GiB of free GPU memory" in text
    assert json.dumps(str(chats)) in text  # whole, because the file is in another folder


def test_an_answer_that_is_no_size_is_refused(chats: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = DataFacts(40, "sft", str(chats), {}, 30)
    monkeypatch.setattr(init_config, "facts_of", lambda *_: facts)
    with pytest.raises(ConfigError, match="expected free memory in GiB"):
        first_file(_Given(str(chats), "m", None, None), lambda *_: "much")


def test_without_data_the_command_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--yes"]) == 2
    assert "fttui init chats.jsonl" in capsys.readouterr().err


def test_data_that_cannot_be_learned_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd.jsonl").write_text('{"x": 1, "y": 2}\n' * 3)
    assert main(["init", "odd.jsonl", "--yes", "--model", "m"]) == 9
    refused = capsys.readouterr().err
    assert "data.columns" in refused
    assert "--column FIELD=COLUMN" in refused
    assert not (tmp_path / "odd.yaml").exists()


def test_columns_with_other_names_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd.csv").write_text("Frage;Die 'Antwort'\n" + "was;das\n" * 20)
    named = ["--column", "prompt=Frage", "--column", "completion=Die 'Antwort'"]
    assert main(["init", "odd.csv", *named, "--yes", "--no-check", "--model", "m"]) == 0
    columns = {"prompt": "Frage", "completion": "Die 'Antwort'"}
    assert load_config(tmp_path / "odd.yaml").config.data.columns == columns
    with pytest.raises(SystemExit):
        main(["init", "odd.csv", "--column", "promt=Frage", "--yes"])
    assert "did you mean prompt?" in capsys.readouterr().err


def test_an_unknown_role_is_refused_with_the_option_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    talk = [{"role": "narrator", "content": "q"}, {"role": "assistant", "content": "a"}]
    (tmp_path / "odd.jsonl").write_text(f"{json.dumps({'messages': talk})}\n" * 20)
    command = ["init", "odd.jsonl", "--yes", "--no-check", "--model", "m"]
    assert main(command) == 9
    refused = capsys.readouterr().err
    assert "--role NAME=ROLE" in refused
    assert "--column" not in refused
    assert main([*command, "--role", "narrator=user"]) == 0
    assert load_config(tmp_path / "odd.yaml").config.data.roles == {"narrator": "user"}
