"""The callback of a watched trainer; it is called before those of the user."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..shield import Shield
from .loop import HfLoop


class WatchCallback(TrainerCallback):  # type: ignore[misc]  # transformers is untyped
    """Begins the session, and reports updates, steps, logged figures and evaluations."""

    def __init__(self, begin: Callable[[], None], loop: HfLoop, shield: Shield) -> None:
        self._begin = begin
        self._loop = loop
        self._shield = shield

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin the session: optimizer and schedule have been made."""
        self._shield.call(self._begin, None)

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Report that the gradients of a step are ready."""
        self._loop.update_comes()

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Report that the weights have changed, unless guard or loss scaler refused the update."""
        optimizer = kwargs["optimizer"]
        self._loop.optimizer_stepped(skipped=bool(getattr(optimizer, "step_was_skipped", False)))

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Journal the step."""
        self._loop.step_ended()

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Pass on what the trainer logs."""
        self._loop.logged(kwargs.get("logs") or {})

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Pass on the figures of an evaluation."""
        self._loop.evaluated(kwargs.get("metrics") or {})
