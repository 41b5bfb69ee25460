"""A configuration that is a trap ends at once, with a message."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fttui.engine.config.load import load_config, parse_resolved
from fttui.engine.config.yaml_tree import MOST_BYTES, MOST_DEPTH, MOST_VALUES, parse_yaml
from fttui.engine.errors import ConfigError
from fttui.engine.hub.run_settings import agent_limits, idle_seconds
from fttui.engine.protocol.requests import ConfigTexts
from fttui.tui.connection.config_info import config_view
from tests.support.engine_double import make_run
from tests.support.matrix import in_part

_LAUGHS = "\n".join(
    f"l{level}: &l{level} [{', '.join([f'*l{level - 1}'] * 9)}]" for level in range(1, 30)
)
TRAPS = {
    "aliases": f"l0: &l0 [lol]\n{_LAUGHS}\n",
    "aliases of mappings": "a: &a {x: 1}\n"
    + "\n".join(
        f"a{n}: &a{n} {{x: *a{n - 1 if n else ''}, y: *a{n - 1 if n else ''}}}" for n in range(60)
    ).replace("*a ", "*a "),
    "an alias of itself": "a: &a [*a]\n",
    "deep lists": "a: " + "[" * 50_000,
    "deep lists, closed": "a: " + "[" * 5_000 + "]" * 5_000,
    "deep mappings": "".join(f"{' ' * depth}a:\n" for depth in range(900)),
    "deep dashes": "- " * 20_000,
    "many values": "a: [" + "1," * (MOST_VALUES + 1) + "]",
    "a large file": "# " + "x" * MOST_BYTES,
    "a long number": "a: " + "9" * 500_000,
    "many anchors": "\n".join(f"a{n}: &a{n} 1" for n in range(20_001)),
    "merge keys": "a: &a {x: 1}\nb:\n" + "  <<: *a\n" * 5_000,
}


KEPT = ["an alias of itself", "deep lists", "merge keys"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("trap", in_part(TRAPS, KEPT))
def test_a_trap_ends_soon_everywhere(trap: str, tmp_path: Path) -> None:
    text = TRAPS[trap]
    file = tmp_path / "trap.yaml"
    file.write_text(text)
    for read in (
        lambda: load_config(file, []),
        lambda: parse_resolved(text),
    ):
        started = time.process_time()
        with pytest.raises(ConfigError) as refused:
            read()
        assert time.process_time() - started < 10
        assert len(str(refused.value)) < 5_000
    config_view(ConfigTexts(ref=0, resolved=text, source=text, overrides=[]))
    run = make_run(tmp_path / "runs")
    run.write(run.config, text.encode())
    assert idle_seconds(run) == 600.0
    assert agent_limits(run).allow == "read"


def test_a_file_of_100_megabytes_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "large.yaml"
    with file.open("wb") as opened:
        opened.truncate(100 * 2**20)
    with pytest.raises(ConfigError, match=r"got 104,857,600 bytes, expected .* at most 262,144"):
        load_config(file, [])


def test_the_limits_hold_for_every_configuration_of_ours() -> None:
    for file in (Path(__file__).resolve().parents[4] / "configs").glob("*.yaml"):
        assert len(file.read_text()) < MOST_BYTES / 10
    deep = "a:\n" + "".join(f"{' ' * d}a:\n" for d in range(1, MOST_DEPTH - 1))
    parse_yaml(deep, "x", [])
    parse_yaml("a: [" + "1," * (MOST_VALUES - 10) + "]", "x", [])
