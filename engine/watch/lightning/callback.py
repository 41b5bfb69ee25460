"""The callback that puts a Lightning trainer under control.

Lightning comes as two packages, `lightning` and `pytorch_lightning`, each with a class `Callback`
of its own. The class of the callback is therefore made from the one that the script has imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..refusals import Unwatchable
from ..script_run import run_end_after, say
from ..startup import switched_off
from ..watch_options import WatchOptions
from .run import LightningRun

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


class LightningHooks:
    """Reports what a Lightning trainer does to its run; one run for each `fit()`."""

    def __init__(self, options: WatchOptions) -> None:
        self._options = options
        self._run: LightningRun | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Open the run, unless `FTTUI=off` or another callback of fttui is before this one.

        A trainer that cannot be watched trains as before, and a line says why.
        """
        ours = [one for one in trainer.callbacks if isinstance(one, LightningHooks)]
        if ours[0] is not self or switched_off():
            return
        accumulate = int(trainer.accumulate_grad_batches)
        options = replace(self._options, accumulate=accumulate)
        try:
            self._run = LightningRun(trainer, pl_module, options)
        except Exception as error:  # noqa: BLE001 -- no error of ours may end the user's script
            kind = "" if isinstance(error, Unwatchable) else f"{type(error).__name__}: "
            say(f"this trainer is not watched: {kind}{error}")

    def _tell(self, report: Callable[[LightningRun], None]) -> None:
        if self._run is not None:
            report(self._run)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, *_: Any) -> None:
        """Begin a step, or continue one."""
        self._tell(lambda run: run.batch_started(batch))

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """Record the loss."""
        self._tell(lambda run: run.backward_starts(loss))

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Check loss and gradient norm before the update; a refused one loses its gradients."""
        self._tell(lambda run: run.update_comes())

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """End the step after its last batch."""
        self._tell(lambda run: run.batch_ended())

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Record the validation."""
        self._tell(lambda run: run.validated())

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End the run."""
        self._tell(lambda run: run.end())

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the run with the error of the script."""
        self._tell(lambda run: run.fail(run_end_after(exception)))

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Restore what was changed in the trainer."""
        self._tell(lambda run: run.close())
        self._run = None


def lightning_callback(options: WatchOptions, package: str = "") -> Any:
    """Return a callback for the Lightning that the script uses.

    Args:
        options: name of the run.
        package: which of both packages; empty takes the one that has been imported, and
            `lightning.pytorch` if none has.

    Raises:
        ImportError: there is no Lightning.
    """
    imported = [name for name in _PACKAGES if name in sys.modules]
    name = package or (imported[0] if imported else _PACKAGES[0])
    __import__(name)
    kind = type("FttuiCallback", (LightningHooks, sys.modules[name].Callback), {})
    return kind(options)
