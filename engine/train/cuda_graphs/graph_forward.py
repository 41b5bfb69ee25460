"""Graph forward: chooses, captures and replays the graph that fits a micro-batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from ..forward import Want, Way
from .buckets import bucket
from .gradients import StaticGradients
from .graph_pass import Captured, Direct, GraphPass, Graphs
from .static_forward import Form, StaticBatch, StaticForward

LOG_PROBS: Final[frozenset[Want]] = frozenset({"log_probs", "context_log_probs"})
"""Results that hold one number per row."""
KEPT_FREE = 0.05
"""Share of the memory of a device that is left free by graphs which are made ahead."""
MOST_GRAPHS = 32
"""Most graphs for each `Way` to run the model, one for every form of a micro-batch.

Each costs seconds to capture, and some memory.
"""


OFTEN = 16
"""Times that a form of an evaluation runs without a graph before one is captured for it.

To capture a graph takes about as long as it then saves in as many passes.
"""


class GraphForward:
    """Runs a micro-batch through CUDA graphs and returns tensors with an autograd graph.

    The backward pass adds to the parameters' gradients, which stay in place. If a micro-batch has a
    backward pass, it must run before the next forward pass.
    """

    def __init__(
        self,
        program: StaticForward,
        device: torch.device,
        *,
        longest: int,
        rows: int,
        pad_id: int,
        capture: bool,
        log: Callable[[str, str], None],
    ) -> None:
        self._program = program
        self._gradients = StaticGradients(program.model.parameters())
        self._device = device
        self._longest, self._rows, self._pad_id = longest, rows, pad_id
        self._capture = capture
        self._log = log
        self._passes: dict[Form, GraphPass] = {}
        self._evaluated: Counter[Form] = Counter()
        """How often each form of an evaluation ran since the graphs were last freed."""
        self._graphs: Graphs | None = None
        self._anchor = torch.zeros((), device=device, requires_grad=True)
        """Input that connects the outputs to autograd, which does not see the parameters."""

    def __call__(
        self, inputs: dict[str, Any], *wants: Want, way: Way = "trained", rows: int = 0
    ) -> dict[Want, Tensor]:
        """Run a micro-batch forward.

        Args:
            inputs: `input_ids` [B, T], `labels` unless only hidden states are wanted, `context` if
                its log-probabilities are, and `position_ids` if rows are packed; all on the device.
            wants: Names of the tensors to return.
            way: Form of the model: trained, reference (without the adapter), or still and
                evaluated (no dropout).
            rows: Rows to pad to; 0 pads to those of a micro-batch.

        Returns:
            The tensors by name. The next forward pass may overwrite all but log-probabilities.
        """
        given, length = inputs["input_ids"].shape
        form = Form(
            rows=max(given, rows or self._rows),
            length=bucket(length, self._longest),
            packed="position_ids" in inputs,
            wants=wants,
            trained=way == "trained" and torch.is_grad_enabled(),
            way=way,
        )
        one = self._pass_for(form, inputs)
        hand_over: Callable[..., tuple[Tensor, ...]] = _Handover.apply
        outputs = hand_over(self._anchor, one) if form.trained else one.forward()
        found = dict(zip(wants, outputs, strict=True))
        if "hidden" in found:
            found["hidden"] = found["hidden"][:given, :length]
        for name in LOG_PROBS & found.keys():
            # The caller keeps it beyond the next forward pass, which may overwrite it.
            found[name] = found[name][:given].clone()
        return found

    def make_ahead(self, lengths: Sequence[int], may_go_on: Callable[[], bool]) -> tuple[int, int]:
        """Capture graphs of further lengths for every form that is known, the longest first.

        Padding passes through the model; nothing is trained, and no random number is drawn. It ends
        early where memory becomes short, and where a graph cannot be captured.

        Args:
            lengths: Tokens per row.
            may_go_on: Called before each graph; False ends it.

        Returns:
            How many graphs were made, and how many are left.
        """
        trained = [form for form in self._passes if form.way != "evaluated"]
        kinds = dict.fromkeys(replace(form, length=0) for form in trained)
        buckets = dict.fromkeys(bucket(n, self._longest) for n in sorted(lengths, reverse=True))
        forms = [replace(kind, length=length) for length in buckets for kind in kinds]
        wanted = [form for form in forms if form not in self._passes] if self._capture else []
        for made, form in enumerate(wanted):
            if not (self._has_room_for(form) and may_go_on()):
                return made, len(wanted) - made
            batch = StaticBatch(form, self._device, self._pad_id)
            self._program.embed(batch, batch.input_ids)
            self._passes[form] = self._make(batch)
        return len(wanted), 0

    def _has_room_for(self, form: Form) -> bool:
        """Whether another graph may be captured before it is needed."""
        if not self._capture or self._count(form.way) >= MOST_GRAPHS:
            return False
        if self._device.type != "cuda":
            return True
        free, total = torch.cuda.mem_get_info(self._device)
        return free >= KEPT_FREE * total

    def _count(self, way: Way) -> int:
        return sum(form.way == way for form in self._passes)

    def begin(self) -> None:
        """Copy the weights of rank 0 to every rank."""
        self._gradients.share_weights()

    def average_gradients(self) -> None:
        """Average the gradients over all ranks, because there is no DDP module to do it."""
        self._gradients.average_over_ranks()

    def make_room(self, *, outside: bool = True) -> None:
        """Free the graphs before other passes if the device may not hold both.

        No pass outside can use the memory of the graphs. In lean mode no other memory is left, and
        a pass without gradients needs no more than the graphs do.

        Args:
            outside: Whether the passes run outside of this object.
        """
        if (self._program.is_lean and outside) or (
            self._device.type == "cuda" and _free(self._device) < _idle(self._device)
        ):
            self.release()

    def release(self) -> None:
        """Free the memory of all captured graphs and of the gradients, which are dropped.

        Both are made again when needed.
        """
        self._passes.clear()
        self._evaluated.clear()
        self._graphs = None
        self._gradients.release()

    def _pass_for(self, form: Form, inputs: dict[str, Any]) -> GraphPass:
        known = self._passes.get(form)
        if form.way == "evaluated":
            self._evaluated[form] += 1
            if self._evaluated[form] == OFTEN and self._has_room_for(form):
                known = None
        if known is None:
            batch = StaticBatch(form, self._device, self._pad_id)
            self._put(inputs, batch)
            known = self._passes[form] = self._make(batch)
            if known.batch is batch:
                return known
        self._put(inputs, known.batch)
        return known

    def _put(self, inputs: dict[str, Any], batch: StaticBatch) -> None:
        batch.fill(inputs)
        self._program.embed(batch, inputs["input_ids"])

    def _make(self, batch: StaticBatch) -> GraphPass:
        rare = batch.form.way == "evaluated" and self._evaluated[batch.form] < OFTEN
        if rare:
            return Direct(self._program, batch, self._gradients)
        if self._capture and self._count(batch.form.way) >= MOST_GRAPHS:
            self._capture = False
            self._warn(batch.form, f"there are {MOST_GRAPHS} graphs already")
        if self._capture:
            try:
                self._graphs = self._graphs or Graphs()
                return Captured(self._program, batch, self._gradients, self._graphs)
            except torch.OutOfMemoryError:
                larger = self._larger(batch.form)
                if larger is not None:
                    self._log("warning", _shared_graph_text(batch.form, larger.batch.form))
                    return larger
                self._warn(batch.form, "not enough free GPU memory for its graph")
            except Exception as error:  # noqa: BLE001 -- a model's own code may raise anything
                self._capture = False
                self._warn(batch.form, _cause(error))
        return Direct(self._program, batch, self._gradients)

    def _larger(self, form: Form) -> GraphPass | None:
        """Return the captured graph with the least padding that holds a form; None without one."""
        fitting = [
            one
            for known, one in self._passes.items()
            if isinstance(one, Captured)
            and known.length > form.length
            and replace(known, length=form.length) == form
        ]
        return min(fitting, key=lambda one: one.batch.form.length, default=None)

    def _warn(self, form: Form, reason: str) -> None:
        self._log(
            "warning", f"fast mode: micro-batches of {form} run without a CUDA graph: {reason}"
        )


def _free(device: torch.device) -> int:
    free, _ = torch.cuda.mem_get_info(device)
    return free


def _idle(device: torch.device) -> int:
    """Return the bytes that the allocator holds unused between two steps, mostly for graphs."""
    return torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def _shared_graph_text(form: Form, other: Form) -> str:
    return (
        f"fast mode: not enough free GPU memory for a graph for {form}; such micro-batches "
        f"are padded to the graph for {other}"
    )


def _cause(error: BaseException) -> str:
    """Return the first error of a failed capture; ending the capture raises another one."""
    while error.__context__ is not None:
        error = error.__context__
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


class _Handover(torch.autograd.Function):
    """A whole pass as a single node of an autograd graph."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, one: GraphPass) -> tuple[Tensor, ...]:
        ctx.one = one
        return tuple(output.view_as(output) for output in one.forward())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:
        ctx.one.backward(gradients)
        return None, None
