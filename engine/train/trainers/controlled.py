"""The engine's own implementation of `ControlledTrainer`, used by control and monitoring."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from ...data.batches.batch_source import BatchSource
from ...model.adapter.dropout import dropout_of, set_dropout
from ...protocol.commands import (
    AverageCheckpoints,
    Chat,
    Command,
    GenerateSample,
    KeepPrompt,
    MeasureGradients,
    SetDropout,
)
from ...protocol.events import AnyEvent
from ...protocol.settings import RunSettings
from ..control.controlled_trainer import EvalResult
from ..control.culprit_search import RepeatableState
from ..loop.optimizers import set_lr, set_weight_decay
from ..objectives.evaluator import Evaluator
from ..objectives.forgetting import ForgettingMeter
from ..position import Position
from .build import AnyTrainer
from .device_offload import DeviceOffload


class EngineTrainer:
    """Implements `ControlledTrainer` with a Hugging Face trainer and the parts around it."""

    def __init__(
        self,
        trainer: AnyTrainer,
        data: BatchSource,
        state: RepeatableState,
        evaluator: Evaluator,
        offload: DeviceOffload,
        forgetting: ForgettingMeter | None = None,
    ) -> None:
        self._trainer = trainer
        self._data = data
        self._state = state
        self._evaluator = evaluator
        self._offload = offload
        self._forgetting = forgetting
        self._dropout = dropout_of(trainer.model)
        """The configured dropout before the adapter; None without an adapter."""
        self.prepared = RunSettings()
        """Weight decay and dropout of the newest step; other settings are left out."""

    def begin(self) -> dict[str, str]:
        """Measure what has to be measured before the next step; return facts about it.

        Raises:
            ConfigError: it can no longer be measured.
        """
        if self._forgetting is None:
            return {}
        self._forgetting.begin(self.position.step)
        return {"general texts": self._forgetting.fact}

    @property
    def position(self) -> Position:
        """The number of finished optimizer steps and the learning rate of the schedule."""
        return self._trainer.position

    @property
    def refuses(self) -> Mapping[type[Command], str]:
        """The commands that this trainer cannot carry out, with the reasons."""
        refused: dict[type[Command], str] = {}
        if not self._trainer.generates:
            nothing = "a reward model scores texts and generates none"
            refused |= {GenerateSample: nothing, Chat: nothing, KeepPrompt: nothing}
        elif not self.can_evaluate:
            refused[KeepPrompt] = "it has no evaluations; set data.eval or data.eval_fraction"
        if self._trainer.sharded is not None:
            refused[MeasureGradients] = (
                "with train.strategy: fsdp a rank has a part of each gradient"
            )
            refused[AverageCheckpoints] = (
                "with train.strategy: fsdp a rank has a part of each weight"
            )
        if self._dropout is None:
            refused[SetDropout] = "all weights are trained, and the dropout belongs to an adapter"
        return refused

    @property
    def state(self) -> RepeatableState:
        """The exact training state."""
        return self._state

    @property
    def data(self) -> BatchSource:
        """The source of this rank's batches."""
        return self._data

    def prepare(self, settings: RunSettings) -> None:
        """Put weight decay and dropout in force for the next step; None is the configured value.

        CUDA graphs hold the dropout, so they are made again after it has changed.
        """
        decay, dropout = settings.weight_decay, settings.dropout
        wanted = RunSettings(weight_decay=decay, dropout=dropout)
        if wanted == self.prepared:
            return
        self.prepared, recipe = wanted, self._trainer.recipe
        set_weight_decay(self._trainer.optimizer, recipe.weight_decay if decay is None else decay)
        if self._dropout is not None:
            rate = self._dropout if dropout is None else dropout
            if set_dropout(self._trainer.model, rate):
                self._trainer.forward.release()

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of the next update; each group gets its own ratio of it."""
        set_lr(self._trainer.optimizer, lr)

    @property
    def can_evaluate(self) -> bool:
        """Whether there are held-out examples."""
        return len(self._evaluator) > 0

    def evaluate(self, interrupted: Callable[[], bool]) -> EvalResult:
        """Evaluate the current weights, or their moving average if the run keeps one.

        Args:
            interrupted: called before each batch by all ranks together; True ends the evaluation.

        Raises:
            EvaluationInterrupted: the run is to stop; nothing was changed.
        """
        found = self._evaluator.evaluate(interrupted)
        if self._forgetting is None:
            return found
        started = time.monotonic()
        more = self._forgetting.measure(found.metrics["loss"], interrupted)
        seconds = found.seconds + time.monotonic() - started
        return EvalResult({**found.metrics, **more}, seconds)

    def sample(self, prompt: str) -> str:
        """Generate text with the weights, or with their moving average if the run keeps one."""
        return self._evaluator.sample(prompt)

    def chat(
        self, chat: Chat, record: Callable[[AnyEvent], None], interrupted: Callable[[], bool]
    ) -> str:
        """Answer a prompt by the base and by the current weights, or by their moving average.

        Args:
            chat: the prompt and how to answer it.
            record: called with the events of the chat, on rank 0.
            interrupted: asked by all ranks together; True ends the chat.

        Returns:
            How many tokens each answer has, in words.

        Raises:
            Impossible: the prompt cannot be answered; nothing was changed.
        """
        return self._evaluator.responder.answer(chat, record, interrupted)

    def release_memory(self) -> int:
        """Move everything on this rank's device to the host; return the number of bytes freed."""
        return self._offload.release()

    def reclaim_memory(self) -> None:
        """Move everything back to this rank's device.

        Raises:
            torch.OutOfMemoryError: another process uses the memory; everything is on the host.
        """
        self._offload.reclaim()
