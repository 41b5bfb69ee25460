"""Checks that all nodes have read the same base weights and training data."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from typing import Any

from ..data.batches.leave_out import sample_ids
from ..data.dataset import ExampleSets
from ..errors import FttuiError
from .checkpoint.optimizer_state import bit_sums
from .distributed.agreement import Agreement

_EVERY = 64
"""One of this many examples is compared token by token, the others by id and length."""


def weights_digest(model: Any) -> bytes:
    """Return a hash of the names, shapes and bits of all parameters and buffers of a model.

    Of a tensor without content (on the meta device) only name and shape count.
    """
    named = [*model.named_parameters(), *model.named_buffers()]
    shapes = [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in named]
    sums = bit_sums(tensor for _, tensor in named if not tensor.is_meta)
    return hashlib.blake2b(repr((shapes, sums)).encode(), digest_size=16).digest()


def data_digest(examples: ExampleSets) -> bytes:
    """Return a hash of the order, ids, lengths and, of every 64th, the tokens of all examples.

    Streamed examples are not in memory and therefore not compared.
    """
    digest = hashlib.blake2b(digest_size=16)
    for number, example in enumerate((*examples.train, *examples.eval)):
        digest.update(f"{sample_ids(example)}:{example.length};".encode())
        if number % _EVERY == 0:
            digest.update(repr(_without_places(asdict(example))).encode())
    return digest.digest()


def _without_places(content: Any) -> Any:
    """Return the content of an example without the paths of its files."""
    if isinstance(content, dict):
        return {key: _without_places(one) for key, one in content.items() if key != "place"}
    if isinstance(content, list | tuple):
        return [_without_places(one) for one in content]
    return content


def require_same_on_nodes(
    agreement: Agreement, what: str, digest: bytes, error: type[FttuiError]
) -> None:
    """Refuse to train if a rank has read other content than rank 0; all ranks call it together.

    Args:
        agreement: the ranks.
        what: what is compared, for the text of the error.
        digest: a hash of what this rank has read.
        error: the error to raise.

    Raises:
        FttuiError: ranks differ; it is an `error`, and names them.
    """
    every = agreement.gather(digest)
    other = [rank for rank, found in enumerate(every) if found != every[0]]
    if other:
        named = ", ".join(map(str, other[:4])) + (" and others" if len(other) > 4 else "")
        raise error(
            f"the {what} of rank {named} differ from those of rank 0; copy the same files to every "
            "node, or name the same revision of the Hub in the configuration"
        )
