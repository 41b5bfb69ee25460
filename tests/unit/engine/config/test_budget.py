"""Prices and limits that a configuration names."""

from __future__ import annotations

from pathlib import Path

import pytest

from fttui.engine.config.checks import check_hardware
from fttui.engine.config.load import load_config
from fttui.engine.config.memory.hardware import Hardware
from fttui.engine.errors import ConfigError

BASE = """
model: {id: m}
data: {train: stdlib:pairs}
task: contrastive
contrastive: {kind: infonce}
train: {steps: 1}
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(BASE + text)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("price: {hour: 2}\n", "price.currency: a price is set without a currency"),
        ("budget: {money: 5}\n", "budget.money: got 5, but no price is known"),
        ("budget: {hours: 0}\n", "budget.hours"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(write(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("budget: {kwh: 1}\n", "budget.kwh"),
        ("budget: {money: 1}\nprice: {kwh: 0.3, currency: EUR}\n", "budget.money"),
        ("budget: {money: 1, hours: 2}\nprice: {hour: 2, kwh: 0.3, currency: EUR}\n", ""),
    ],
)
def test_a_limit_of_energy_needs_a_gpu(tmp_path: Path, text: str, key: str) -> None:
    config = load_config(write(tmp_path, text)).config
    found = check_hardware(config, Hardware("cpu", 0, 0))
    assert [problem.key for problem in found] == ([key] if key else [])
    on_gpu = check_hardware(config, Hardware("cuda", 0, 0))
    assert not [problem for problem in on_gpu if problem.key.startswith("budget")]
