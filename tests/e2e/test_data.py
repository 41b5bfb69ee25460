"""The real commands on data that would be changed: asked about, then tokenized only once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fttui.engine.errors import DataError
from tests.support.cli import fttui
from tests.support.matrix import in_part
from tests.support.tiny import tiny_llama

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
COMMANDS = ["check", "run --headless", "lr-find", "profile --json"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Texts, five in eight of which are longer than `config` allows."""
    file = tmp_path / "d.jsonl"
    file.write_text("".join(json.dumps({"text": 9 * n * "x"}) + "\n" for n in range(1, 9)))
    return file


@pytest.fixture
def config(tmp_path: Path, data: Path) -> Path:
    file = tmp_path / "c.yaml"
    file.write_text(
        f"model: {{id: {tiny_llama(tmp_path)}, quantize: none}}\n"
        f"data: {{train: {data}, max_length: 32, eval_fraction: 0}}\n"
        "train: {steps: 1, batch: 2, accumulate: 1}\n"
    )
    return file


# One command stands for the others, which ask for consent through the same function.
@pytest.mark.parametrize("command", in_part(COMMANDS, ["run --headless"]))
def test_a_large_share_is_refused_without_consent(
    command: str, tmp_path: Path, data: Path, config: Path
) -> None:
    runs = tmp_path / "runs"
    name, *words = command.split()
    refused = fttui(name, str(config), *words, runs=runs)
    assert refused.returncode == DataError.exit_code
    assert f"5 of 8 records (62 %) truncated to data.max_length; first: {data}:4" in refused.stderr
    assert "data.accept: [cut]" in refused.stderr
    assert not runs.exists()


# `make test` has consent and cached tokens in the demo, whose data are truncated.
@pytest.mark.long
def test_with_consent_run_uses_what_check_tokenized(
    tmp_path: Path, data: Path, config: Path
) -> None:
    runs = tmp_path / "runs"
    accept = ["--set", "data.accept=[cut]"]
    checked = fttui("check", str(config), "--show", "1", *accept, runs=runs)
    assert checked.returncode == 0, checked.stderr
    assert "«xxxxxxxx<|im_end|>»" in checked.stdout
    assert "(accepted)" in checked.stdout
    done = fttui("run", str(config), "--headless", *accept, runs=runs)
    assert done.returncode == 0, done.stderr
    assert "tokenized data: from cache" in done.stdout.partition("run run:")[2]
    assert (
        f"data: 5 of 8 records (62 %) truncated to data.max_length; first: {data}:4" in done.stdout
    )
    summary = fttui("data", str(data), "--format", "json", runs=runs)
    assert json.loads(summary.stdout)["records"] == 8
