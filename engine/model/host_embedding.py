"""Lean mode: the input embedding in host memory, the output head in NF4 slices.

Rows of the embedding are looked up on the host and copied to the device. The output matrix is kept
in NF4, in slices of the vocabulary, each dequantized only while it is needed. Both are frozen, like
the rest of the base model.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import bitsandbytes.functional as bnb
import torch
from accelerate.hooks import remove_hook_from_submodules
from torch import Tensor, nn

from ..config.memory.limits import SLICE_ELEMENTS
from ..errors import ModelError
from ..losses.sliced import HeadSlice, sliced_logits
from .norms import slim_norms
from .vision import auto_class


class HostEmbedding(nn.Module):
    """An embedding in host memory that copies the looked-up rows to the device.

    The table is not registered as a parameter, so that DDP, the optimizer and moves to a device do
    not treat it as a weight on the device.
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
        """Look up token ids [...] and return their rows [..., H] on the device."""
        with torch.no_grad():
            rows: Tensor = self._hidden_from_walks[0](on_host(ids).to("cpu"))
        if self.device.type != "cuda":
            return rows.to(self.device)
        return rows.pin_memory().to(self.device, non_blocking=True)


def send_to_device(values: Tensor, device: torch.device) -> Tensor:
    """Copy values to a CUDA device asynchronously; `on_host` finds their host copy."""
    pinned = values.pin_memory()
    return keep_on_host(pinned.to(device, non_blocking=True), pinned)


def keep_on_host(values: Tensor, same: Tensor) -> Tensor:
    """Attach to `values` the copy `same` on the host, and return `values`.

    `on_host` returns the copy then; reading it does not wait for a device.
    """
    values._on_host = same  # type: ignore[attr-defined]  # an attribute of ours on a tensor
    return values


def on_host(values: Tensor) -> Tensor:
    """Return the host copy of the values if one is attached, otherwise the values themselves."""
    same: Tensor = getattr(values, "_on_host", values)
    return same


class QuantizedHead(nn.Module):
    """An output head in NF4, in slices of the vocabulary."""

    def __init__(self, weight: Tensor, bias: Tensor | None, device: torch.device) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        rows = max(1, SLICE_ELEMENTS // self.in_features)
        self.packed = nn.ParameterList(_packed(part, device) for part in torch.split(weight, rows))
        biases = torch.split(bias, rows) if bias is not None else ()
        self.biases = nn.ParameterList(
            nn.Parameter(part.detach().to(device), requires_grad=False) for part in biases
        )
        self.enter: Callable[[int], None] = _stay
        """Brings the weights of a slice to the device, if they are streamed."""

    def slices(self) -> Iterator[HeadSlice]:
        """Yield the weight of the output head, dequantized slice by slice, in vocabulary order."""
        for number, packed in enumerate(self.packed):
            self.enter(number)
            state: Any = packed.quant_state
            bias = self.biases[number] if len(self.biases) else None
            yield HeadSlice(bnb.dequantize_4bit(packed.data, state), bias)

    def forward(self, states: Tensor) -> Tensor:
        """Return logits [..., V] of states [..., H], for the few positions of generation."""
        return sliced_logits(states, self)


def _stay(number: int) -> None:
    """Leave the slices where they are: all are on the device."""


def _packed(weight: Tensor, device: torch.device) -> nn.Parameter:
    """Return a slice of the head's matrix in NF4; only this slice is moved to the device."""
    data, state = bnb.quantize_4bit(
        weight.detach().to(device).contiguous(), compress_statistics=True, quant_type="nf4"
    )
    parameter = nn.Parameter(data, requires_grad=False)
    parameter.quant_state = state  # type: ignore[attr-defined]  # as on bitsandbytes' own weights
    return parameter


def skeleton_of(settings: Any, **hub: Any) -> Any:
    """Return the model of a transformers configuration, without memory for its weights."""
    with torch.device("meta"):
        return auto_class(settings).from_config(settings, **hub)


def ends_on_host(settings: Any, device: torch.device, **hub: Any) -> dict[str, Any]:
    """Return the device map that loads embedding and head on the host, the rest on `device`.

    Args:
        settings: The model's transformers configuration.
        device: Device of the other modules.
        hub: Arguments for building the model, such as `trust_remote_code`.
    """
    skeleton = skeleton_of(settings, **hub)
    return _places(skeleton, "", _ends(skeleton), device)


def _ends(model: Any) -> tuple[nn.Module, nn.Module]:
    return model.get_input_embeddings(), model.get_output_embeddings()


def _places(
    module: nn.Module, name: str, ends: tuple[nn.Module, ...], device: torch.device
) -> dict[str, Any]:
    """Return a device map: embedding and head on the CPU, everything else on the device."""
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
    """Convert embedding, head and RMS norms of a loaded model to their lean forms, in place.

    Args:
        base: A transformers model; embedding and head may still be on the host.
        device: Device of the other modules.

    Raises:
        ModelError: Embedding or head has an unsupported type.
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
    gc.collect()  # accelerate's hooks hold the old ends in reference cycles


def _require(module: Any, kind: type[nn.Module], what: str) -> None:
    if not isinstance(module, kind):
        raise ModelError(
            f"train.memory: lean needs an {what} of type {kind.__name__}, but this model's is a "
            f"{type(module).__name__}. Set train.memory: plain."
        )
