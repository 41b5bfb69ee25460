"""Processes with the training stack already imported: cheap to start, honest to kill."""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing import get_context
from typing import Any

from .ports import free_port

_PATIENCE_S = 60.0
"""For the other ranks to come up."""
_context = get_context("forkserver")
_context.set_forkserver_preload(["tests.support.training"])


def in_ranks(world_size: int, target: Callable[..., None], *args: Any) -> list[int]:
    """Run a function of the place and the arguments in that many ranks; their exit codes."""
    port = free_port()
    ranks = [
        _context.Process(target=_as_rank, args=(rank, world_size, port, target, args))
        for rank in range(world_size)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    return [process.exitcode or 0 for process in ranks]


def _as_rank(
    rank: int, world_size: int, port: int, target: Callable[..., None], args: tuple[Any, ...]
) -> None:
    from fttui.engine.train.distributed.place import leave_place, take_place

    if world_size > 1:
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(world_size),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            ACCELERATE_USE_CPU="true",
        )
    target(take_place(_PATIENCE_S), *args)
    leave_place()
