"""Node heartbeat: detects the loss of a node whose sockets stay open, such as after a cut link.

The first rank of every node increments a counter in the store of the rendezvous. Node 0 watches the
counters of all others, and these watch that of node 0. A node that cannot reach the store sees no
counter change, so node 0 counts as lost there.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from .nodes import KeyStore, NodePlace

log = logging.getLogger(__name__)

LIMIT_S = float(os.environ.get("FTTUI_NODE_TIMEOUT_S", "20"))
"""Seconds without a change of a node's counter after which the node counts as lost."""
_EVERY_S = 2.0


class Silence:
    """How long the counts of other nodes have not changed; pure, the clock is passed in."""

    def __init__(self, nodes: list[int], now: float) -> None:
        self._seen: dict[int, tuple[bytes, float]] = dict.fromkeys(nodes, (b"", now))

    def observe(self, node: int, count: bytes, now: float) -> None:
        """Note the count of a node."""
        if count != self._seen[node][0]:
            self._seen[node] = (count, now)

    def lost(self, now: float, limit_s: float) -> int | None:
        """Return a node whose count has not changed for longer than the limit, or None."""
        silent = {node: now - since for node, (_, since) in self._seen.items()}
        worst = max(silent, key=lambda node: silent[node], default=None)
        return worst if worst is not None and silent[worst] > limit_s else None


class NodeHeartbeat:
    """Counts up for this node and calls back once if another node is lost."""

    def __init__(
        self,
        connect: Callable[[], KeyStore],
        place: NodePlace,
        on_lost: Callable[[int], None],
        limit_s: float = LIMIT_S,
        every_s: float = _EVERY_S,
    ) -> None:
        """Start the threads, if this is the first rank of one of several nodes.

        Args:
            connect: opens a connection of its own to the store, since its calls may block.
            place: the place of this rank.
            on_lost: called in a thread with the number of the lost node.
            limit_s: seconds without a sign of a node after which it is lost.
            every_s: seconds between two counts.
        """
        self._connect = connect
        self._node = place.node
        self._others = [0] if place.node else list(range(1, place.nodes))
        self._on_lost = on_lost
        self._limit_s = limit_s
        self._every_s = every_s
        self._ended = threading.Event()
        self._silence = Silence(self._others, time.monotonic())
        if place.several and place.local_rank == 0:
            for work in (self._count, self._watch):
                threading.Thread(target=work, name=f"node {work.__name__}", daemon=True).start()

    def end(self) -> None:
        """Stop watching, because this rank ends in order or handles a loss."""
        self._ended.set()

    def _count(self) -> None:
        """Count and look at the others; ends when the store fails, which `_watch` notices."""
        try:
            store, number = self._connect(), 0
            while not self._ended.wait(self._every_s):
                number += 1
                store.set(f"alive-{self._node}", str(number))
                for node in self._others:
                    key = f"alive-{node}"
                    count = store.get(key) if store.check([key]) else b""
                    self._silence.observe(node, count, time.monotonic())
        except RuntimeError as error:
            log.warning("the rendezvous cannot be reached: %s", error)

    def _watch(self) -> None:
        while not self._ended.wait(self._every_s):
            lost = self._silence.lost(time.monotonic(), self._limit_s)
            if lost is not None:
                log.error("node %d gave no sign for %g s", lost, self._limit_s)
                self._on_lost(lost)
                return
