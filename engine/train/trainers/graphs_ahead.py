"""Graphs ahead: captures the graphs of the lengths that a run will meet before its first step.

Otherwise each length would hold up the step in which it first occurs, by a second or more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from ...config.memory.micro_batch import divides_by_length
from ...config.schema import RunConfig
from ..cuda_graphs.buckets import buckets_ahead

MOST_S = 30.0
"""Seconds after which no further graph is begun before the first step."""


def make_graphs_ahead(
    config: RunConfig,
    trainer: Any,
    examples: Sequence[Any],
    steps: int,
    *,
    asks: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, str]:
    """Make the graphs that a run is likely to need, and return the fact to show.

    It ends early after `MOST_S`, or when a command interrupts it; then, and for lengths that are
    rare, graphs are made when they are needed. Without graphs there is no fact.

    Args:
        config: configuration of the run.
        trainer: the trainer, with which a micro-batch was tried.
        examples: all training examples.
        steps: optimizer steps of the run.
        asks: whether to look for commands, which then apply to the present step; False if a
            checkpoint has yet to be restored.
        clock: returns a time in seconds.
    """
    train, begun = config.train, clock()
    lengths = buckets_ahead(
        [example.row_length for example in examples],
        1 if divides_by_length(config) else train.micro_batch_size,
        steps * train.accumulation,
        config.data.max_length,
    )

    def may_go_on() -> bool:
        in_time = clock() - begun < MOST_S
        return in_time and (not asks or bool(trainer.step_loop.may_continue()))

    made, left = trainer.forward.make_ahead(lengths, may_go_on)
    if not made + left:
        return {}
    text = f"{made} more made before the first step in {clock() - begun:.1f} s"
    return {"graphs": f"{text}; {left} are made when they are needed" if left else text}
