"""The hooks into the loop of a stock Hugging Face trainer, and an epoch that is entered again.

| seam on the instance | step hook | possible effect |
|---|---|---|
| `get_batch_samples` | `begin_step`, `fetch` | run commands; leave the epoch; end the run |
| `training_step`, before it | `may_continue` | drop the step by leaving the epoch |
| `accelerator.backward` | `may_backward` | conclude the step before; the loss reaches all ranks |
| `training_step`, after it | `after_backward`, `record_loss` | drop the step; its loss |
| `_clip_grad_norm` | `check_update` | set the learning rate, clip, check the update |
| `optimizer.step` | `may_update`, `gated` | refuse the update, on the host or on the device |
| `on_optimizer_step` | `optimizer_stepped` | restore the scheduled learning rate |
| `on_step_end` | `end_step` | journal the step |

The position of the loop is in local variables of `_run_epoch`. After a rollback that frame is left
by an exception, and `_run_epoch` is entered again for the rest of the epoch that the restored state
belongs to, with a loader that hands back the live iterator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from torch import Tensor

from ...train.control.controlled_trainer import StepHooks
from ...train.loop.step_metrics import StepMetrics
from ..batch_tape import BatchTape
from ..shield import Shield


class LoopLeft(BaseException):
    """Leaves the running epoch; not an `Exception`, so that no handler of a user catches it."""


class LoopHooks(StepHooks, Protocol):
    """The step hooks, and how their time is measured."""

    @property
    def tally(self) -> StepMetrics:
        """The measurements of the step."""

    @property
    def dropped(self) -> bool:
        """Whether the step in progress is being dropped."""

    def after_backward(self) -> None:
        """Let the monitor check the step before; its verdict may drop the step in progress."""


class LoopEvents(Protocol):
    """What the loop reports besides the step hooks."""

    def stepped(self) -> None:
        """Report that the counters of the trainer have moved."""

    def restore_lr(self) -> None:
        """Set the scheduled learning rate again, because the update is done."""

    def add_figures(self, tally: StepMetrics) -> None:
        """Add figures that were logged since the last step to a step about to be checked."""

    def logged(self, figures: Mapping[str, Any]) -> None:
        """Report figures that the trainer has logged."""

    def evaluated(self, figures: Mapping[str, Any]) -> None:
        """Report the figures of an evaluation that the trainer has made."""


class _LiveLoader:
    """Stands for the loader when an epoch is entered again: continues with the live iterator."""

    def __init__(self, live: Iterator[Any]) -> None:
        self._live = live

    def __iter__(self) -> Iterator[Any]:
        return self._live


class HfLoop:
    """The methods that replace those of a trainer during one `train()`, called its seams."""

    def __init__(
        self, trainer: Any, tape: BatchTape, shield: Shield, *, drops: bool, clip: float
    ) -> None:
        self._trainer = trainer
        self._tape = tape
        self._shield = shield
        self._drops = drops
        """Whether a step may be dropped between two micro-batches."""
        self._clip = clip
        """The gradient clip that the script asks for; 0 is off."""
        self._hooks: LoopHooks | None = None
        self._events: LoopEvents | None = None
        self._epoch: dict[str, Any] = {}
        """Arguments of the epoch that the trainer has entered."""
        self._entered_again = False
        self._dropping = False
        self._restores_rng = False
        """Whether a trainer that resumes sets the random generators after the fetch."""
        self.original: dict[str, Callable[..., Any]] = {}
        """The methods of the trainer, by name."""

    def begin(self, hooks: LoopHooks, events: LoopEvents) -> None:
        """Start to call the step hooks."""
        self._hooks, self._events = hooks, events

    @property
    def accelerator_seams(self) -> dict[str, Callable[..., Any]]:
        """The methods to put in place of those of the trainer's accelerator."""
        return {}

    @property
    def seams(self) -> dict[str, Callable[..., Any]]:
        """The methods to put in place of those of the trainer."""
        return {
            "get_batch_samples": self.get_batch_samples,
            "training_step": self.training_step,
            "_clip_grad_norm": self.clip_grad_norm,
            "_get_grad_norm": self.get_grad_norm,
            "_run_epoch": self.run_epoch,
        }

    def run_epoch(self, **entry: Any) -> None:
        """Run an epoch of the trainer.

        After a rollback to an earlier epoch, that epoch and those after it are finished first. If
        data was skipped, the last epoch is followed by another pass, to have all planned steps.
        """
        self._epoch, self._entered_again = entry, False
        following: dict[str, Any] | None = entry
        while following is not None:
            try:
                self.original["_run_epoch"](**following)
            except LoopLeft:
                self._take_back()
                following = self._rest_of_epoch()
            else:
                following = self._next_epoch()

    def _next_epoch(self) -> dict[str, Any] | None:
        """Return the arguments for the epoch after a finished one; None leaves it to the trainer.

        A rollback may have led to epochs before the one that the trainer has entered. Where data
        was skipped, another pass makes up for it, so that the run has the steps of its schedule.
        """
        trainer, tape, entered = self._trainer, self._tape, self._epoch
        state = trainer.state
        if trainer.control.should_training_stop:
            return None
        if self._shield.broken and not self._entered_again:
            return (
                None  # the trainer has read this epoch by itself, and the tape knows nothing of it
            )
        if tape.serving < entered["epoch"]:
            self._begin_epoch()
            tape.serving += 1
            return self._rest_of_epoch()
        last = entered["epoch"] + 1 >= state.num_train_epochs and not self._shield.broken
        if not (last and tape.skipped and state.global_step < state.max_steps):
            return None
        self._begin_epoch()
        self._epoch = {**entered, "epoch": entered["epoch"] + 1, "resume_from_checkpoint": None}
        self._entered_again = False
        return self._epoch

    def _begin_epoch(self) -> None:
        trainer = self._trainer
        trainer.control = trainer.callback_handler.on_epoch_begin(
            trainer.args, trainer.state, trainer.control
        )

    def _rest_of_epoch(self) -> dict[str, Any] | None:
        """Return the arguments for the rest of the epoch at the position of the tape.

        The loop counts from zero in each epoch, so it is given fewer steps and micro-batches. If
        nothing of the epoch is left, it is ended, and the result is that of `_next_epoch`.
        """
        first, tape, trainer = self._epoch, self._tape, self._trainer
        left = first["steps_in_epoch"] - tape.consumed(tape.serving)
        if left <= 0:
            trainer.control = trainer.callback_handler.on_epoch_end(
                trainer.args, trainer.state, trainer.control
            )
            return self._next_epoch()
        self._entered_again = True
        return {
            **first,
            "epoch": tape.serving,
            "train_dataloader": _LiveLoader(tape.live),
            "steps_in_epoch": left,
            "num_update_steps_per_epoch": math.ceil(
                left / trainer.args.gradient_accumulation_steps
            ),
            "resume_from_checkpoint": None,
        }

    def _take_back(self) -> None:
        """Undo the step that was in progress, if the epoch was left because it is dropped."""
        dropping, self._dropping = self._dropping, False
        if dropping and self._hooks is not None:
            self._hooks.end_step()

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> Any:
        """Handle the boundary before a step, then return its micro-batches.

        If the run ends at the boundary there are none, and the trainer's stop flag is set.

        Raises:
            LoopLeft: a command has moved the position, so the epoch has to be entered again.
        """
        hooks, trainer = self._hooks, self._trainer
        if hooks is None or not self._shield.call(lambda: self._open(epoch_iterator), False):
            if not self._entered_again:
                return self.original["get_batch_samples"](epoch_iterator, num_batches, device)
            return self._unwatched(epoch_iterator, num_batches, device)
        before = (trainer.state.global_step, self._tape.position)
        if not self._shield.call(hooks.begin_step, True):
            trainer.control.should_training_stop = True
            return [], None
        if (trainer.state.global_step, self._tape.position) != before:
            raise LoopLeft
        with hooks.tally.time("data"):
            self._tape.load(num_batches)
        served = self._shield.call(lambda: hooks.fetch(num_batches), None)
        if served is None:
            return self._unwatched(epoch_iterator, num_batches, device)
        batches = iter([one["batch"] for one in served])
        return self.original["get_batch_samples"](batches, num_batches, device)

    def _open(self, epoch_iterator: Any) -> bool:
        epoch = self._epoch
        resumed = (
            epoch["resume_from_checkpoint"] is not None
            and epoch["epoch"] == epoch["epochs_trained"]
        )
        offset = epoch["steps_trained_in_current_epoch"] if resumed else 0
        self._restores_rng = resumed and epoch_iterator is not self._tape.live
        self._tape.open(epoch["epoch"], epoch_iterator, epoch["steps_in_epoch"], offset)
        return True

    def _unwatched(self, epoch_iterator: Any, num_batches: int, device: Any) -> Any:
        """Serve what is still on the tape, then the live iterator, without any control."""
        tape = self._tape
        held = tape.fetch(num_batches)
        live = epoch_iterator if tape.serving == self._epoch["epoch"] else ()

        def batches() -> Iterator[Any]:
            yield from (one["batch"] for one in held)
            for batch in live:  # noqa: UP028 -- `yield from` would close the loader, too
                yield batch

        return self.original["get_batch_samples"](batches(), num_batches, device)

    def training_step(self, *arguments: Any, **named: Any) -> Any:
        """Run one micro-batch and return its loss.

        Raises:
            LoopLeft: the step is being dropped.
        """
        hooks = self._hooks
        if hooks is None:
            return self.original["training_step"](*arguments, **named)
        if self._drops and not self._shield.call(hooks.may_continue, True):
            self._dropping = True
            raise LoopLeft
        if self._restores_rng:
            self._restores_rng = False
            self._shield.call(self._tape.recapture_rng, None)
        with hooks.tally.time("compute"):
            loss = self.original["training_step"](*arguments, **named)
        self._shield.call(hooks.after_backward, None)
        if self._drops and hooks.dropped and not self._shield.broken:
            self._dropping = True  # by the verdict on the step before, which came late
            raise LoopLeft
        self._shield.call(lambda: hooks.record_loss(loss.detach()), None)
        return loss

    def clip_grad_norm(self, model: Any) -> Any:
        """Clip as the settings say, check the update, and return the norm before clipping."""
        return self._judged(model, self.original["_clip_grad_norm"])

    def get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """Return the gradient norm, and check the update of a trainer that does not clip.

        `grad_norm` is the norm that clipping has measured, with which the update has been checked.
        """
        measure = self.original["_get_grad_norm"]
        if grad_norm is not None:
            return measure(model, grad_norm=grad_norm)
        return measure(model, grad_norm=self._judged(model, self._clipped))

    def _clipped(self, model: Any) -> Any:
        """Clip as a trainer with a limit does; `max_grad_norm` holds the limit meanwhile."""
        return self.original["_clip_grad_norm"](model)

    def _judged(self, model: Any, clip: Callable[[Any], Any]) -> Any:
        args = self._trainer.args

        def clip_to(limit: float) -> Any:
            asked = args.max_grad_norm
            args.max_grad_norm = limit
            try:
                return clip(model)
            finally:
                args.max_grad_norm = asked

        return self._judge(clip_to, args.max_grad_norm)

    def _judge(self, clip: Callable[[float], Any], asked: float) -> Any:
        """Clip as the settings say, check the update, and return the norm as the trainer has it.

        Args:
            clip: clips to a limit and returns the norm before clipping.
            asked: the limit that the trainer itself would clip to; 0 or None is off.
        """
        hooks = self._hooks
        found: list[Any] = []

        def clip_to(limit: float) -> Tensor:
            found.append(clip(asked if asked and limit == self._clip else limit))
            return _plain(found[0])

        if hooks is not None:
            self._shield.call(self._add_figures, None)
            self._shield.call(lambda: hooks.check_update(clip_to), None)
        if found:
            return found[0]
        return clip(asked) if asked else None

    def _add_figures(self) -> None:
        if self._hooks is not None and self._events is not None:
            self._events.add_figures(self._hooks.tally)

    def logged(self, figures: Mapping[str, Any]) -> None:
        """Pass on what the trainer logs."""
        events = self._events
        if events is not None:
            self._shield.call(lambda: events.logged(figures), None)

    def evaluated(self, figures: Mapping[str, Any]) -> None:
        """Pass on the figures of an evaluation."""
        events = self._events
        if events is not None:
            self._shield.call(lambda: events.evaluated(figures), None)

    def update_comes(self) -> None:
        """Do nothing before the optimizer steps: the update has been checked with its norm."""

    def optimizer_stepped(self, *, skipped: bool) -> None:
        """Set the scheduled learning rate again, and report the update unless it was `skipped`."""
        hooks, events = self._hooks, self._events
        if events is not None:
            events.restore_lr()
        if hooks is not None and not skipped:
            self._shield.call(hooks.optimizer_stepped, None)

    def step_ended(self) -> None:
        """Journal the step after the counters of the trainer have moved."""
        hooks, events, state = self._hooks, self._events, self._trainer.state
        if self._entered_again and not self._shield.broken:
            state.epoch = self._tape.epoch
        if hooks is None or events is None:
            return
        last = state.global_step >= state.max_steps
        self._shield.call(events.stepped, None)
        self._shield.call(lambda: hooks.end_step(last=last), None)


def _plain(norm: Any) -> Tensor:
    """Return a gradient norm as a tensor of this rank, [].

    Sharded gradients have a norm whose parts the ranks add up; all of them call this together.
    """
    if hasattr(norm, "full_tensor"):
        norm = norm.full_tensor()
    return norm if isinstance(norm, Tensor) else Tensor([norm])[0]
