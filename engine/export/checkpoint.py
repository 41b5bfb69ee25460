"""The adapter of a checkpoint, verified and read into memory: a run may go on and remove it."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import CheckpointError
from ..run.checkpoint_store import CheckpointStore, Manifest
from ..run.run_dir import RunDirectory

WEIGHTS = "adapter_model.safetensors"
AVERAGE = "ema_model.safetensors"
SETTINGS = "adapter_config.json"


@dataclass(frozen=True)
class AdapterFiles:
    """What PEFT needs of a checkpoint."""

    manifest: Manifest
    weights: bytes
    """A safetensors file."""
    settings: bytes
    """PEFT's configuration, JSON."""
    averaged: bool
    """The weights are the moving average."""


def read_adapter(run: RunDirectory, wanted: str, *, ema: bool) -> AdapterFiles:
    """Find a checkpoint, check every file of it, and read its adapter.

    Args:
        run: the run; it may be training.
        wanted: name, step, or `last`.
        ema: read the moving average.

    Raises:
        CheckpointError: it is not there, is damaged, or has no average.
    """
    ledger = CheckpointStore(run)
    manifest = ledger.find(wanted)
    file = AVERAGE if ema else WEIGHTS
    if file not in manifest.files:
        raise CheckpointError(
            f"checkpoint {manifest.name} holds no moving average, because train.ema was 0; leave "
            "--ema out, or train with train.ema: 0.99"
        )
    try:
        folder = ledger.verify(manifest)
        weights, settings = (folder / file).read_bytes(), (folder / SETTINGS).read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"checkpoint {manifest.name} went away while it was read ({error.strerror}): the run "
            "keeps only its newest; choose another, or pin one with: fttui ctl checkpoint pin"
        ) from None
    return AdapterFiles(manifest, weights, settings, averaged=ema)
