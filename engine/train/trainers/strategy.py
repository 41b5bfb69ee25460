"""The parts of a run that depend on `train.strategy`: whether a rank has the whole model or a part.

What belongs to sharded models is imported here only where a run needs it, because torch's packages
for them are slow to import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from ...model.load import LoadedModel
from ...protocol.events import GradientsMeasured
from ..checkpoint.ema import WeightsEma
from ..checkpoint.training_state import TrainingState, trained_weights
from ..monitoring.gradient_flow import GradientFlow
from .build import AnyTrainer


def average_of(trainer: AnyTrainer, model: Any, decay: float) -> WeightsEma | None:
    """Return the moving average of the trained weights, or of their parts; None without a decay."""
    if not decay:
        return None
    sharded = trainer.sharded
    return WeightsEma(trained_weights(model) if sharded is None else sharded.weights, decay)


def averaged_weights(
    trainer: AnyTrainer, ema: WeightsEma | None
) -> Callable[[], AbstractContextManager[None]]:
    """Return the context in which the model has the weights to evaluate: the average, if kept."""
    if ema is None:
        return nullcontext
    return ema.in_place_of_weights if trainer.sharded is None else lambda: _gathered(trainer, ema)


@contextmanager
def _gathered(trainer: AnyTrainer, ema: WeightsEma) -> Iterator[None]:
    assert trainer.sharded is not None, "only parts have to be gathered again"
    with ema.in_place_of_weights():
        trainer.sharded.reshard()
        yield
    trainer.sharded.reshard()


def state_of(trainer: AnyTrainer, loaded: LoadedModel, ema: WeightsEma | None) -> TrainingState:
    """Return the exact training state."""
    if trainer.sharded is None:
        return TrainingState(trainer, loaded.model, ema, loaded.initial)
    from ..checkpoint.sharded_state import ShardedState

    return ShardedState(trainer, loaded.model, trainer.sharded, ema, loaded.initial)


def flow_of(trainer: AnyTrainer, model: Any) -> GradientFlow | NoFlow:
    """Return the meter of the gradient flow; for a sharded model it measures nothing."""
    return GradientFlow(model) if trainer.sharded is None else NoFlow()


class NoFlow:
    """Measures no gradient flow, because each rank has only a part of each gradient."""

    measuring = False

    def before(self, reason: str, *, scale: float) -> None:
        """Do nothing."""

    def after(self) -> GradientsMeasured:
        """Fail, because nothing is measured.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("the gradient flow of a sharded model is not measured")
