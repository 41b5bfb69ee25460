"""What the table of optimizers says about names, other bases and additional passes."""

from __future__ import annotations

import msgspec
import pytest

from fttui.engine.config.schema import TrainConfig
from fttui.engine.config.sections.optimizers import (
    OPTIMIZERS,
    base_key,
    passes_fact,
    why_not_offered,
    with_base,
)
from fttui.engine.config.sections.train import SamConfig, SophiaConfig


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("prodigy", "lr-find"),
        ("Schedule-Free-AdamW", "train.ema"),
        ("ASAM", "train.sam.adaptive: true"),
        ("SophiaG", "train.optimizer: sophia"),
        ("sophiah", "differentiates the gradient again"),
    ],
)
def test_a_name_that_is_no_optimizer_is_explained(name: str, answer: str) -> None:
    assert answer in why_not_offered(name)
    assert name not in OPTIMIZERS


def test_an_unknown_name_is_not_explained() -> None:
    assert why_not_offered("adamm") == ""


def test_another_base_keeps_sam() -> None:
    sam = TrainConfig(optimizer="sam", sam=SamConfig(rho=0.2))
    changed = with_base(sam, "sgd")
    assert (changed.optimizer, changed.base_optimizer, changed.sam.rho) == ("sam", "sgd", 0.2)
    assert base_key(sam) == "train.sam.base"
    plain = with_base(TrainConfig(), "sgd")
    assert (plain, base_key(plain)) == (TrainConfig(optimizer="sgd"), "train.optimizer")


def test_the_cost_of_passes_is_said() -> None:
    assert "twice as long" in passes_fact(TrainConfig(optimizer="sam"))
    often = TrainConfig(optimizer="sophia", sophia=SophiaConfig(every=4))
    assert "one step of 4" in passes_fact(often)
    assert "25%" in passes_fact(often)
    assert passes_fact(TrainConfig()) == ""
    assert msgspec.to_builtins(TrainConfig())["sam"]["base"] == "adamw"
