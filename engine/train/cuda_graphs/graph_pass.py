"""Graph passes: the forward and backward pass of one form, as CUDA graphs or directly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from ..patches import claim_capture
from .gradients import StaticGradients
from .static_forward import StaticBatch, StaticForward


class GraphPass(Protocol):
    """Forward over what is in the batch's buffers, then at most one backward."""

    batch: StaticBatch

    def forward(self) -> tuple[Tensor, ...]:
        """Outputs without a graph; the next forward of any form may overwrite them."""

    def backward(self, gradients: Sequence[Tensor]) -> None:
        """Add to the trained parameters' gradients, from those by the outputs."""


class Direct:
    """The program called as it is."""

    def __init__(
        self, program: StaticForward, batch: StaticBatch, gradients: StaticGradients
    ) -> None:
        self.batch = batch
        self._program = program
        self._gradients = gradients
        self._outputs: tuple[Tensor, ...] = ()

    def forward(self) -> tuple[Tensor, ...]:
        """Run the forward pass and keep its graph."""
        self._outputs = self._program(self.batch)
        return tuple(output.detach() for output in self._outputs)

    def backward(self, gradients: Sequence[Tensor]) -> None:
        """Run the backward pass and let the graph go."""
        self._gradients.attach()
        found = self._program.differentiate(self._outputs, self._gradients.parameters, gradients)
        self._gradients.add(found)
        self._outputs = ()


class Graphs:
    """The memory pool and the stream that all graphs of a model share.

    No two forms are ever between forward and backward at once, so all use the same memory.
    """

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()
        self.stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # of torch
        self.warm = False

    def mark_warm(self) -> None:
        """Note that the kernels of the model are loaded."""
        self.warm = True


class Captured:
    """Forward and backward pass, captured once and then replayed.

    A replay draws from the device's generator as the recorded calls would. Recomputed activations
    draw the forward pass's numbers again: the backward graph begins with the generator where the
    forward graph found it, and leaves it where the forward graph left it.

    Raises:
        Exception: whatever the model does that cannot be recorded; the device is as before.
    """

    def __init__(
        self, program: StaticForward, batch: StaticBatch, gradients: StaticGradients, graphs: Graphs
    ) -> None:
        self.batch = batch
        self._gradients = gradients
        self._device = batch.input_ids.device
        self._forward = torch.cuda.CUDAGraph()
        self._backward = torch.cuda.CUDAGraph()
        self._outputs: tuple[Tensor, ...] = ()
        self._incoming: tuple[Tensor, ...] = ()
        self._randomness: Tensor | None = None
        if batch.form.trained:  # they may still hold what the step before has left
            gradients.allocate()
        with torch.random.fork_rng(devices=[self._device]):
            self._rehearse(program, graphs)
            self._record(program, graphs)

    def forward(self) -> tuple[Tensor, ...]:
        """Replay the forward pass."""
        if self.batch.form.trained:
            self._randomness = torch.cuda.get_rng_state(self._device)
        self._forward.replay()
        return self._outputs

    def backward(self, gradients: Sequence[Tensor]) -> None:
        """Replay the backward pass."""
        assert self._randomness is not None, "forward() comes first"
        self._gradients.attach()
        for buffer, gradient in zip(self._incoming, gradients, strict=True):
            buffer.copy_(gradient)
        later = torch.cuda.get_rng_state(self._device)
        torch.cuda.set_rng_state(self._randomness, self._device)
        self._backward.replay()
        torch.cuda.set_rng_state(later, self._device)

    def _rehearse(self, program: StaticForward, graphs: Graphs) -> None:
        """Load kernels, and find what cannot be captured while that is still harmless."""
        graphs.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(graphs.stream):
            if not graphs.warm or program.kernels.compiled:  # for this shape
                with as_in_a_capture("default"):
                    self._once(program)
                graphs.mark_warm()
            with as_in_a_capture("error"):
                self._once(program)
        torch.cuda.current_stream().wait_stream(graphs.stream)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def _once(self, program: StaticForward) -> None:
        outputs = program(self.batch)
        if self.batch.form.trained:
            zeros = [torch.zeros_like(output) for output in outputs]
            program.differentiate(outputs, self._gradients.parameters, zeros)

    def _record(self, program: StaticForward, graphs: Graphs) -> None:
        how: dict[str, Any] = {
            "pool": graphs.pool,
            "stream": graphs.stream,
            "capture_error_mode": "thread_local",
        }
        with _sound_generator(self._device):
            with torch.cuda.graph(self._forward, **how):
                outputs = program(self.batch)
            if self.batch.form.trained:
                self._incoming = tuple(torch.zeros_like(output) for output in outputs)
                with torch.cuda.graph(self._backward, **how):
                    found = program.differentiate(
                        outputs, self._gradients.parameters, self._incoming
                    )
                    self._gradients.add(found)
                    # A graph that draws nothing would not be told where the generator stands.
                    torch.rand(1, device=self._device)
        self._outputs = tuple(output.detach() for output in outputs)


@contextmanager
def as_in_a_capture(on_wait: str) -> Iterator[None]:
    """Let Python code take the branches that it takes during a capture.

    Args:
        on_wait: what a wait for the device does: `default` allows it, `error` raises.
    """
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode(on_wait)
    try:
        with claim_capture():
            yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


@contextmanager
def _sound_generator(device: torch.device) -> Iterator[None]:
    """A capture that fails may leave the generator believing that it goes on: give it a new one."""
    state = torch.cuda.get_rng_state(device)
    try:
        yield
    except Exception:
        generator = torch.cuda.default_generators[device.index or 0]
        generator.graphsafe_set_state(torch.Generator(device))
        torch.cuda.set_rng_state(state, device)
        raise
