"""fttui as a library: one line puts a training script under its control.

    import fttui

    trainer = fttui.watch(trainer)  # before trainer.train()

Importing it loads neither torch nor ZeroMQ.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from fttui.engine.watch.plain.loop import PlainRun

if __name__ != "fttui":  # the same code under a second name would watch everything twice
    raise ImportError(f"{__name__} is installed as fttui; use: import fttui")

__all__ = ["lightning_callback", "show", "unwatch", "watch"]

T = TypeVar("T")


@overload
def watch(
    trainer: T,
    *,
    name: str | None = None,
    checkpoint_every: int | None = None,
    keep: int = 3,
    tape_mib: int = 512,
    trackers: Sequence[str] | None = None,
) -> T: ...
@overload
def watch(
    *,
    model: Any,
    optimizer: Any,
    scheduler: Any = None,
    scaler: Any = None,
    steps: int | None = None,
    accumulate: int = 1,
    name: str | None = None,
    checkpoint_every: int | None = None,
    keep: int = 3,
    tape_mib: int = 512,
    trackers: Sequence[str] | None = None,
) -> PlainRun | UnwatchedRun: ...
def watch(
    trainer: Any = None,
    *,
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    scaler: Any = None,
    **options: Any,
) -> Any:
    """Put a Hugging Face trainer, or the objects of a plain loop, under the control of fttui.

    With a trainer, it returns the same object; call it before `trainer.train()`. With a model and
    an optimizer, it returns a run with `batches(loader)` and `log(loss=…)`. What cannot be watched
    trains as before, and a line says why. `FTTUI=off` in the environment makes it do nothing.

    Args:
        trainer: an instance of `transformers.Trainer` or of a class derived from it.
        model: the model of a plain loop.
        optimizer: its optimizer.
        scheduler: its learning rate schedule; None without one.
        scaler: its loss scaler, such as `torch.amp.GradScaler`; None without one.
        **options: `name` of the run (default: the `run_name` of the trainer, else the name of the
            script); `checkpoint_every` steps (default: planned by their size; 0: on command only);
            `keep`, the number of newest checkpoints kept (3); `tape_mib`, host memory for the
            batches since the oldest checkpoint (512); `trackers` that the run is delivered to, such
            as `["wandb"]` (default: those of `$FTTUI_TRACKERS`); for a plain loop `steps`, the
            planned optimizer steps, and `accumulate`, the batches per step (1).

    Raises:
        TypeError: neither a trainer nor both model and optimizer are given, or an option is
            unknown.
    """
    if trainer is None and (model is None or optimizer is None):
        raise TypeError("fttui.watch needs a trainer, or model=… and optimizer=…")
    if os.environ.get("FTTUI", "").lower() in ("off", "0", "false"):
        return UnwatchedRun(optimizer) if trainer is None else trainer
    try:
        from fttui.engine.watch.watch_options import WatchOptions

        chosen = WatchOptions(**options)
        if trainer is not None:
            from fttui.engine.watch.huggingface.watch import watch_trainer

            watch_trainer(trainer, chosen)
            return trainer
        from fttui.engine.watch.plain.loop import watch_loop
    except ImportError as error:  # such as a package of fttui that is missing here
        sys.stderr.write(f"fttui: this training is not watched: {error}; see: fttui doctor\n")
        return UnwatchedRun(optimizer) if trainer is None else trainer
    run = watch_loop(model, optimizer, scheduler, chosen, scaler=scaler)
    return run or UnwatchedRun(optimizer)


def lightning_callback(*, name: str | None = None) -> Any:
    """Return a callback that puts a Lightning trainer under the control of fttui.

        trainer = lightning.pytorch.Trainer(callbacks=[fttui.lightning_callback()])

    Args:
        name: name of the run; None is that of the script.

    Raises:
        ImportError: Lightning or torch is not installed.
    """
    from fttui.engine.watch.lightning.callback import lightning_callback as make
    from fttui.engine.watch.watch_options import WatchOptions

    return make(WatchOptions(name=name))


def show(
    run: str | os.PathLike[str] | None = None,
    *,
    seconds: float | None = None,
    every_s: float = 2.0,
    theme: str = "light",
    metrics: Iterable[str] = (),
    runs_dir: str | os.PathLike[str] | None = None,
) -> None:
    """Show the curves of a run in the output of a notebook cell, and follow it while it trains.

    A live run is followed until it ends, until `seconds` are over, or until the cell is
    interrupted. Only the files of the run are read, so the training does not notice.

    Args:
        run: name of the run, a unique beginning of it, or its folder; None is the newest run.
        seconds: how long to follow a live run; 0 shows it once, None has no limit.
        every_s: seconds between two pictures, at least 0.5.
        theme: `light` or `dark`.
        metrics: names of further curves, such as `eval.loss`.
        runs_dir: folder that holds the runs; None is $FTTUI_RUNS, else ./runs.

    Raises:
        ImportError: IPython is not installed.
        FttuiError: no run or several runs match.
        ValueError: `theme` is neither `light` nor `dark`.
    """
    from fttui.tui.notebook import show as show_run

    show_run(
        None if run is None else os.fspath(run),
        seconds=seconds,
        every_s=every_s,
        theme=theme,
        metrics=list(metrics),
        runs_dir=None if runs_dir is None else os.fspath(runs_dir),
    )


class UnwatchedRun:
    """Stands for the run of a plain loop that is not watched: passes batches on."""

    stopped = False

    def __init__(self, optimizer: Any) -> None:
        self.step = 0
        """Updates so far."""
        own = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
        own.register_step_post_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.step += 1

    def batches(self, loader: Iterable[T]) -> Iterator[T]:
        """Yield the batches of the loader."""
        yield from loader

    def log(self, loss: Any = None, **figures: float) -> None:
        """Do nothing."""

    def end(self, error: str = "") -> None:
        """Do nothing."""

    def __enter__(self) -> UnwatchedRun:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""


def unwatch(trainer: Any) -> None:
    """Restore a watched trainer, and end its run if no step was trained.

    It does nothing for a trainer that is not watched.
    """
    from fttui.engine.watch.huggingface.watch import unwatch_trainer

    unwatch_trainer(trainer)
