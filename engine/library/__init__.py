"""fttui as a library: one line puts a training script under its control.

    import fttui

    trainer = fttui.watch(trainer)  # before trainer.train()

Importing it loads neither torch nor ZeroMQ.
"""

from __future__ import annotations

import os
from typing import Any, TypeVar

if __name__ != "fttui":  # the same code under a second name would watch everything twice
    raise ImportError(f"{__name__} is installed as fttui; use: import fttui")

__all__ = ["unwatch", "watch"]

T = TypeVar("T")


def watch(
    trainer: T,
    *,
    name: str | None = None,
    checkpoint_every: int | None = None,
    keep: int = 3,
    tape_mib: int = 512,
) -> T:
    """Put a Hugging Face trainer under the control of fttui and return the same object.

    Call it before `trainer.train()`. `FTTUI=off` in the environment makes it do nothing.

    Args:
        trainer: an instance of `transformers.Trainer` or of a class derived from it.
        name: name of the run; None is the `run_name` of the trainer, else the name of the script.
        checkpoint_every: steps between checkpoints; None plans them by their size, 0 writes them
            on command only.
        keep: number of newest checkpoints that are kept.
        tape_mib: host memory for the batches since the oldest checkpoint, in MiB.
    """
    if os.environ.get("FTTUI", "").lower() in ("off", "0", "false"):
        return trainer
    from fttui.engine.watch.hf_watch import WatchOptions, watch_trainer

    options = WatchOptions(name, checkpoint_every, keep, tape_mib)
    watch_trainer(trainer, options)
    return trainer


def unwatch(trainer: Any) -> None:
    """Put a watched trainer back as it was."""
    from fttui.engine.watch.hf_watch import unwatch_trainer

    unwatch_trainer(trainer)
