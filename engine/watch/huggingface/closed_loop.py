"""The hooks into the loop of transformers before 5.6, whose epochs cannot be left.

| seam on the instance | step hook | possible effect |
|---|---|---|
| `get_batch_samples` | `begin_step`, `fetch` | run commands; end the run |
| `accelerator.backward` | `may_backward` | a loss that is not finite reaches every rank |
| `training_step`, after it | `record_loss` | the loss of the step |
| `accelerator.clip_grad_norm_` | `check_update` | set the learning rate, clip, check the update |
| `on_pre_optimizer_step` | `check_update` | the same for a trainer that does not clip |
| `optimizer.step` | `may_update` | refuse the update |
| `on_optimizer_step` | `optimizer_stepped` | restore the scheduled learning rate |
| `on_step_end` | `end_step` | journal the step |

All epochs are one method, `_inner_training_loop`, which keeps its position and the summed loss in
local variables. So nothing goes back, and a step is never dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sized
from typing import Any

from .loop import HfLoop


class ClosedLoop(HfLoop):
    """The methods that replace those of a trainer whose epochs cannot be left: its seams."""

    _judged_already = False
    """Whether the update of the step has been checked, because the trainer clips."""
    _epochs = 0
    """Epochs that the trainer has begun."""

    @property
    def seams(self) -> dict[str, Callable[..., Any]]:
        """The methods to put in place of those of the trainer."""
        return {
            "get_batch_samples": self.take_batches,
            "training_step": self.training_step,
        }

    @property
    def accelerator_seams(self) -> dict[str, Callable[..., Any]]:
        """The methods to put in place of those of the trainer's accelerator."""
        return {"clip_grad_norm_": self.clip_gradients}

    def take_batches(self, epoch_iterator: Any, num_batches: int, *rest: Any) -> Any:
        """Handle the boundary before a step, then return its micro-batches.

        If the run ends at the boundary there are none, and the trainer's stop flag is set. Once
        watching has ended, the trainer takes them by itself.
        """
        hooks, original = self._hooks, self.original["get_batch_samples"]
        if hooks is None or not self._shield.call(lambda: self._open_epoch(epoch_iterator), False):
            return original(epoch_iterator, num_batches, *rest)
        self._judged_already = False
        if not self._shield.call(hooks.begin_step, True):
            self._trainer.control.should_training_stop = True
            return [], None
        with hooks.tally.time("data"):
            self._tape.load(num_batches)
        served = self._shield.call(lambda: hooks.fetch(num_batches), None)
        if served is None:
            served = self._tape.fetch(num_batches)
        batches = [one["batch"] for one in served]
        return original(iter(batches), num_batches, *rest)

    def _open_epoch(self, epoch_iterator: Any) -> bool:
        """Continue the tape with the iterator of an epoch; always True, for the shield.

        The first epoch of a training that the script has resumed may begin in its middle. The
        trainer does not say how many batches an epoch has, but its loader may.
        """
        tape, trainer = self._tape, self._trainer
        if epoch_iterator is tape.live:
            return True
        loader = trainer.callback_handler.train_dataloader
        try:
            size = len(loader) if isinstance(loader, Sized) else 0
        except TypeError:  # of a loader over a stream
            size = 0
        share, before = math.modf(float(trainer.state.epoch or 0.0)) if not self._epochs else (0, 0)
        first = self._epochs == 0
        number = int(before) if first else tape.serving + 1
        self._epochs += 1
        tape.open(number, epoch_iterator, size, round(share * size))
        return True

    def clip_gradients(self, parameters: Any, max_norm: float, *rest: Any, **named: Any) -> Any:
        """Clip to the limit of the run, check the update, and return the norm before clipping."""
        original, every = self.original["clip_grad_norm_"], list(parameters)
        self._judged_already = True
        return self._judge(lambda limit: original(every, limit, *rest, **named), max_norm)

    def update_comes(self) -> None:
        """Check the update of a trainer that does not clip; one that clips has checked it then."""
        if self._hooks is None or self._judged_already:
            return
        original, every = self.original["clip_grad_norm_"], self._trainer.model_wrapped.parameters()
        parameters = list(every)
        self._judge(lambda limit: original(parameters, limit), 0.0)
