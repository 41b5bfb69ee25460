"""Step profiler: records whole steps with the torch profiler; measures the device's peak FLOP/s."""

from __future__ import annotations

import gzip
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from ...config.schema import RunConfig
from ...core.profile import STEP, Activity, ProfileContext, Recording, summarise
from ..event_log import EventLog
from ..profiler_spans import PREFIX, record_spans, span

WARM_UP_STEPS = 3
"""Steps to skip before a profile: the first steps of a process compile, tune and allocate."""
_PEAK_SIZE = {"cuda": 4096, "cpu": 1024}
_PEAK_TIMES = 10
_LAUNCHES = ("cu", "hip")
"""Prefixes of the runtime calls that launch kernels; call and kernel share a correlation id."""


class StepProfiler:
    """Profiles whole steps on request, journals where their time went and saves the trace.

    It costs nothing while no profile is taken.
    """

    def __init__(
        self,
        config: RunConfig,
        model: nn.Module,
        device: torch.device,
        event_log: EventLog,
        folder: Path,
        rank: int = 0,
        *,
        fast: bool = False,
        on_done: Callable[[], None] | None = None,
    ) -> None:
        self._config = config
        self._model = model
        self._device = device
        self._event_log = event_log
        self._folder = folder
        self._rank = rank
        self._fast = fast
        self._wanted = self._after = self._steps = self._left = 0
        self._profile: profile | None = None
        self._span: AbstractContextManager[object] | None = None
        self._tokens = 0
        self._on_done = on_done
        """Called when a profile has been recorded."""

    def ask(self, steps: int, after: int = 0) -> None:
        """Request a profile of whole steps.

        Args:
            steps: number of steps to profile.
            after: number of steps to skip first.
        """
        self._wanted, self._after = steps, after

    def begin_step(self) -> None:
        """Begin a step, and with it a profile if one is requested."""
        if self._wanted and self._profile is None:
            if self._after:
                self._after -= 1
                return
            self._begin()
        if self._profile is not None:
            self._span = span(STEP)
            self._span.__enter__()

    def _begin(self) -> None:
        self._steps = self._left = self._wanted
        self._wanted = self._tokens = 0
        self._sync()  # work of earlier steps does not belong to the profile
        activities = [ProfilerActivity.CPU]
        if self._device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(activities=activities)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a second cycle, which is never used
            self._profile.start()
        record_spans(on=True)

    def end_step(self, tokens: int, *, counted: bool, conclude: Callable[[], None]) -> None:
        """End a step of the profile; after a dropped step the whole profile is restarted.

        Args:
            tokens: tokens of the step on this rank.
            counted: whether the step was not dropped.
            conclude: journals the step; called before the profile that ends with it is recorded.
        """
        if self._profile is None:
            return
        if not counted or self._left == 1:
            # Not after every step: the run does not wait for the device there either.
            self._sync()
        if self._span is not None:
            self._span.__exit__(None, None, None)
        if not counted:
            self._wanted = max(self._wanted, self._steps)
            self._end()
            return
        self._tokens += tokens
        self._left -= 1
        if not self._left:
            taken = self._end()
            conclude()
            self._record(taken)

    def _sync(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _end(self) -> profile:
        assert self._profile is not None, "recording has begun"
        record_spans(on=False)
        ended, self._profile, self._span = self._profile, None, None
        ended.stop()
        return ended

    def _record(self, taken: profile) -> None:
        trace = self._save(taken)
        recording = recording_of(_events(taken))
        steps = sum(s.name == STEP for s in recording.spans)
        found = summarise(recording, self._context(steps), trace)
        if found is not None:
            self._event_log.record(found)
        if self._on_done is not None:
            self._on_done()

    def _save(self, taken: profile) -> str:
        """Save the trace, compressed; return its name, or an empty string if that failed."""
        name = f"step-{self._event_log.step}-rank-{self._rank}.json.gz"
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            plain = self._folder / f"{name}.part"
            taken.export_chrome_trace(str(plain))
            with open(plain, "rb") as source, gzip.open(self._folder / name, "wb", 1) as packed:
                shutil.copyfileobj(source, packed)
            plain.unlink()
        except OSError as error:
            self._event_log.log("error", f"the trace of the profile cannot be saved: {error}")
            return ""
        return name

    def _context(self, steps: int) -> ProfileContext:
        train = self._config.train
        tokens = self._tokens / max(steps, 1)
        length = min(
            self._config.data.max_length, tokens / (train.micro_batch_size * train.accumulation)
        )
        return ProfileContext(
            flops=tokens * useful_flops_per_token(self._model, length),
            peak_flops_per_s=peak_flops_per_s(self._device, self._precision()),
            batch=train.micro_batch_size,
            accumulate=train.accumulation,
            checkpointed=train.recomputes,
            fast=self._fast,
            free_bytes=self._free_bytes(),
        )

    def _precision(self) -> torch.dtype:
        if self._device.type == "cuda" and torch.cuda.is_bf16_supported():
            return torch.bfloat16
        return torch.float16 if self._device.type == "cuda" else torch.float32

    def _free_bytes(self) -> int | None:
        if self._device.type != "cuda":
            return None
        free, _ = torch.cuda.mem_get_info(self._device)
        return int(free)


def recording_of(events: Iterable[Any]) -> Recording:
    """Return the recorded activities as spans and operations of the host and kernels of the device.

    Args:
        events: raw events of the profiler.
    """
    host: list[Any] = []
    device: list[Any] = []
    for event in events:
        (host if event.device_type().name == "CPU" else device).append(event)
    spans: list[Activity] = []
    operations: list[Activity] = []
    for event in host:
        name = event.name()
        found = _activity(event, event.start_thread_id(), name.removeprefix(PREFIX))
        if name.startswith(PREFIX):
            spans.append(found)
        elif "::" in name:
            operations.append(found)
    # The profiler repeats the named spans of the host on the device, where they are not work.
    annotated = {event.name() for event in host}
    launched = {e.correlation_id(): e.start_ns() for e in host if e.name().startswith(_LAUNCHES)}
    kernels = [
        _activity(e, e.device_resource_id(), e.name(), launched.get(e.correlation_id()))
        for e in device
        if e.duration_ns() > 0 and e.name() not in annotated
    ]
    return Recording(spans, kernels, operations)


def _activity(event: Any, thread: int, name: str, launched_ns: int | None = None) -> Activity:
    ended = event.start_ns() + event.duration_ns()
    return Activity(name, event.start_ns(), ended, thread, launched_ns)


def _events(taken: profile) -> Iterator[Any]:
    """Yield the raw events of a profile.

    Torch's own parsing of them is avoided; it takes minutes for the steps of a large model.
    """
    results = getattr(taken.profiler, "kineto_results", None)
    yield from results.events() if results is not None else ()


def useful_flops_per_token(model: nn.Module, length: float) -> float:
    """Return the floating-point operations per token that training needs at least.

    It counts the products of linear layers in the forward pass and for the gradients of their
    inputs, those for the gradients of weights only if these are trained, and causal attention over
    half of the token pairs. Stacked experts are not counted.

    Args:
        model: the model with its adapter.
        length: tokens per sequence.
    """
    config = getattr(model, "config", None)
    text = config.get_text_config() if config is not None else None
    layers = getattr(text, "num_hidden_layers", 0)
    width = getattr(text, "hidden_size", 0)
    products = 0.0
    for module in model.modules():
        if isinstance(module, nn.Linear):
            size = float(module.in_features * module.out_features)
            products += size * (6 if module.weight.requires_grad else 4)
    return products + 3 * layers * 4 * width * length / 2


def peak_flops_per_s(device: torch.device, precision: torch.dtype) -> float | None:
    """Measure the FLOP/s of a large matrix product on the device; None if memory is too small."""
    size = _PEAK_SIZE[device.type]
    with suppress(torch.OutOfMemoryError), torch.no_grad():
        line = torch.linspace(-1, 1, size * size, device=device).view(size, size).to(precision)
        best = min(_product_s(line, device) for _ in range(3))
        return 2.0 * size**3 / best
    return None


def _product_s(matrix: torch.Tensor, device: torch.device) -> float:
    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    started = now()
    for _ in range(_PEAK_TIMES):
        torch.mm(matrix, matrix)
    return (now() - started) / _PEAK_TIMES
