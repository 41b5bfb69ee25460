"""Verifies a checkpoint and reads its trained weights, an adapter or the model's own, into memory.

The run may continue meanwhile and remove the checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import CheckpointError
from ..run.checkpoint_store import CheckpointStore, Manifest
from ..run.records.ancestors import names_leading_to
from ..run.records.record_feed import read_whole
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
    mean_of: tuple[str, ...] = ()
    """The checkpoints whose weights are averaged, oldest first; empty if they are of one alone."""


def read_trained(run: RunDirectory, wanted: str, *, ema: bool, average: int = 1) -> TrainedFiles:
    """Find a checkpoint, verify all its files, and read its trained weights.

    Args:
        run: the run, which may be training.
        wanted: a name, a step, or `last`.
        ema: read the moving average instead of the last weights.
        average: number of checkpoints whose weights are averaged; `wanted` is the last of them.

    Raises:
        CheckpointError: a checkpoint is missing or damaged, or has no moving average, or fewer lead
            to it than are to be averaged.
    """
    ledger = CheckpointStore(run)
    manifest = ledger.find(wanted)
    chosen = _leading(run, ledger, manifest, average)
    read = [_read(ledger, one, ema=ema) for one in chosen]
    weights, settings, initial = read[-1]
    if len(read) > 1:
        from .plain import mean_weights

        weights = mean_weights(
            {one.name: found[0] for one, found in zip(chosen, read, strict=True)}
        )
    if OWN not in manifest.files:
        from .plain import plain_adapter  # it imports torch, which errors above need not wait for

        weights, settings = plain_adapter(weights, settings, initial)
    names = tuple(one.name for one in chosen) if len(chosen) > 1 else ()
    return TrainedFiles(manifest, weights, settings, averaged=ema, mean_of=names)


def _leading(
    run: RunDirectory, ledger: CheckpointStore, last: Manifest, count: int
) -> list[Manifest]:
    """Return the last `count` kept checkpoints of the steps that lead to one, this one included.

    Raises:
        CheckpointError: there are fewer, or the journal does not report the last one.
    """
    if count == 1:
        return [last]
    way = names_leading_to(last.name, read_whole(run)[0])
    if not way:
        raise CheckpointError(
            f"--average {count}: the journal does not say which checkpoints lead to {last.name}; "
            "name a checkpoint that the run wrote itself"
        )
    kept = {manifest.name: manifest for manifest in ledger.all()}
    found = [kept[name] for name in way if name in kept]
    if len(found) < count:
        names = ", ".join(one.name for one in found)
        raise CheckpointError(
            f"--average {count}: {len(found)} checkpoints on the way to {last.name} exist ({names})"
            "; average fewer, or train with a larger checkpoint.keep"
        )
    return found[-count:]


def _read(
    ledger: CheckpointStore, manifest: Manifest, *, ema: bool
) -> tuple[bytes, bytes, bytes | None]:
    """Return the weights, the settings and the initial adapter of a checkpoint, verified.

    Raises:
        CheckpointError: it is damaged or was removed, or has no moving average.
    """
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
    return weights, settings, initial
