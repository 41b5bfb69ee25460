"""Add rows for new tokens to the embedding and the output head, and have them trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from peft.tuners.trainable_tokens.layer import TrainableTokensLayer
from peft.utils.other import TrainableTokensWrapper
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from ..errors import ModelError


@dataclass(frozen=True)
class NewRows:
    """The settings of peft that train the rows of new tokens; empty without new tokens."""

    indices: dict[str, list[int]] = field(default_factory=dict)
    """Rows to train by module, as PEFT's `trainable_token_indices`."""
    modules: list[str] = field(default_factory=list)
    """Modules that are trained as a whole, because PEFT cannot train single rows of them."""
    fact: str = ""
    """What was added, in words."""


def add_rows(base: Any, new: Mapping[int, Sequence[int]], trained: Sequence[str]) -> NewRows:
    """Give every new token its rows in a loaded model, and return how PEFT is to train them.

    New rows start as the mean of known rows, so every rank and every start of a run gets the same.
    Rows that the model has beyond its vocabulary are used first; the matrices are enlarged only if
    an id exceeds them.

    Args:
        base: A frozen transformers model.
        new: For each new token, the ids of known tokens: its rows start as the mean of their rows,
            or of all rows before the first new one if there are none.
        trained: Modules that the configuration trains as a whole.

    Raises:
        ModelError: The embedding or the head has no rows that can be added or trained.
    """
    ids = sorted(new)
    if not ids:
        return NewRows()
    _require_rows(base)
    rows = len(base.get_input_embeddings().weight)
    if ids[-1] >= rows:
        _enlarge(base, ids[-1] + 1)
    for weight in _matrices(base):
        _fill(weight, new)
    warm = sum(bool(pieces) for pieces in new.values())
    return _training(base, ids, trained, _fact(len(ids), warm, rows, ids[-1] + 1))


def ids_without_row(base: Any, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids of a tokenizer that exceed the rows of the model's embedding."""
    rows = len(base.get_input_embeddings().weight)
    return [token for token in tokenizer.get_vocab().values() if token >= rows]


def _require_rows(base: Any) -> None:
    embedding, head = base.get_input_embeddings(), base.get_output_embeddings()
    for module, kind, what in ((embedding, nn.Embedding, "embedding"), (head, nn.Linear, "head")):
        if not isinstance(module, kind) or not module.weight.is_floating_point():
            raise ModelError(
                f"new tokens: this model's {what} is a {type(module).__name__}, to which no rows "
                "can be added; use the unquantized variant of the model with train.memory: plain, "
                "or name only tokens that the tokenizer has in data.special_tokens and "
                "model.add_tokens"
            )


def _enlarge(base: Any, rows: int) -> None:
    """Enlarge embedding and head without changing the random state; freeze all weights again."""
    device = base.get_input_embeddings().weight.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        base.resize_token_embeddings(rows, mean_resizing=False)
    for parameter in base.parameters():
        parameter.requires_grad_(False)


def _matrices(base: Any) -> list[Tensor]:
    """Return the embedding, the head and the bias of the head; tied matrices are returned once."""
    embedding, head = base.get_input_embeddings(), base.get_output_embeddings()
    found = [embedding.weight] if _tied(base) else [embedding.weight, head.weight]
    return found if head.bias is None else [*found, head.bias]


def _tied(base: Any) -> bool:
    embedding, head = base.get_input_embeddings(), base.get_output_embeddings()
    return bool(embedding.weight.data_ptr() == head.weight.data_ptr())


@torch.no_grad()
def _fill(weight: Tensor, new: Mapping[int, Sequence[int]]) -> None:
    """Set the row of each new token to the mean of its known rows.

    Without known rows it is the mean of all rows before the first new one.
    """
    mean = weight[: min(new)].mean(dim=0, dtype=torch.float32)
    for number, pieces in new.items():
        own = weight[list(pieces)].mean(dim=0, dtype=torch.float32) if pieces else mean
        weight[number] = own.to(weight.dtype)


def _training(base: Any, ids: list[int], trained: Sequence[str], fact: str) -> NewRows:
    """Return how PEFT trains these rows, unless it trains their modules as a whole anyway.

    PEFT trains single rows of a head without bias, whether or not it is tied to the embedding. It
    would ignore a bias, so a head with one is trained as a whole.
    """
    names = {id(module): name for name, module in base.named_modules()}
    ends = base.get_input_embeddings(), base.get_output_embeddings()
    embedding, head = (names[id(end)].rpartition(".")[2] for end in ends)
    whole = {embedding, head} & set(trained)
    if _tied(base):
        if whole:
            return NewRows(fact=fact)
        if ends[1].bias is not None:
            return NewRows(modules=[embedding], fact=fact)
        return NewRows({embedding: ids}, fact=fact)
    biased = ends[1].bias is not None and head not in whole
    single = {embedding, head} - whole - ({head} if biased else set())
    return NewRows(
        {name: ids for name in (embedding, head) if name in single}, [head] * biased, fact
    )


def _fact(count: int, warm: int, rows: int, needed: int) -> str:
    resized = f", embedding enlarged from {rows:,} to {needed:,} rows" if needed > rows else ""
    started = f", {warm:,} of them from the rows of other tokens" if warm else ""
    return f"{count:,}, with trained rows{started}{resized}"


def adapt_to_losses(base: Any) -> None:
    """Adapt the modules whose rows PEFT trains to fused losses and CUDA graphs.

    Fused losses read the bias of a head, which the modules of PEFT do not have. In every forward
    pass PEFT sends a list of row numbers to the device, which a CUDA graph cannot capture.
    """
    for module in base.modules():
        if isinstance(module, TrainableTokensLayer):
            module.get_merged_weights = _RowsInPlace(module)
    head = base.get_output_embeddings()
    if isinstance(head, TrainableTokensWrapper):
        head.register_parameter("bias", None)


class _RowsInPlace:
    """Returns a matrix with its trained rows, as PEFT does; row numbers stay on the device."""

    def __init__(self, layer: TrainableTokensLayer) -> None:
        self._layer = layer
        self._numbers: dict[str, Tensor] = {}

    def __call__(self, active_adapters: Sequence[str]) -> Tensor:
        weight: Tensor = self._layer.base_layer.weight
        for name in active_adapters:
            rows = self._layer.trainable_tokens_delta[name]
            weight = weight.index_copy(0, self._on_device(name, weight), rows.to(weight))
        return weight

    def _on_device(self, name: str, weight: Tensor) -> Tensor:
        known = self._numbers.get(name)
        if known is None or known.device != weight.device:
            known = torch.tensor(self._layer.token_indices[name], device=weight.device)
            self._numbers[name] = known
        return known
