"""What is advised, typed as it is written, leads to a run that fits by its own estimate."""

from __future__ import annotations

import itertools
import re
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from fttui.engine.config.memory.estimate import GIB, Architecture, estimate_memory
from fttui.engine.config.memory.fit import advice, changes_to_fit, fit
from fttui.engine.config.memory.hardware import Hardware, with_cards
from fttui.engine.config.schema import RunConfig
from fttui.engine.config.yaml_tree import parse_scalar

from .memory.test_estimate import (
    LLAMA2_7B,
    LLAMA_1B,
    LLAMA_8B,
    QWEN3_4B,
    QWEN_05B,
    SMOLLM2,
    configured,
)

SHAPES = [SMOLLM2, QWEN_05B, LLAMA_1B, QWEN3_4B, LLAMA2_7B, LLAMA_8B]
MACHINE = Hardware("cpu", 64 * GIB, 64 * GIB)
PART = re.compile(r"([a-z_]+\.[a-z_]+): ([a-z0-9_.]+)")


@st.composite
def configs(draw: st.DrawFn) -> RunConfig:
    """Any run that `load_config` takes."""
    task = draw(st.sampled_from(["sft", "contrastive", "dpo", "kto"]))
    recomputes = draw(st.sampled_from([True, False, "auto"]))
    quantize = draw(st.sampled_from(["nf4", "none"]))
    kind = {"kind": "infonce", "hard_negatives": draw(st.integers(0, 2))}
    return configured(
        task=task,
        contrastive=kind if task == "contrastive" else {},
        model={"quantize": quantize, "attention": draw(st.sampled_from(["auto", "eager"]))},
        adapter={"dropout": draw(st.sampled_from([0.0, 0.1])), "r": draw(st.sampled_from([8, 64]))},
        data={"max_length": draw(st.sampled_from([256, 1000, 4096, 8192]))},
        train={
            "batch": draw(st.integers(1, 8)),
            "accumulate": draw(st.integers(1, 8)),
            "optimizer": draw(st.sampled_from(["adamw", "lion", "paged_adamw_8bit"])),
            "adapter_precision": draw(st.sampled_from(["auto", "fp32", "bf16"])),
            "activation_checkpointing": recomputes,
            "whole_layers": draw(st.integers(0, 8)) if recomputes is True else 0,
            "fast": draw(st.sampled_from(["auto", "off"])),
            "devices": draw(st.integers(1, 2)),
        },
    )


def applied(config: RunConfig, text: str) -> RunConfig:
    """The configuration with every `section.key: value` of a line of advice."""
    tree: dict[str, Any] = msgspec.to_builtins(config)
    for path, value in PART.findall(text.partition("→")[0]):
        section, key = path.split(".")
        tree[section][key] = parse_scalar(value)
    return msgspec.convert(tree, RunConfig)


@given(st.sampled_from(SHAPES), configs(), st.floats(1.5, 24))
def test_what_is_advised_fits_when_it_is_done(
    arch: Architecture, config: RunConfig, free_gib: float
) -> None:
    free = int(free_gib * GIB)
    before = estimate_memory(config, arch)
    changes = list(changes_to_fit(before, free, config))
    lines = advice(before, free, config)
    followed = config
    for change, line in zip(changes, lines, strict=False):
        followed = applied(followed, line)
        assert followed == change.config, "the line says all that is changed"
        assert estimate_memory(followed, arch) == change.need
    needs = [before.likely, *(change.need.likely for change in changes)]
    assert all(after < 0.99 * need for need, after in itertools.pairwise(needs))
    if lines and lines[-1].endswith(", fits"):
        assert estimate_memory(followed, arch).high <= free
    else:
        assert not lines or len(lines) == len(changes) + 1, (
            "the last line says that it is not enough"
        )


@given(st.sampled_from(SHAPES), configs(), st.floats(1.5, 80))
def test_what_the_planner_decides_fits_or_is_what_was_asked_for(
    arch: Architecture, config: RunConfig, free_gib: float
) -> None:
    found = fit(config, arch, with_cards(MACHINE, 2, int(free_gib * GIB)))
    assert found.estimate == estimate_memory(found.config, arch)
    train = found.config.train
    assert "auto" not in (train.memory, train.activations, train.activation_checkpointing)
    if found.chosen:
        assert found.fits
    if found.faster:
        assert found.estimate.high <= 0.9 * found.free_bytes
    if config.train.activation_checkpointing != "auto":
        assert train.activation_checkpointing == config.train.activation_checkpointing


def test_an_8b_on_a_card_of_6_gb_is_told_what_costs_least_first() -> None:
    config = configured(
        data={"max_length": 2048},
        train={
            "batch": 4,
            "optimizer": "adamw",
            "activation_checkpointing": False,
            "adapter_precision": "auto",
        },
        adapter={"dropout": 0.0},
    )
    free = int(5.8 * GIB)
    lines = advice(estimate_memory(config, LLAMA_8B), free, config)
    keys = [PART.findall(line)[0][0] for line in lines]
    assert keys == [
        "train.activation_checkpointing",
        "train.batch",
        "train.optimizer",
        "train.fast",
        "train.activations",
        "train.memory",
    ]
    assert lines[-1].endswith(", fits")


def test_it_is_said_from_which_change_on_a_run_would_start() -> None:
    config = configured(data={"max_length": 2048}, train={"batch": 2, "accumulate": 8})
    free = int(5.6 * GIB)
    before = estimate_memory(config, LLAMA_8B)
    changes = list(changes_to_fit(before, free, config))
    verdicts = [line.rpartition(")")[2] for line in advice(before, free, config)]
    expected = [
        ", fits" if c.need.high <= free else ", likely fits" if c.need.likely <= free else ""
        for c in changes
    ]
    assert verdicts == expected
    assert set(verdicts) == {"", ", likely fits", ", fits"}
