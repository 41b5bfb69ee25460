"""A node that is gone without closing its sockets is noticed by its silence."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from fttui.engine.train.distributed.node_heartbeat import NodeHeartbeat, Silence
from fttui.engine.train.distributed.nodes import NodePlace

from .test_nodes import DictStore


def test_the_node_that_is_silent_for_longest_is_lost_after_the_limit() -> None:
    silence = Silence([1, 2], now=0.0)
    silence.observe(1, b"1", 3.0)
    silence.observe(2, b"1", 4.0)
    silence.observe(2, b"1", 9.0)
    assert silence.lost(12.9, 10.0) is None
    assert silence.lost(13.1, 10.0) == 1
    silence.observe(1, b"2", 13.5)
    assert silence.lost(14.1, 10.0) == 2


def test_a_single_node_watches_nobody() -> None:
    assert Silence([], now=0.0).lost(1e9, 1.0) is None
    started = threading.active_count()
    NodeHeartbeat(DictStore, NodePlace(), lambda node: None)
    NodeHeartbeat(DictStore, NodePlace(1, 2, local_rank=1), lambda node: None)
    assert threading.active_count() == started


class CutStore(DictStore):
    """A store whose connection fails after a few counts."""

    def set(self, key: str, value: str) -> None:
        if int(value) > 3:
            raise RuntimeError("connection reset")
        super().set(key, value)


def _lost_of(place: NodePlace, connect: Callable[[], DictStore]) -> int:
    lost: list[int] = []
    noticed = threading.Event()

    def note(node: int) -> None:
        lost.append(node)
        noticed.set()

    NodeHeartbeat(connect, place, note, limit_s=0.2, every_s=0.01)
    assert noticed.wait(20)
    return lost[0]


def _unreachable() -> DictStore:
    raise RuntimeError("no route")


@pytest.mark.parametrize("connect", [DictStore, CutStore, _unreachable])
def test_a_node_that_cannot_reach_the_others_takes_them_for_lost(
    connect: Callable[[], DictStore],
) -> None:
    assert _lost_of(NodePlace(1, 2), connect) == 0
    assert _lost_of(NodePlace(0, 2), connect) == 1


def test_nodes_that_count_are_not_lost_until_one_ends() -> None:
    store, lost = DictStore(), list[int]()
    beats = [
        NodeHeartbeat(lambda: store, NodePlace(node, 2), lost.append, limit_s=2, every_s=0.01)
        for node in range(2)
    ]
    with suppress(TimeoutError):
        threading.Event().wait(0.3)
    assert not lost
    for beat in beats:
        beat.end()
