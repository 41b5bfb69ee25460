"""Profile summary: where the time of the recorded steps went, and advice from it."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec

from ..protocol.event_parts import KernelTime, ProfilePart
from ..protocol.events import StepsProfiled

STEP, MICRO_BATCH = "step", "micro-batch"
PARTS = ("data", "forward", "backward", "judge", "update")
VERDICT = "verdict"
"""Span in which the previous step is checked, within the first micro-batch of the next step."""
AT_BOUNDARY = "at boundary"
"""Span of evaluations, checkpoints, commands and pauses between two steps; no part of a step."""
_LONGEST = 12
_NS = 1e9


@dataclass(frozen=True, slots=True)
class Activity:
    """A recorded span, kernel or operation, in nanoseconds of one clock."""

    name: str
    start_ns: int
    end_ns: int
    thread: int = 0
    """Thread of the host, or stream of the device."""
    launched_ns: int | None = None
    """When the host launched the kernel; None if that is not known, and for host activities."""

    @property
    def began_ns(self) -> int:
        """When the host launched the activity, or when it started if that is not known."""
        return self.start_ns if self.launched_ns is None else self.launched_ns


@dataclass(frozen=True)
class Recording:
    """The recorded activities by kind."""

    spans: Sequence[Activity]
    """Named spans on the host: `step`, `PARTS` and `micro-batch`, which is forward and backward."""
    kernels: Sequence[Activity]
    operations: Sequence[Activity]
    """Operations on the host."""


@dataclass(frozen=True)
class ProfileContext:
    """The settings and device figures that the advice depends on."""

    flops: float
    """Useful floating-point operations per step."""
    peak_flops_per_s: float | None
    batch: int
    accumulate: int
    checkpointed: bool
    fast: bool
    """Whether whole micro-batches are launched as CUDA graphs."""
    free_bytes: int | None
    """GPU memory that no process has reserved; None without a GPU."""


def summarise(
    recording: Recording, setting: ProfileContext, trace: str = ""
) -> StepsProfiled | None:
    """Summarise the recorded steps, with advice; None if no whole step was recorded.

    `trace` is the file of the trace that the summary names.
    """
    windows = _windows(recording.spans)
    if not windows:
        return None
    steps = sum(span.name == STEP for span in recording.spans)
    total_ns = sum(w.end_ns - w.start_ns for w in windows)
    kernels = _within(recording.kernels, windows)
    work = kernels or _self_times(_within(recording.operations, windows))
    busy_ns = _covered(kernels)
    found = StepsProfiled(
        steps=steps,
        step_s=total_ns / steps / _NS,
        parts=_parts(recording, windows, kernels, steps),
        kinds=_by_kind(work, steps),
        kernels=_longest(work, steps),
        idle=max(0.0, 1 - busy_ns / total_ns) if kernels else None,
        launches=len(kernels) / steps,
        flops=setting.flops,
        peak_flops_per_s=setting.peak_flops_per_s,
        trace=trace,
    )
    return _advised(found, setting)


def _windows(spans: Sequence[Activity]) -> list[Activity]:
    """Return the time from the first step to the end of the last one, as windows.

    Work at a boundary, such as an evaluation, separates two windows; anything else that the host
    does between two steps delays the run, and counts.
    """
    steps = sorted((s for s in spans if s.name == STEP), key=lambda s: s.start_ns)
    if not steps:
        return []
    rest = Activity(STEP, steps[0].start_ns, steps[-1].end_ns)
    windows = []
    for work in sorted((s for s in spans if s.name == AT_BOUNDARY), key=lambda s: s.start_ns):
        if rest.start_ns < work.start_ns < rest.end_ns:
            windows.append(replace(rest, end_ns=work.start_ns))
            rest = replace(rest, start_ns=work.end_ns)
    return [*windows, rest]


def _within(activities: Iterable[Activity], windows: Sequence[Activity]) -> list[Activity]:
    first, last = windows[0].start_ns, windows[-1].end_ns
    near = [a for a in activities if a.end_ns > first and a.start_ns < last]
    if len(windows) == 1:
        return near
    return [a for a in near if any(w.start_ns <= a.start_ns < w.end_ns for w in windows)]


def _covered(activities: Iterable[Activity]) -> int:
    """Return the nanoseconds in which at least one of the activities ran."""
    covered = end = 0
    for activity in sorted(activities, key=lambda a: a.start_ns):
        covered += max(0, activity.end_ns - max(end, activity.start_ns))
        end = max(end, activity.end_ns)
    return covered


def _parts(
    recording: Recording, windows: Sequence[Activity], kernels: Sequence[Activity], steps: int
) -> list[ProfilePart]:
    host: dict[str, int] = defaultdict(int)
    for span in _within(recording.spans, windows):
        host[span.name] += span.end_ns - span.start_ns
    host[STEP] = sum(w.end_ns - w.start_ns for w in windows)
    device = _device_times(_within(recording.spans, windows), kernels)
    per_step = _NS * steps
    return [
        ProfilePart(
            name=name,
            host_s=_of_part(name, host) / per_step,
            device_s=_of_part(name, device) / per_step if kernels else None,
        )
        for name in (*PARTS, "other")
    ]


def _of_part(name: str, times: dict[str, int]) -> int:
    """Return the time of a part without the parts nested in it.

    `judge` includes the verdict on the step before; `other` is the time that no part covers.
    """
    if name == "forward":
        return max(0, times[MICRO_BATCH] - times["backward"] - times[VERDICT])
    if name == "judge":
        return times["judge"] + times[VERDICT]
    if name == "other":
        inside = times[MICRO_BATCH] + sum(times[part] for part in ("data", "judge", "update"))
        return max(0, times[STEP] - inside)
    return times[name]


def _device_times(spans: Sequence[Activity], kernels: Sequence[Activity]) -> dict[str, int]:
    """Return the nanoseconds of kernels by the span in which any host thread launched them.

    Those of `step` are the nanoseconds of all kernels.
    """
    found: dict[str, int] = defaultdict(int)
    in_order = sorted(kernels, key=lambda k: k.began_ns)
    starts = [kernel.began_ns for kernel in in_order]
    for span in spans:
        first, last = bisect_left(starts, span.start_ns), bisect_left(starts, span.end_ns)
        found[span.name] += _covered(in_order[first:last])
    found[STEP] = _covered(in_order)
    return found


def _self_times(operations: Iterable[Activity]) -> list[Activity]:
    """Return the operations shortened by the time of the operations nested in them."""
    found: list[Activity] = []
    inside: dict[int, list[tuple[Activity, int]]] = defaultdict(list)
    for operation in sorted(operations, key=lambda o: (o.start_ns, -o.end_ns)):
        stack = inside[operation.thread]
        while stack and stack[-1][0].end_ns <= operation.start_ns:
            found.append(_shortened(*stack.pop()))
        if stack:
            outer, taken = stack[-1]
            stack[-1] = outer, taken + operation.end_ns - operation.start_ns
        stack.append((operation, 0))
    return found + [_shortened(*item) for stack in inside.values() for item in stack]


def _shortened(operation: Activity, taken_ns: int) -> Activity:
    return replace(operation, end_ns=max(operation.start_ns, operation.end_ns - taken_ns))


_KINDS = (
    ("communication", r"nccl|gloo|all_?reduce|all_?gather"),
    ("copies", r"memcpy|memset|copy|pin_memory|_to_"),
    ("dequantization", r"dequant"),
    ("optimizer", r"adam|lion|lamb(?!da)|adafactor|multi_tensor|optimizer|blockwise8bit|quantize"),
    ("attention", r"flash|fmha|attention|sdp|cudnn_mha"),
    (
        "matrix products",
        r"gemm|gemv|cutlass|cublas|nvjet|xmma|::a?d?d?b?mm_?\b|gemm_4bit|matmul|linear",
    ),
)


def kind_of(name: str) -> str:
    """Return the kind of a kernel or operation by its name, such as attention or copies.

    One that no pattern matches is `elementwise`.
    """
    low = name.lower()
    return next((kind for kind, words in _KINDS if re.search(words, low)), "elementwise")


def _by_kind(work: Iterable[Activity], steps: int) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    kinds: dict[str, str] = {}
    for activity in work:
        kind = kinds.setdefault(activity.name, kind_of(activity.name))
        found[kind] += (activity.end_ns - activity.start_ns) / _NS / steps
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _longest(work: Iterable[Activity], steps: int) -> list[KernelTime]:
    seconds: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    for activity in work:
        seconds[activity.name] += (activity.end_ns - activity.start_ns) / _NS / steps
        counts[activity.name] += 1
    longest = sorted(seconds, key=lambda name: -seconds[name])[:_LONGEST]
    return [
        KernelTime(name=n[:120], kind=kind_of(n), seconds=seconds[n], count=counts[n] / steps)
        for n in longest
    ]


_WAITING = 0.25
"""Idle share above which a run is launch-bound; a device without idle time does a third more."""
_SLOW_DATA = 0.1
_MUCH_COMMUNICATION = 0.15
_MUCH_DEQUANTIZATION = 0.25
"""Share of busy time on 4-bit weights; its cost per micro-batch does not depend on the batch."""
_MUCH_UPDATE = 0.15
_ROOM_BYTES = 2 * 2**30
_LOW_MFU = 0.3


def _advised(found: StepsProfiled, setting: ProfileContext) -> StepsProfiled:
    advice = [*_on_waiting(found, setting), *_on_work(found, setting)]
    if not advice and found.mfu is not None and found.mfu >= _LOW_MFU:
        advice = ["nothing to improve: the device spends its time on the arithmetic of the model"]
    return msgspec.structs.replace(found, advice=advice)


def _on_waiting(found: StepsProfiled, setting: ProfileContext) -> Iterable[str]:
    host = {part.name: part.host_s / found.step_s for part in found.parts}
    if host["data"] > _SLOW_DATA:
        yield (
            f"{host['data']:.0%} of the step waits for data: put the data on a faster disk, or set "
            "data.packing for short records"
        )
    if found.idle is not None and found.idle > _WAITING and host["data"] <= _SLOW_DATA:
        way = "raise train.batch" if setting.fast else "set train.fast: on, or raise train.batch"
        yield (
            f"launch-bound: the device waits {found.idle:.0%} of the step for the host, which "
            f"starts {found.launches:,.0f} kernels; {way}"
        )


def _on_work(found: StepsProfiled, setting: ProfileContext) -> Iterable[str]:
    busy = sum(found.kinds.values()) or 1.0
    share = {kind: seconds / busy for kind, seconds in found.kinds.items()}
    if share.get("communication", 0) > _MUCH_COMMUNICATION:
        yield (
            f"{share['communication']:.0%} of the busy time is communication between ranks: raise "
            "train.accumulate to communicate less often"
        )
    if share.get("dequantization", 0) > _MUCH_DEQUANTIZATION and setting.accumulate > 1:
        yield (
            f"{share['dequantization']:.0%} of the busy time dequantizes 4-bit weights, once per "
            "micro-batch: raise train.batch and lower train.accumulate to do it less often, or set "
            "train.batch: auto with train.sequences_per_update"
        )
    if share.get("optimizer", 0) > _MUCH_UPDATE:
        yield (
            f"{share['optimizer']:.0%} of the busy time is the optimizer: raise train.accumulate, "
            "or lower adapter.r"
        )
    if setting.checkpointed and (setting.free_bytes or 0) > _ROOM_BYTES:
        yield (
            f"{(setting.free_bytes or 0) / 2**30:.1f} GiB of device memory stay free: set "
            "train.activation_checkpointing: false, so that activations are not recomputed"
        )
