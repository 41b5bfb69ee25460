"""No configuration costs much time: it is refused as soon as it exceeds a limit."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fttui.engine.config import yaml_tree
from fttui.engine.config.load import load_config, read_resolved
from fttui.engine.config.yaml_tree import MOST_BYTES, MOST_LINES, parse_yaml
from fttui.engine.errors import ConfigError

CONFIGS = Path(__file__).resolve().parents[4] / "configs"
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
        ('a: "' + "\r" * 200_000 + '"', "lines"),
        ("a: x\n" + "  x\x85" * 60_000, "lines"),
        ("a: " + "x " * 130_000, "characters in a line"),
        ("[" * 2_000, "levels"),
        ("[" + "1," * 20_000, "values"),
        (_ALIASES, "values"),
    ],
    ids=[
        "bytes",
        "lines",
        "folded",
        "returns",
        "odd ends",
        "one line",
        "depth",
        "values",
        "aliases",
    ],
)
def test_a_configuration_beyond_all_limits_is_refused_at_once(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_yaml(text, "hostile.yaml", [])


@pytest.mark.parametrize("read", [load_config, read_resolved])
def test_a_file_beyond_all_limits_is_not_read(
    tmp_path: Path, read: Callable[[Path], object]
) -> None:
    file = tmp_path / "config.yaml"
    file.touch()
    os.truncate(file, 2**40)
    with pytest.raises(ConfigError, match="1,099,511,627,776 bytes"):
        read(file)


ODD = [
    "", "a: [1\n", "a: \ud800b", "\x00", "a: b: c", "{a: 1}}", "a: |\n  x\n", "a: &x 1\nb: *x",
    "a: *n", "---\n---\n", "'x'", "'a: x", "\ufeffa: 1", "k: \"\\q\"", "a:\u20281", "\ta: 1",
    "a: @x",
    "? [1]\n: 2", "a: !!int 3", "a: 1\na: 2", "a: ''", "a: " + "[" * 60,
    "a: [" + "1," * 6_000 + "]",
]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [*ODD, *(file.read_text() for file in sorted(CONFIGS.glob("*.yaml")))],
    ids=lambda text: ascii(text[:20]),
)
def test_libyaml_gives_the_values_places_and_errors_of_the_parser_in_python(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert yaml_tree._FastLoader is not None, "the wheels of PyYAML contain libyaml"
    fast = _outcome(text)
    monkeypatch.setattr(yaml_tree, "_FastLoader", None)
    assert fast == _outcome(text)


def _outcome(text: str) -> object:
    problems: list[str] = []
    try:
        return parse_yaml(text, "x", problems), problems
    except ConfigError as error:
        return str(error)
