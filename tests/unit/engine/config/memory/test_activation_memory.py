"""The moments at which memory may peak hold what is alive at them."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from fttui.engine.config.memory.activation_memory import SLICE_BYTES, MicroBatchShape
from fttui.engine.config.memory.architecture import Architecture
from fttui.engine.config.memory.limits import SLICE_ELEMENTS, SLICE_LOGITS
from fttui.engine.config.schema import RunConfig

ARCH = Architecture(64, 4, 4, 2, 16, 128, 1000, tied=True, name="llama")


def shape(
    task: str = "sft", *, length: int = 32, attention: str = "auto", **train: Any
) -> MicroBatchShape:
    kind = {"contrastive": {"kind": "infonce"}} if task == "contrastive" else {}
    config = msgspec.convert(
        {
            "model": {"id": "m", "quantize": "none", "attention": attention},
            "task": task,
            "data": {"train": "d", "max_length": length},
            "train": {"steps": 1, "batch": 2, "fast": "off", **train},
            **kind,
        },
        RunConfig,
    )
    return MicroBatchShape(config, ARCH, number=2, adapter=4, adapter_elements=100, sequences=2)


@pytest.mark.parametrize(("whole_layers", "keeps_all"), [(0, False), (1, True), (2, True)])
def test_the_last_layer_keeps_everything_if_any_layer_does(
    whole_layers: int, keeps_all: bool
) -> None:
    sized = shape(memory="lean", activation_checkpointing=True, whole_layers=whole_layers)
    down, gate, *_ = (moment.activations for moment in sized._in_layers())
    layer = sized._layer_bytes(whole=keeps_all)
    assert layer != sized._layer_bytes(whole=not keeps_all)
    gradients, inner = 64 * 2 * 2 * 64, 64 * 2 * 128
    assert down == sized._below() + layer + gradients + inner
    assert gate == down + inner


def test_a_first_pass_runs_while_all_kept_graphs_are_alive() -> None:
    sized = shape("contrastive", accumulate=8, activation_checkpointing=True)
    assert sized._kept() == 8
    first_pass = sized._in_layers()[-1].activations
    assert first_pass == 8 * sized._kept_graph() + 64 * 2 * (4 * 128 + 6 * 64)
    assert shape()._in_layers()[-1].activations == 64 * 2 * (4 * 128 + 6 * 64)


def test_the_backward_pass_of_eager_attention_needs_twice_the_scores() -> None:
    """In long sequences scores outweigh all else: 6 bytes are kept of each, and 6 come with it."""
    length = 4096
    scores = 2 * ARCH.heads * length**2
    fused = shape(length=length).fullest().activations
    eager = shape(length=length, attention="eager", activation_checkpointing=True).fullest()
    assert eager.activations == pytest.approx(12 * scores, rel=0.05)
    assert fused < scores


def test_a_lean_head_holds_a_slice_of_the_vocabulary_for_few_tokens_and_a_block_for_many() -> None:
    wide = dataclasses.replace(ARCH, hidden=4096, vocabulary=2**15)  # more than one slice
    for length, logits in ((8, 16 * SLICE_ELEMENTS // 4096), (4096, SLICE_LOGITS)):
        lean = shape(length=length, memory="lean", activation_checkpointing=True)
        _, held, dequantized = dataclasses.replace(lean, arch=wide)._loss()
        assert held == logits * SLICE_BYTES
        assert dequantized == 2 * SLICE_ELEMENTS
