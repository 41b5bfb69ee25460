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
    """A forward pass over the buffers of a batch, followed by at most one backward pass."""

    batch: StaticBatch

    def forward(self) -> tuple[Tensor, ...]:
        """Return outputs without an autograd graph; the next forward pass may overwrite them."""

    def backward(self, gradients: Sequence[Tensor]) -> None:
        """Add to the parameters' gradients, given the gradients with respect to the outputs."""


class Direct:
    """A pass that runs the program directly, without CUDA graphs."""

    def __init__(
        self, program: StaticForward, batch: StaticBatch, gradients: StaticGradients
    ) -> None:
        self.batch = batch
        self._program = program
        self._gradients = gradients
        self._outputs: tuple[Tensor, ...] = ()

    def forward(self) -> tuple[Tensor, ...]:
        """Run the forward pass, keep its autograd graph, and return the outputs without it."""
        self._outputs = self._program(self.batch)
        return tuple(output.detach() for output in self._outputs)

    def backward(self, gradients: Sequence[Tensor]) -> None:
        """Add to the parameters' gradients, and free the autograd graph."""
        self._gradients.attach()
        found = self._program.differentiate(self._outputs, self._gradients.parameters, gradients)
        self._gradients.add(found)
        self._outputs = ()


class Graphs:
    """The memory pool and the stream that all graphs of a model share.

    At most one form is between its forward and its backward pass, so all share the same memory.
    """

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()
        self.stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # of torch
        self.warm = False

    def mark_warm(self) -> None:
        """Note that the kernels of the model are loaded."""
        self.warm = True


class Captured:
    """A forward and a backward pass that are captured once and then replayed.

    A replay draws from the device's generator as the recorded calls would. Recomputed activations
    draw the numbers of the forward pass again: the backward graph starts from the generator state
    before the forward graph and ends with the state after it.

    Raises:
        Exception: the model does something that cannot be captured; the device is unchanged.
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
        if batch.form.trained:  # the buffers may hold gradients of the previous step
            gradients.allocate()
        with torch.random.fork_rng(devices=[self._device]), stream_restored(self._device):
            self._rehearse(program, graphs)
            self._record(program, graphs)

    def forward(self) -> tuple[Tensor, ...]:
        """Replay the forward pass; return its outputs, which the next replay overwrites."""
        if self.batch.form.trained:
            self._randomness = torch.cuda.get_rng_state(self._device)
        self._forward.replay()
        return self._outputs

    def backward(self, gradients: Sequence[Tensor]) -> None:
        """Replay the backward pass, which adds to the parameters' gradients."""
        assert self._randomness is not None, "forward() comes first"
        self._gradients.attach()
        for buffer, gradient in zip(self._incoming, gradients, strict=True):
            buffer.copy_(gradient)
        later = torch.cuda.get_rng_state(self._device)
        torch.cuda.set_rng_state(self._randomness, self._device)
        self._backward.replay()
        torch.cuda.set_rng_state(later, self._device)

    def _rehearse(self, program: StaticForward, graphs: Graphs) -> None:
        """Load the kernels, and detect calls that cannot be captured before the capture begins."""
        graphs.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(graphs.stream):
            if not graphs.warm or program.kernels.compiled:  # for this shape
                with as_in_a_capture("default"):
                    self._run_once(program)
                graphs.mark_warm()
            with as_in_a_capture("error"):
                self._run_once(program)
        torch.cuda.current_stream().wait_stream(graphs.stream)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def _run_once(self, program: StaticForward) -> None:
        outputs = program(self.batch)
        if self.batch.form.trained:
            zeros = [torch.zeros_like(output) for output in outputs]
            program.differentiate(outputs, self._gradients.parameters, zeros)

    def _record(self, program: StaticForward, graphs: Graphs) -> None:
        options: dict[str, Any] = {
            "pool": graphs.pool,
            "stream": graphs.stream,
            "capture_error_mode": "thread_local",
        }
        with _generator_restored(self._device):
            with torch.cuda.graph(self._forward, **options):
                outputs = program(self.batch)
            if self.batch.form.trained:
                self._incoming = tuple(torch.zeros_like(output) for output in outputs)
                with torch.cuda.graph(self._backward, **options):
                    found = program.differentiate(
                        outputs, self._gradients.parameters, self._incoming
                    )
                    self._gradients.add(found)
                    # Without a draw, the graph would not receive the state of the generator.
                    torch.rand(1, device=self._device)
        self._outputs = tuple(output.detach() for output in outputs)


@contextmanager
def stream_restored(device: torch.device) -> Iterator[None]:
    """Make the current stream current again after the block, in case code in it changes the stream.

    Work on another stream would not wait for copies that other threads start on this one.
    """
    if device.type != "cuda":
        yield
        return
    before = torch.cuda.current_stream(device)
    try:
        yield
    finally:
        torch.cuda.set_stream(before)


@contextmanager
def as_in_a_capture(on_wait: str) -> Iterator[None]:
    """Let Python code take the branches that it takes during a capture.

    Args:
        on_wait: effect of a wait for the device: `default` allows it, `error` raises.
    """
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode(on_wait)
    try:
        with claim_capture():
            yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


@contextmanager
def _generator_restored(device: torch.device) -> Iterator[None]:
    """Replace the generator if the capture in the block fails.

    Otherwise the generator may still be in its capture state.
    """
    state = torch.cuda.get_rng_state(device)
    try:
        yield
    except Exception:
        generator = torch.cuda.default_generators[device.index or 0]
        generator.graphsafe_set_state(torch.Generator(device))
        torch.cuda.set_rng_state(state, device)
        raise
