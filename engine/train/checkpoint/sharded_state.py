"""Exact training state of a sharded model, in checkpoints of the same form as of any other run.

Saving gathers the parts of all ranks on rank 0; restoring lets every rank read whole values and
keep its own parts of them. So checkpoints do not depend on how a run splits its weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...errors import TrainingFailed
from ..distributed.sharding import ShardedModel
from .counters import Counters
from .ema import WeightsEma
from .optimizer_state import bare, bit_sums, state_tensors
from .training_state import Shared, StagedState, StatefulTrainer, TrainingState

if TYPE_CHECKING:
    from pathlib import Path

    from peft import PeftModel

Convert = Callable[[str, Tensor], Any]
"""Converts a value that is split like the weight of this name."""


class ShardedState(TrainingState):
    """The state of a run whose weights, gradients and optimizer state are split over the ranks."""

    def __init__(
        self,
        trainer: StatefulTrainer,
        model: PeftModel,
        sharded: ShardedModel,
        ema: WeightsEma | None = None,
        initial: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__(trainer, model, ema, initial, weights=sharded.weights)
        self._sharded = sharded
        self._whole: Shared | None = None

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Hold the whole state on the host of rank 0; all ranks enter this together."""
        self._whole = self._converted(super()._shared(), self._sharded.whole)
        try:
            yield
        finally:
            self._whole = None

    def _shared(self) -> Shared:
        assert self._whole is not None, "the state is gathered before it is saved"
        return self._whole

    def _shape(self, name: str) -> torch.Size:
        return self._sharded.shape_of(name)

    def stage(self, folder: Path, rank: int) -> StagedState:
        """Read and check a checkpoint, and keep this rank's parts, without changing the live state.

        Raises:
            CheckpointError: a file cannot be read or does not fit; the text names it.
        """
        whole = super().stage(folder, rank)
        parts = self._converted(
            Shared(whole.weights, whole.average, whole.machinery),
            lambda _, value: self._sharded.part(value),
        )
        return replace(
            whole,
            weights=parts.weights,
            average=parts.average,
            machinery=parts.machinery,
            bit_sums=bit_sums(_split(whole.weights, whole.average, whole.machinery)),
        )

    def apply(self, staged: StagedState) -> Counters:
        """Apply the parts of a staged checkpoint and return its counters.

        Raises:
            TrainingFailed: the parts of all ranks together are not what this rank has read.
        """
        counters = super().apply(staged)
        self._sharded.reshard()
        if staged.bit_sums is not None:
            self._require_restored(staged)
        return counters

    def _require_restored(self, staged: StagedState) -> None:
        live = super()._shared()
        average = live.average if staged.average is not None else None
        found = bit_sums(_split(live.weights, average, live.machinery))
        if self._sharded.totals(found) != staged.bit_sums:
            raise TrainingFailed(
                "the parts of the ranks are not those of the restored checkpoint, so the run ends; "
                "its checkpoints are unchanged: make sure that all ranks of a node read the same "
                "run folder, then resume"
            )

    def _bit_sums(self, tensors: Iterable[Tensor]) -> list[int]:
        return self._sharded.totals(bit_sums(tensors))

    def _converted(self, shared: Shared, convert: Convert) -> Shared:
        return Shared(
            {name: convert(name, value) for name, value in shared.weights.items()},
            {name: convert(name, value) for name, value in shared.average.items()}
            if shared.average is not None
            else None,
            {**shared.machinery, "optimizer": self._optimizer(shared.machinery, convert)},
        )

    def _optimizer(self, machinery: dict[str, Any], convert: Convert) -> dict[str, Any]:
        saved = machinery["optimizer"]
        parts = [part for group in self._groups() for part in group["params"]]
        names = [self._sharded.name_of(part) for part in parts]
        return {
            **saved,
            "state": [
                stored
                and {
                    key: convert(name, value) if _is_split(value) else value
                    for key, value in stored.items()
                }
                for name, stored in zip(names, saved["state"], strict=True)
            ],
        }

    def _groups(self) -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = bare(self._trainer.optimizer).param_groups
        return groups


def _is_split(value: object) -> bool:
    """Return whether a value of the optimizer is split like its weight; counters of steps are not.

    Optimizers with other tensors are refused by the checks of the configuration.
    """
    return isinstance(value, Tensor) and value.ndim > 0


def _split(
    weights: Mapping[str, Tensor], average: Mapping[str, Tensor] | None, machinery: dict[str, Any]
) -> list[Tensor]:
    """Return all values that are split, in an order that does not depend on that of a file."""
    named = [tensors[name] for tensors in (weights, average or {}) for name in sorted(tensors)]
    states = [value for value in state_tensors(machinery["optimizer"]) if _is_split(value)]
    return [*named, *states]
