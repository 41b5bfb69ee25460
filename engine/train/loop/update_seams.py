"""Connects optimizer and backward passes of a Hugging Face trainer to the step hooks."""

from __future__ import annotations

from typing import Any

from ..patches import UpdateHooks, guard_optimizer, poison_nonfinite
from .step_loop import StepLoop
from .update_gate import UpdateGate


def connect_updates(
    step_loop: StepLoop,
    hooks: UpdateHooks,
    optimizer: Any,
    accelerator: Any,
    gate: UpdateGate | None,
    *,
    alone: bool = False,
) -> None:
    """Let the optimizer and backward passes, which must exist already, ask the step hooks.

    Args:
        step_loop: takes the gate and the loss scale.
        hooks: what is asked, such as the step loop itself.
        optimizer: the optimizer that accelerate has prepared.
        accelerator: runs the backward passes and has the loss scaler.
        gate: lets the device refuse updates; None if the host decides on each.
        alone: whether there is a single rank, so that no loss has to be marked for others.
    """
    scaler = accelerator.scaler
    guard_optimizer(optimizer, hooks)
    step_loop.begin_training(gate, None if scaler is None else lambda: float(scaler.get_scale()))
    poison_nonfinite(accelerator, hooks, alone=alone)
