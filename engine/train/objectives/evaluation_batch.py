"""How many examples are evaluated at once, fewer after the device has run out of memory."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TypeVar

import torch

_Result = TypeVar("_Result")


class EvaluationBatch:
    """The size of a batch of an evaluation, which stays smaller once a larger one did not fit.

    Args:
        size: examples per batch to begin with.
        alone: whether there is a single rank; several would have to agree on a new size, so that
            the error of one ends the run.
        free_graphs: frees the memory that CUDA graphs hold.
        log: receives a level and a text.
    """

    def __init__(
        self,
        size: int,
        *,
        alone: bool,
        free_graphs: Callable[[], None],
        log: Callable[[str, str], None],
    ) -> None:
        self.size = size
        self._alone = alone
        self._free_graphs = free_graphs
        self._log = log

    def retry(self, evaluate: Callable[[int], _Result]) -> _Result:
        """Return the result of an evaluation, which is repeated with smaller batches if need be.

        The first repetition has the same size and the memory of the graphs.

        Args:
            evaluate: takes the number of examples per batch.

        Raises:
            torch.OutOfMemoryError: not even a batch of one example fits.
        """
        while True:
            try:
                return evaluate(self.size)
            except torch.OutOfMemoryError:
                if not self._alone:
                    raise
            self._free()
            try:
                return evaluate(self.size)
            except torch.OutOfMemoryError:
                if self.size == 1:
                    raise
            self.size = max(1, self.size // 2)
            self._log(
                "warning",
                f"the evaluation ran out of memory; it continues with {self.size} examples at "
                f"once: set eval.batch: {self.size}",
            )

    def generate(self, action: Callable[[], _Result]) -> _Result:
        """Return the result of generating text, which is repeated once with more free memory.

        Raises:
            torch.OutOfMemoryError: it does not fit then, either, or there are several ranks.
        """
        try:
            return action()
        except torch.OutOfMemoryError:
            if not self._alone:
                raise
        self._free()
        return action()

    def _free(self) -> None:
        """Free the memory of graphs, and of tensors that an error has kept alive until here."""
        self._free_graphs()
        gc.collect()
        torch.cuda.empty_cache()
