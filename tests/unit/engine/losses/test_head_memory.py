"""The bytes per logit that the memory plan counts are those that the loss really holds."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fttui.engine.config.memory.activation_memory import CAPPED_BYTES, CHUNK_BYTES
from fttui.engine.losses.cross_entropy import selected_cross_entropy, token_log_probs
from fttui.engine.model.hidden import ShapedHead
from tests.support.storages import StorageCounter

VOCABULARY, CHUNK = 50_000, 64


@pytest.mark.parametrize("smoothing", [0.0, 0.1, None])
@pytest.mark.parametrize(
    ("scale", "cap", "planned"),
    [
        (1.0, None, CHUNK_BYTES),
        (0.125, None, CHUNK_BYTES),
        (1.0, 30.0, CHUNK_BYTES + CAPPED_BYTES),
    ],
)
def test_a_chunk_of_logits_holds_what_is_planned(
    scale: float, cap: float | None, planned: int, smoothing: float | None
) -> None:
    """Without smoothing, log-probabilities of tokens, as in preference training."""
    head = ShapedHead(nn.Linear(16, VOCABULARY, bias=False, dtype=torch.bfloat16), scale, cap)
    head.requires_grad_(False)
    hidden = torch.randn(1, 2 * CHUNK + 1, 16, dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(0, VOCABULARY, hidden.shape[:2])
    with StorageCounter() as counter:
        if smoothing is None:
            loss = token_log_probs(hidden, labels, head, CHUNK)[0].sum()
        else:
            loss, _ = selected_cross_entropy(hidden, labels, head, CHUNK, smoothing)
        loss.backward()
    assert counter.peak_bytes / (CHUNK * VOCABULARY) == pytest.approx(planned, rel=0.01)
