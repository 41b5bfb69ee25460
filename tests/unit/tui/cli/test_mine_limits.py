"""The limits of `fttui mine` are checked before a model is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from fttui.engine.errors import ConfigError
from fttui.tui.cli.main import build_parser
from fttui.tui.cli.mine import refuse_limits


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--relative-margin", "5"], "--relative-margin: got 5"),
        (["--margin", "-1"], "--margin: got -1"),
        (["--max-score", "nan"], "--max-score: got nan"),
        (["--min-score", "0.9", "--max-score", "0.2"], "exchange them"),
        (["--negatives", "0"], "--negatives: got 0"),
    ],
)
def test_a_limit_out_of_its_range_is_refused(tmp_path: Path, words: list[str], said: str) -> None:
    given = ["mine", "pairs.jsonl", "--model", str(tmp_path), "-o", "out.jsonl", *words]
    with pytest.raises(ConfigError, match=said):
        refuse_limits(build_parser().parse_args(given))
