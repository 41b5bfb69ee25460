"""What streamed mode costs, for `fttui check` and `fttui run`: traffic, time and host memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...text.format import plural, size

if TYPE_CHECKING:
    from fttui.engine.config.memory.fit import Fit
    from fttui.engine.config.memory.hardware import Hardware


def streaming_cost(found: Fit, hardware: Hardware) -> Iterator[str]:
    """Yield lines on the copies of weights and the host memory of a streamed run; else none."""
    train, estimate = found.config.train, found.estimate
    if not train.streams:
        return
    if hardware.devices:
        yield _traffic(found, hardware)
    yield (
        f"host memory: {size(estimate.host)} for weights and what is kept beside them, most of it "
        f"page-locked; {size(found.host_free_bytes)} free"
    )
    if larger := _larger_micro_batch(found):
        accumulate = train.accumulation * train.micro_batch_size // larger
        yield (
            f"note: every micro-batch copies all weights; train.batch: {larger} and "
            f"train.accumulate: {accumulate} would fit, with the same gradient, and copy them "
            f"{plural(accumulate, 'time')} per step instead of {train.accumulation}"
        )


def _traffic(found: Fit, hardware: Hardware) -> str:
    from fttui.engine.config.memory.streaming import link_bytes_per_s, link_text

    copied, passes = found.estimate.copied, found.config.train.accumulation
    link = hardware.devices[0].link
    seconds = copied / link_bytes_per_s(link)
    # Of a link that is not known, the figure is no bound.
    bound = "at least" if link else "about"
    step = f", {bound} {passes * seconds:.2f} s a step" if passes > 1 else ""
    return (
        f"streamed weights: {size(copied)} for each micro-batch, {bound} {seconds:.2f} s over "
        f"{link_text(link)}{step}; copied beside the computation, so that a step takes the longer "
        "of the two"
    )


def _larger_micro_batch(found: Fit) -> int | None:
    """Return the largest micro-batch with the same gradient that surely fits; None without one."""
    from fttui.engine.config.memory.fit import surely_fits
    from fttui.engine.config.memory.micro_batch import why_batch_matters

    train = found.config.train
    if found.divided or why_batch_matters(found.config):
        return None
    total = train.accumulation * train.micro_batch_size
    sizes = [n for n in range(total, train.micro_batch_size, -1) if total % n == 0]
    return next((n for n in sizes if surely_fits(found, n)), None)
