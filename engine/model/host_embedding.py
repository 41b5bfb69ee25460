"""Lean mode: the two ends of a model where they cost no device memory, or a quarter of it.

The input embedding stays on the host: its rows are looked up there and sent over. The output
matrix is kept in NF4, in slices of the vocabulary, each dequantized only while it is needed. Both
are frozen, as the rest of the base model is.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import bitsandbytes.functional as bnb
import torch
from accelerate.hooks import remove_hook_from_submodules
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from ..config.memory.limits import SLICE_ELEMENTS
from ..errors import ModelError
from ..losses.sliced import HeadSlice, sliced_logits
from .norms import slim_norms


class HostEmbedding(nn.Module):
    """An embedding on the host whose rows go to the device where they are needed.

    The table is no parameter of the model, so that nothing that walks over parameters (DDP, the
    optimizer, a move to a device) takes it for a weight on the device.
    """

    def __init__(self, table: nn.Embedding, device: torch.device) -> None:
        super().__init__()
        self._hidden_from_walks = (table,)
        self.device = device
        self.num_embeddings = table.num_embeddings
        self.embedding_dim = table.embedding_dim
        self.padding_idx = table.padding_idx

    @property
    def weight(self) -> Tensor:
        """The table [V, H], on the host."""
        return self._hidden_from_walks[0].weight

    def forward(self, ids: Tensor) -> Tensor:
        """Look token ids [...] up, [..., H] on the device."""
        with torch.no_grad():
            rows: Tensor = self._hidden_from_walks[0](on_host(ids).to("cpu"))
        if self.device.type != "cuda":
            return rows.to(self.device)
        return rows.pin_memory().to(self.device, non_blocking=True)


def sent(values: Tensor, device: torch.device) -> Tensor:
    """Values on their way from the host to a CUDA device; what is on the host is kept with them."""
    pinned = values.pin_memory()
    return keep_on_host(pinned.to(device, non_blocking=True), pinned)


def keep_on_host(values: Tensor, same: Tensor) -> Tensor:
    """Let `on_host` know where the same values are to be had without waiting for a device."""
    values._on_host = same  # type: ignore[attr-defined]  # a note on a tensor
    return values


def on_host(values: Tensor) -> Tensor:
    """The same values as they were on the host, if that is known; else `values` themselves."""
    same: Tensor = getattr(values, "_on_host", values)
    return same


class QuantizedHead(nn.Module):
    """An output matrix in NF4, in slices of the vocabulary."""

    def __init__(self, weight: Tensor, bias: Tensor | None, device: torch.device) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        rows = max(1, SLICE_ELEMENTS // self.in_features)
        self.packed = nn.ParameterList(_packed(part, device) for part in torch.split(weight, rows))
        biases = torch.split(bias, rows) if bias is not None else ()
        self.biases = nn.ParameterList(
            nn.Parameter(part.detach().to(device), requires_grad=False) for part in biases
        )

    def slices(self) -> Iterator[HeadSlice]:
        """One dequantized slice after another, in the order of the vocabulary."""
        for number, packed in enumerate(self.packed):
            state: Any = packed.quant_state
            bias = self.biases[number] if len(self.biases) else None
            yield HeadSlice(bnb.dequantize_4bit(packed.data, state), bias)

    def forward(self, states: Tensor) -> Tensor:
        """Logits [..., V] of states [..., H]; for the few positions that generation asks for."""
        return sliced_logits(states, self)


def _packed(weight: Tensor, device: torch.device) -> nn.Parameter:
    """A slice of the matrix in NF4; only the slice itself is on the device meanwhile."""
    data, state = bnb.quantize_4bit(
        weight.detach().to(device).contiguous(), compress_statistics=True, quant_type="nf4"
    )
    parameter = nn.Parameter(data, requires_grad=False)
    parameter.quant_state = state  # type: ignore[attr-defined]  # as on bitsandbytes' own weights
    return parameter


def ends_on_host(settings: Any, device: torch.device, **hub: Any) -> dict[str, Any]:
    """Return the device map that loads embedding and head on the host, all else on `device`.

    Args:
        settings: The model's transformers configuration.
        device: For everything in between.
        hub: Arguments that building the model needs, such as `trust_remote_code`.
    """
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(settings, **hub)
    return _places(skeleton, "", _ends(skeleton), device)


def _ends(model: Any) -> tuple[nn.Module, nn.Module]:
    return model.get_input_embeddings(), model.get_output_embeddings()


def _places(
    module: nn.Module, name: str, ends: tuple[nn.Module, ...], device: torch.device
) -> dict[str, Any]:
    """Name the largest parts without an end: a name above an end would take it along."""
    inside = {id(part) for part in module.modules()}
    if any(module is end for end in ends):
        return {name: "cpu"}
    if not any(id(end) in inside for end in ends):
        return {name: device}
    found: dict[str, Any] = {}
    for child, part in module.named_children():
        found |= _places(part, f"{name}.{child}" if name else child, ends, device)
    return found


def make_lean(base: Any, device: torch.device) -> None:
    """Put the ends of a loaded model into their lean form, in place.

    Args:
        base: A transformers model; embedding and head may be on the host still.
        device: Where the rest of it is.

    Raises:
        ModelError: An end is of a kind that is not known here.
    """
    remove_hook_from_submodules(base)
    embedding, head = base.get_input_embeddings(), base.get_output_embeddings()
    _require(embedding, nn.Embedding, "input embedding")
    _require(head, nn.Linear, "output head")
    sliced = QuantizedHead(head.weight, head.bias, device)
    base.set_output_embeddings(sliced.train(head.training))
    base.set_input_embeddings(HostEmbedding(embedding.to("cpu"), device).train(embedding.training))
    base.hf_device_map = {"": device}
    slim_norms(base)
    del embedding, head
    gc.collect()  # the hooks that placed the ends hold them in cycles


def _require(module: Any, kind: type[nn.Module], what: str) -> None:
    if not isinstance(module, kind):
        raise ModelError(
            f"train.memory: lean needs an {what} that is a plain {kind.__name__}, and this model's "
            f"is a {type(module).__name__}. Set train.memory: plain."
        )
