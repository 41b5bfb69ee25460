"""Graph forward strategy: a micro-batch replays CUDA graphs over static buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import Tensor

from ..forward import States, TrainingStep, Want, Way
from ..patches import without_ddp
from .graph_forward import GraphForward


class GraphStrategy:
    """Replays graphs, and does what DDP and the Hugging Face loop cannot do with graphs."""

    uses_graphs = True

    def __init__(self, graphs: GraphForward, fact: str) -> None:
        self._graphs = graphs
        self.fact = fact

    def __call__(
        self, model: Any, inputs: dict[str, Any], *wants: Want, way: Way = "trained"
    ) -> dict[Want, Tensor]:
        """Run a micro-batch forward and return the wanted tensors by name.

        `model` is not used, because the graphs contain the model. The other arguments are those of
        `GraphForward`.
        """
        return self._graphs(inputs, *wants, way=way)

    def without_gradients(self) -> AbstractContextManager[None]:
        """Return an empty context: graphs for such passes are captured without gradients."""
        return nullcontext()

    def reference(self) -> AbstractContextManager[None]:
        """Return an empty context: graphs of the reference are captured without the adapter."""
        return nullcontext()

    @contextmanager
    def evaluating(self, model: Any) -> Iterator[States]:
        """Give the block a function that runs a batch of an evaluation, through graphs later on.

        A batch with fewer rows than an earlier one is padded to as many, so that the last batch
        needs no graphs of its own. The states are copied, because a replay overwrites them.
        """
        rows = 0

        def states(batch: dict[str, Any]) -> Tensor:
            nonlocal rows
            ids = batch["input_ids"]
            rows = max(rows, len(ids))
            found = self._graphs({"input_ids": ids}, "hidden", way="evaluated", rows=rows)
            return found["hidden"].clone()

        yield states

    def training_step(self, trainer: Any, plain: TrainingStep) -> TrainingStep:
        """Return a training step without DDP that calls `model.train()` only where needed."""

        def step(model: Any, inputs: Any, num_items_in_batch: Any) -> Tensor:
            if not trainer.model.training:
                trainer.model.train()
            inputs = trainer._prepare_inputs(inputs)
            loss: Tensor = trainer.compute_loss(
                trainer.model, inputs, num_items_in_batch=num_items_in_batch
            )
            trainer.accelerator.backward(loss)
            return loss.detach()

        return step

    def prepare(self, accelerator: Any) -> None:
        """Leave DDP out and start every rank from the weights of rank 0."""
        without_ddp(accelerator)
        self._graphs.begin()

    def average_gradients(self) -> None:
        """Average the gradients over all ranks, because there is no DDP module to do it."""
        self._graphs.average_gradients()

    def make_ahead(self, lengths: Sequence[int], may_go_on: Callable[[], bool]) -> tuple[int, int]:
        """Capture graphs of these lengths; return how many were made, and how many are left."""
        return self._graphs.make_ahead(lengths, may_go_on)

    def make_room(self, *, outside: bool = True) -> None:
        """Free the graphs if the device may not hold both them and other passes."""
        self._graphs.make_room(outside=outside)

    def release(self) -> None:
        """Free the memory of all graphs and gradients; they are made again when needed."""
        self._graphs.release()
