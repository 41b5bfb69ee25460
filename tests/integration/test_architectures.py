"""Every architecture trains to the losses of transformers and peft alone, fast or not.

`python -m tests.bench.architectures` prints the same comparison as a table, also on a GPU.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.architectures import SIZES, try_architecture

ONE_OF_A_KIND = (
    "gemma2",  # capped logits
    "gpt2",  # Conv1D layers, a table of positions
    "gpt_oss",  # experts with biases, attention sinks
    "mamba",  # no attention at all
    "qwen3_next",  # linear attention beside attention, experts
)
"""The most different architectures; the others are compared by `make test-long`."""


@pytest.mark.parametrize(
    "architecture",
    [
        name if name in ONE_OF_A_KIND else pytest.param(name, marks=pytest.mark.long)
        for name in SIZES
    ],
)
def test_losses_equal_those_of_plain_training(architecture: str, tmp_path: Path) -> None:
    trial = try_architecture(architecture, tmp_path, "cpu")
    assert trial.verdict == "equal", trial.texts
