"""From what a profiler recorded to where the time of a step went, and what to do about it."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec

from ..protocol.events import KernelTime, ProfilePart, StepsProfiled

STEP, MICRO_BATCH = "step", "micro-batch"
PARTS = ("data", "forward", "backward", "judge", "update")
VERDICT = "verdict"
"""Judging the step before, within the first micro-batch of the next."""
_LONGEST = 12
_NS = 1e9


@dataclass(frozen=True, slots=True)
class Activity:
    """Something that began and ended, in nanoseconds of one clock."""

    name: str
    start_ns: int
    end_ns: int
    thread: int = 0
    """Of the host, or the stream of the device."""
    launched_ns: int | None = None
    """When the host asked for a kernel; None where that is not known."""

    @property
    def began_ns(self) -> int:
        """When the host began it."""
        return self.start_ns if self.launched_ns is None else self.launched_ns


@dataclass(frozen=True)
class Recording:
    """What was recorded, sorted out."""

    spans: Sequence[Activity]
    """Named parts on the host: `step` and `PARTS`; `micro-batch` is forward and backward."""
    kernels: Sequence[Activity]
    operations: Sequence[Activity]
    """On the host."""


@dataclass(frozen=True)
class ProfileContext:
    """What the advice depends on."""

    flops: float
    """Useful ones per step."""
    peak_flops_per_s: float | None
    batch: int
    accumulate: int
    checkpointed: bool
    fast: bool
    """Whole micro-batches are launched at once."""
    free_bytes: int | None
    """Of the device, at the peak."""


def summarise(
    recording: Recording, setting: ProfileContext, trace: str = ""
) -> StepsProfiled | None:
    """The figures of the recorded steps; None when no whole step was recorded."""
    windows = [span for span in recording.spans if span.name == STEP]
    if not windows:
        return None
    steps, total_ns = len(windows), sum(w.end_ns - w.start_ns for w in windows)
    kernels = _within(recording.kernels, windows)
    work = kernels or _self_times(_within(recording.operations, windows))
    busy_ns = _covered(kernels)
    found = StepsProfiled(
        steps=steps,
        step_s=total_ns / steps / _NS,
        parts=_parts(recording, windows, kernels),
        kinds=_by_kind(work, steps),
        kernels=_longest(work, steps),
        idle=max(0.0, 1 - busy_ns / total_ns) if kernels else None,
        launches=len(kernels) / steps,
        flops=setting.flops,
        peak_flops_per_s=setting.peak_flops_per_s,
        trace=trace,
    )
    return _advised(found, setting)


def _within(activities: Iterable[Activity], windows: Sequence[Activity]) -> list[Activity]:
    first, last = windows[0].start_ns, windows[-1].end_ns
    near = [a for a in activities if a.end_ns > first and a.start_ns < last]
    if len(windows) == 1:
        return near
    return [a for a in near if any(w.start_ns <= a.start_ns < w.end_ns for w in windows)]


def _covered(activities: Iterable[Activity]) -> int:
    """Nanoseconds in which at least one of them was under way."""
    covered = end = 0
    for activity in sorted(activities, key=lambda a: a.start_ns):
        covered += max(0, activity.end_ns - max(end, activity.start_ns))
        end = max(end, activity.end_ns)
    return covered


def _parts(
    recording: Recording, windows: Sequence[Activity], kernels: Sequence[Activity]
) -> list[ProfilePart]:
    host: dict[str, int] = defaultdict(int)
    for span in _within(recording.spans, windows):
        host[span.name] += span.end_ns - span.start_ns
    device = _device_times(_within(recording.spans, windows), kernels)
    per_step = _NS * len(windows)
    return [
        ProfilePart(
            name=name,
            host_s=_of_part(name, host) / per_step,
            device_s=_of_part(name, device) / per_step if kernels else None,
        )
        for name in (*PARTS, "other")
    ]


def _of_part(name: str, times: dict[str, int]) -> int:
    """Parts lie beside each other, but for what is within a micro-batch."""
    if name == "forward":
        return max(0, times[MICRO_BATCH] - times["backward"] - times[VERDICT])
    if name == "judge":
        return times["judge"] + times[VERDICT]
    if name == "other":
        inside = times[MICRO_BATCH] + sum(times[part] for part in ("data", "judge", "update"))
        return max(0, times[STEP] - inside)
    return times[name]


def _device_times(spans: Sequence[Activity], kernels: Sequence[Activity]) -> dict[str, int]:
    """Nanoseconds of kernels by the part in which the host started them, on whatever thread."""
    found: dict[str, int] = defaultdict(int)
    in_order = sorted(kernels, key=lambda k: k.began_ns)
    starts = [kernel.began_ns for kernel in in_order]
    for span in spans:
        first, last = bisect_left(starts, span.start_ns), bisect_left(starts, span.end_ns)
        found[span.name] += _covered(in_order[first:last])
    found[STEP] = _covered(in_order)
    return found


def _self_times(operations: Iterable[Activity]) -> list[Activity]:
    """Operations cut down to the time in which none of their own parts was under way."""
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
    ("matrix products", r"gemm|gemv|cutlass|cublas|nvjet|xmma|::a?d?d?b?mm\b|matmul|linear"),
)


def kind_of(name: str) -> str:
    """What a kernel or operation is for, by its name."""
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
"""Idle above this: the device could do a third more without a faster kernel."""
_SLOW_DATA = 0.1
_MUCH_TALK = 0.15
_MUCH_UNPACKING = 0.25
"""Share of busy time spent on 4-bit weights: it is per micro-batch, whatever its size."""
_MUCH_UPDATE = 0.15
_ROOM_BYTES = 2 * 2**30
_LOW_MFU = 0.3


def _advised(found: StepsProfiled, setting: ProfileContext) -> StepsProfiled:
    advice = [*_on_waiting(found, setting), *_on_work(found, setting)]
    if not advice and found.mfu is not None and found.mfu >= _LOW_MFU:
        advice = ["nothing stands out: the device is busy with the model's own arithmetic"]
    return msgspec.structs.replace(found, advice=advice)


def _on_waiting(found: StepsProfiled, setting: ProfileContext) -> Iterable[str]:
    host = {part.name: part.host_s / found.step_s for part in found.parts}
    if host["data"] > _SLOW_DATA:
        yield (
            f"{host['data']:.0%} of the step waits for data: put it on a faster disk, or set "
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
    if share.get("communication", 0) > _MUCH_TALK:
        yield f"{share['communication']:.0%} is communication: raise train.accumulate"
    if share.get("dequantization", 0) > _MUCH_UNPACKING and setting.accumulate > 1:
        yield (
            f"{share['dequantization']:.0%} unpacks 4-bit weights, once per micro-batch: a larger "
            "train.batch with a smaller train.accumulate does it less often"
        )
    if share.get("optimizer", 0) > _MUCH_UPDATE:
        yield f"{share['optimizer']:.0%} is the update: raise train.accumulate, or lower adapter.r"
    if setting.checkpointed and (setting.free_bytes or 0) > _ROOM_BYTES:
        yield (
            f"{(setting.free_bytes or 0) / 2**30:.1f} GiB stay free: activations need not be "
            "computed twice with train.activation_checkpointing: false"
        )
