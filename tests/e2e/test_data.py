"""The real commands on data that would be changed: asked about, then tokenized only once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fttui.engine.errors import DataError
from tests.support.cli import fttui
from tests.support.tiny import tiny_llama

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def test_a_large_share_needs_consent_and_run_uses_what_check_tokenized(tmp_path: Path) -> None:
    data = tmp_path / "d.jsonl"
    data.write_text("".join(json.dumps({"text": 9 * n * "x"}) + "\n" for n in range(1, 9)))
    config = tmp_path / "c.yaml"
    config.write_text(
        f"model: {{id: {tiny_llama(tmp_path)}, quantize: none}}\n"
        f"data: {{train: {data}, max_length: 32, eval_fraction: 0}}\n"
        "train: {steps: 1, batch: 2, accumulate: 1}\n"
    )
    runs = tmp_path / "runs"
    kinds = [["check"], ["run", "--headless"], ["lr-find"], ["profile", "--json"]]
    for name, *words in kinds:
        refused = fttui(name, str(config), *words, runs=runs)
        assert refused.returncode == DataError.exit_code
        assert (
            f"5 of 8 records (62 %) truncated to data.max_length; first: {data}:4" in refused.stderr
        )
        assert "data.accept: [cut]" in refused.stderr
    assert not runs.exists()
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
