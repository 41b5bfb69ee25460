"""Verifies a checkpoint and reads its trained weights, an adapter or the model's own, into memory.

The run may continue meanwhile and remove the checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import CheckpointError
from ..run.checkpoint_store import CheckpointStore, Manifest
from ..run.run_dir import RunDirectory

WEIGHTS = "adapter_model.safetensors"
AVERAGE = "ema_model.safetensors"
OWN = "trained_weights.safetensors"
"""Trained weights of the model itself, in a run without an adapter."""
SETTINGS = "adapter_config.json"
INITIAL = "initial_model.safetensors"


@dataclass(frozen=True)
class TrainedFiles:
    """The trained weights of a checkpoint, in memory: an adapter, or those of the model itself."""

    manifest: Manifest
    weights: bytes
    """The content of the safetensors file."""
    settings: bytes
    """PEFT's configuration as JSON; an empty object without an adapter."""
    averaged: bool
    """Whether the weights are the moving average."""


def read_trained(run: RunDirectory, wanted: str, *, ema: bool) -> TrainedFiles:
    """Find a checkpoint, verify all its files, and read its trained weights.

    Args:
        run: the run, which may be training.
        wanted: a name, a step, or `last`.
        ema: read the moving average instead of the last weights.

    Raises:
        CheckpointError: the checkpoint is missing or damaged, or has no moving average.
    """
    ledger = CheckpointStore(run)
    manifest = ledger.find(wanted)
    whole = OWN in manifest.files
    file = AVERAGE if ema else OWN if whole else WEIGHTS
    if file not in manifest.files:
        raise CheckpointError(
            f"checkpoint {manifest.name} holds no moving average, because train.ema was 0; export "
            "it without --ema, or train with train.ema: 0.99"
        )
    try:
        folder = ledger.verify(manifest)
        weights = (folder / file).read_bytes()
        settings = b"{}" if whole else (folder / SETTINGS).read_bytes()
        initial = (folder / INITIAL).read_bytes() if INITIAL in manifest.files else None
    except OSError as error:
        raise CheckpointError(
            f"checkpoint {manifest.name} was removed while it was read ({error.strerror}): the run "
            "removes older ones; choose another, or, while the run is live, write one that is "
            "never removed with: fttui ctl checkpoint pin"
        ) from None
    if not whole:
        from .plain import plain_adapter  # it imports torch, which errors above need not wait for

        weights, settings = plain_adapter(weights, settings, initial)
    return TrainedFiles(manifest, weights, settings, averaged=ema)
