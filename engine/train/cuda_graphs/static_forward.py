"""Static forward: hidden states, token loss and log-probabilities of a batch in static buffers.

The same code runs with and without capture. It never waits for the device, and every shape in it
follows from the form of the batch alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.masking_utils import sdpa_mask

from ...losses.cross_entropy import IGNORED, static_cross_entropy, static_log_probs
from ...model.adapter.switch import adapter_off
from ...model.hidden import backbone_of, base_model_of, lm_head_of
from ...model.host_embedding import HostEmbedding, on_host
from ..forward import Want, Way
from ..patches import keep_training, sdpa_mask_by
from .fusion import fuse, rotary, separate
from .pointwise import Kernels


@dataclass(frozen=True)
class Form:
    """The properties of a micro-batch that decide which graph it can use."""

    rows: int
    length: int
    packed: bool
    """Whether rows hold several documents, kept apart by their positions."""
    wants: tuple[Want, ...]
    trained: bool
    """Whether a backward pass follows."""
    way: Way = "trained"

    def __str__(self) -> str:
        """Return the wording for the log."""
        kind = "" if self.trained else ", forward only"
        if self.way == "reference":
            kind = ", without the adapter"
        if self.way == "evaluated":
            kind = " of an evaluation"
        return f"{self.rows} × {self.length} tokens{kind}"


class StaticBatch:
    """The input buffers of a form; a smaller batch fills their upper left corner, padded."""

    def __init__(self, form: Form, device: torch.device, pad_id: int) -> None:
        shape = (form.rows, form.length)
        self.form = form
        self.input_ids = torch.full(shape, pad_id, device=device)
        self.labels = torch.full(shape, IGNORED, device=device)
        self.context: Tensor | None = None
        """Tokens whose log-probabilities are returned separately, [B, T]; None without any."""
        if "context_log_probs" in form.wants:
            self.context = torch.full(shape, IGNORED, device=device)
        self._steps = torch.arange(form.length, device=device).expand(shape)
        self.position_ids = self._steps.clone()
        self.tokens = torch.ones((), device=device)
        """Tokens per row of the batch, [] fp32, including the padding of the batch itself."""
        self.everything = torch.ones(shape, dtype=torch.bool, device=device)
        self.embedded: Tensor | None = None
        """Embedded tokens [B, T, H]; None unless the embedding is on the host."""
        self._pad_id = pad_id

    def fill(self, inputs: dict[str, Any]) -> None:
        """Copy `input_ids` of a batch, and what else the form needs.

        That may be `labels`, `context` and `position_ids`.
        """
        self._put(self.input_ids, inputs["input_ids"], self._pad_id)
        self.tokens.fill_(inputs["input_ids"].shape[1])
        if self.form.wants != ("hidden",):
            self._put(self.labels, inputs["labels"], IGNORED)
        if self.context is not None:
            self._put(self.context, inputs["context"], IGNORED)
        if self.form.packed:
            self.position_ids.copy_(self._steps)
            self._put(self.position_ids, inputs["position_ids"], None)

    def put_embedded(self, rows: Tensor) -> None:
        """Copy the embedded tokens [B, T, H] into the buffer that a graph reads."""
        self.embedded = rows if self.embedded is None else self.embedded.copy_(rows)

    def padded(self, ids: Tensor) -> Tensor:
        """Return token ids padded to the shape of the form, on the device that they are on."""
        rows, length = ids.shape
        more = (0, self.form.length - length, 0, self.form.rows - rows)
        return F.pad(ids, more, value=self._pad_id)

    @staticmethod
    def _put(buffer: Tensor, values: Tensor, padding: int | None) -> None:
        rows, length = values.shape
        if padding is not None and buffer.shape != values.shape:
            buffer.fill_(padding)
        buffer[:rows, :length].copy_(values, non_blocking=True)


class StaticForward:
    """Calls backbone and head of a model directly, past the wrappers of DDP and the trainer.

    The constructor replaces layers of the model (see `fusion`); `restore_layers` undoes that.
    """

    def __init__(
        self,
        model: nn.Module,
        precision: Any,
        smoothing: float = 0.0,
        noise: float = 0.0,
        kernels: Kernels = Kernels(),  # noqa: B008 -- a frozen value
        focal: float = 0.0,
    ) -> None:
        self.model: Any = model
        self.kernels = kernels
        self._fused = fuse(model, kernels)
        self._token_loss, self._noise = (smoothing, focal), noise
        self._backbone = backbone_of(model)
        self._head = lm_head_of(model)
        self._embedding = base_model_of(model).get_input_embeddings()  # type: ignore[operator]  # a PreTrainedModel's method
        self._precision: Any = precision
        """Factory of the context manager of mixed precision, without a cache of cast weights."""

    @property
    def is_lean(self) -> bool:
        """Whether the embedding is on the host, to save memory on the device."""
        return isinstance(self._embedding, HostEmbedding)

    def restore_layers(self) -> None:
        """Give the fused layers of the model their original forward passes again."""
        separate(self._fused)

    def embed(self, batch: StaticBatch, ids: Tensor) -> None:
        """Look up the tokens in an embedding on the host, which cannot be part of a graph.

        Nothing is done if the embedding is on the device. The ids are read from their host copy,
        because reading them from the device would wait for it.
        """
        if not self.is_lean:
            return
        embedding: Any = self._embedding
        rows = embedding(batch.padded(on_host(ids))).detach()
        batch.put_embedded(rows)

    def __call__(self, batch: StaticBatch) -> tuple[Tensor, ...]:
        """Run the forward pass; return the tensors that `batch.form.wants` names, in that order."""
        form, labels = batch.form, batch.labels
        with (
            torch.set_grad_enabled(form.trained),
            self._in(form.way),
            self.mixed(),
            padding_is_at_the_right(),
            rotary(self._backbone, self.kernels),
        ):
            hidden = self._hidden(batch)
            found = {"hidden": hidden}
            if "ce" in form.wants:
                found["ce"] = static_cross_entropy(
                    hidden, labels, self._head, *self._token_loss, self.kernels.rows
                )
            if "log_probs" in form.wants:
                found["log_probs"], found["context_log_probs"] = static_log_probs(
                    hidden, labels, self._head, batch.context, self.kernels.rows
                )
            return tuple(found[want] for want in form.wants)

    def differentiate(
        self,
        outputs: Sequence[Tensor],
        parameters: Sequence[nn.Parameter],
        gradients: Sequence[Tensor],
    ) -> tuple[Tensor | None, ...]:
        """Return the gradient of each parameter; None for those that the outputs do not use.

        The rotary kernels apply here too, because checkpointed layers are recomputed and must give
        the same results as in the forward pass.
        """
        with rotary(self._backbone, self.kernels):
            return torch.autograd.grad(outputs, parameters, gradients, allow_unused=True)

    @contextmanager
    def _in(self, way: Way) -> Iterator[None]:
        """Run the block with the model in the state that `way` names.

        Fused layers stay in training mode, in which alone they use their fused kernels, so that log
        probabilities with and without dropout or adapter differ by no change of kernel.
        """
        if way == "trained":
            yield
            return
        was_training = self.model.training
        self.model.eval()
        for layer in self._fused:
            keep_training(layer.module)
        try:
            with adapter_off(self.model) if way == "reference" else nullcontext():
                yield
        finally:
            self.model.train(was_training)

    def mixed(self) -> AbstractContextManager[None]:
        """Return the context manager of mixed precision."""
        context: AbstractContextManager[None] = self._precision()
        return context

    def _hidden(self, batch: StaticBatch) -> Tensor:
        """Return the last hidden states [B, T, H].

        Positions keep packed documents apart. In rows that are not packed, a mask of ones states
        that there is only one document.
        """
        packed = batch.form.packed
        embedded = self._noisy(batch) if self._noise else batch.embedded
        output = self._backbone(
            input_ids=batch.input_ids if embedded is None else None,
            inputs_embeds=embedded,
            attention_mask=None if packed else batch.everything,
            position_ids=batch.position_ids if packed else None,
            use_cache=False,
        )
        hidden: Tensor = output[0]
        return hidden

    def _noisy(self, batch: StaticBatch) -> Tensor | None:
        """Return the embedded tokens plus uniform noise within ±α/√(T·H).

        T is the row length of the batch, not of the buffers. Outside training `batch.embedded` is
        returned without noise; it is None unless the embedding is on the host.

        Source: Jain et al. 2023 (NEFTune).
        """
        if batch.form.way != "trained":
            return batch.embedded
        rows = batch.embedded
        if rows is None:
            embedding: Any = self._embedding
            rows = embedding(batch.input_ids)
        most = self._noise / (batch.tokens * rows.shape[-1]).sqrt()
        return rows + torch.empty_like(rows).uniform_(-1, 1) * most.to(rows.dtype)


@contextmanager
def padding_is_at_the_right() -> Iterator[None]:
    """Omit attention masks in the block where they would only hide padding and later tokens.

    Padding is at the right, so no token before it attends to it, and the tokens that do carry no
    loss. Without a mask, attention uses its fastest kernel and does not depend on the data.
    """
    with sdpa_mask_by(_mask_of_documents):
        yield


def _mask_of_documents(*args: Any, **kwargs: Any) -> Tensor | None:
    window, length = kwargs.get("local_size"), kwargs["kv_length"]
    if kwargs.get("allow_is_causal_skip", True) and (window is None or length < window):
        return None
    static = {**kwargs, "allow_is_causal_skip": False, "attention_mask": None}
    mask: Tensor | None = sdpa_mask(*args, **static)
    return mask
