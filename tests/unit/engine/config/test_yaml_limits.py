"""No configuration costs much time: it is refused as soon as it exceeds a limit."""

from __future__ import annotations

import pytest

from fttui.engine.config.yaml_tree import MOST_BYTES, MOST_LINES, parse_yaml
from fttui.engine.errors import ConfigError

_ALIASES = "a: &a [x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 8)}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x" * (MOST_BYTES + 1), "bytes"),
        ("\n" * (MOST_LINES + 1), "lines"),
        ("a:\n" + " x\n" * 85_000, "lines"),
        ("[" * 2_000, "levels"),
        ("[" + "1," * 20_000, "values"),
        (_ALIASES, "values"),
    ],
    ids=["bytes", "lines", "folded", "depth", "values", "aliases"],
)
def test_a_configuration_beyond_all_limits_is_refused_at_once(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_yaml(text, "hostile.yaml", [])
