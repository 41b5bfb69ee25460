"""Trial: compare the static forward with the code of the model before a run relies on it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...model.hidden import HiddenStates
from ..forward import Way
from .graph_pass import stream_restored
from .static_forward import Form, StaticBatch, StaticForward

_ROWS, _LENGTH = 2, 16
_CLOSE = {torch.float32: 1e-3}
_CLOSE_OTHERWISE = 5e-2
"""Largest relative difference of the hidden states; 16-bit formats round in another order."""


def why_different(
    program: StaticForward, model: nn.Module, device: torch.device, pad_id: int
) -> str | None:
    """Return why the static forward cannot replace the code of the model; None if it can.

    A few tokens pass forward and backward through the static forward with dropout, then through
    both without dropout, and the hidden states of these two passes are compared. The states of the
    random generators are restored.

    Raises:
        torch.OutOfMemoryError: the trial does not fit into the memory.
    """
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), stream_restored(device):
        try:
            trained = program(_batch(program, device, pad_id, "trained"))
            parameters = [p for p in model.parameters() if p.requires_grad]
            program.differentiate(trained, parameters, [torch.zeros_like(o) for o in trained])
            del trained
            # The passes without gradients come last: hooks keep the hidden states of the newest
            # pass, and a capture fails while the autograd nodes of another stream are alive.
            with torch.no_grad():
                own = _own_states(program, model, device)
                (found,) = program(_batch(program, device, pad_id, "still"))
            difference = float((found - own).norm() / own.norm().clamp(min=1e-6))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001 -- a model's own code may raise anything
            line = next(iter(str(error).splitlines()), "")
            return f"the model cannot run in static shapes ({type(error).__name__}: {line})"
    if difference <= _CLOSE.get(own.dtype, _CLOSE_OTHERWISE):
        return None
    return f"hidden states in static shapes differ by {difference:.1%} from those of the model"


def _ids(device: torch.device) -> Tensor:
    return torch.arange(_ROWS * _LENGTH, device=device).view(_ROWS, _LENGTH)


def _own_states(program: StaticForward, model: nn.Module, device: torch.device) -> Tensor:
    was_training = model.training
    model.eval()
    try:
        with HiddenStates(model) as hidden, program.mixed():
            ids = _ids(device)
            model(input_ids=ids, attention_mask=torch.ones_like(ids), logits_to_keep=1)
            return hidden.take()
    finally:
        model.train(was_training)


def _batch(program: StaticForward, device: torch.device, pad_id: int, way: Way) -> StaticBatch:
    form = Form(
        rows=_ROWS,
        length=_LENGTH,
        packed=False,
        wants=("hidden",),
        trained=way == "trained",
        way=way,
    )
    batch = StaticBatch(form, device, pad_id)
    inputs: dict[str, Any] = {"input_ids": _ids(device)}
    batch.fill(inputs)
    program.embed(batch, inputs["input_ids"])
    return batch
