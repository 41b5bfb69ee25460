"""Targets drawn from the model's own distribution, for estimates of the curvature of its loss."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor, nn

from ....config.memory.limits import chunk_tokens_for
from ....losses.cross_entropy import IGNORED
from ....losses.numerics import in_weight_dtype, widened


def uniform_of_rows(input_ids: Tensor, labels: Tensor, *key: int) -> Tensor:
    """Return a number from 0 to 1 for each labelled position, [n] fp64 on the host.

    The numbers of a row depend on the key and on its labelled tokens alone: neither on padding and
    the other rows, nor on the number of ranks, nor on the random generators of training.

    Args:
        input_ids: [B, T] on the host.
        labels: [B, T] token ids, -100 = no target; position t predicts token t + 1.
        key: what the numbers shall differ by, such as seed and step.
    """
    wanted = labels[:, 1:] != IGNORED
    found = []
    for tokens, mask in zip(input_ids[:, 1:], wanted, strict=True):
        own = tokens[mask].to(torch.int64).numpy()
        name = hashlib.blake2b(repr(key).encode() + own.tobytes(), digest_size=16).digest()
        generator = np.random.Generator(np.random.PCG64(int.from_bytes(name, "little")))
        found.append(torch.from_numpy(generator.random(len(own))))
    return torch.cat(found)


@torch.no_grad()
def sampled_labels(hidden: Tensor, labels: Tensor, lm_head: nn.Module, uniform: Tensor) -> Tensor:
    """Replace every target by a token drawn from the model's distribution at its position.

    Args:
        hidden: Last hidden states [B, T, H]; position t predicts token t + 1.
        labels: [B, T] token ids, -100 = no target.
        lm_head: Maps [n, H] to logits [n, V].
        uniform: [n] numbers from 0 to 1, one for each target in the order of rows.

    Returns:
        [B, T] labels with targets at the same positions.
    """
    wanted = labels[:, 1:] != IGNORED
    states, drawn = hidden[:, :-1][wanted], []
    sizes = (getattr(m, "out_features", None) for m in lm_head.modules())
    size = chunk_tokens_for(int(next(size for size in sizes if size is not None)))
    for start in range(0, len(states), size):
        logits = widened(lm_head(in_weight_dtype(states[start : start + size], lm_head)))
        summed = logits.softmax(-1).cumsum(-1)
        at = uniform[start : start + size].to(summed).unsqueeze(1) * summed[:, -1:]
        drawn.append(torch.searchsorted(summed, at).squeeze(1).clamp(max=summed.shape[1] - 1))
    found = labels.clone()
    if drawn:
        found[:, 1:][wanted] = torch.cat(drawn).to(labels.dtype)
    return found
