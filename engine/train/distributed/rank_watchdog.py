"""Rank watchdog: ends this process if another rank is lost, even during an NCCL collective.

Rank 0 and every other rank hold an open receive from each other on a separate group. The receive
completes if the peer sends its goodbye, and fails at once if the process of the peer dies and its
sockets close. A host that loses its network closes no socket; the heartbeat of its node, or else
the timeout of the agreement, detects that case.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist

log = logging.getLogger(__name__)

_FOREVER = timedelta(days=365)
_GRACE_S = 4.0
"""Seconds for the main thread to fail in a collective by itself and end in order."""


class RankWatchdog:
    """Ends this process if a peer is lost and the main thread does not end it in time."""

    def __init__(
        self, rank: int, world_size: int, on_lost: Callable[[int], None], exit_code: int
    ) -> None:
        self.lost: int | None = None
        """The rank whose process ended without a goodbye; None if there is none."""
        self._rank = rank
        self._on_lost = on_lost
        self._exit_code = exit_code
        self._leaving = threading.Event()
        self._noticed = threading.Event()
        self._said_goodbye = False
        self._group = dist.new_group(backend="gloo", timeout=_FOREVER) if world_size > 1 else None
        self._peers = [] if world_size == 1 else [0] if rank else list(range(1, world_size))
        for peer in self._peers:
            receive = dist.irecv(torch.empty(1), src=peer, group=self._group)
            threading.Thread(
                target=self._watch, args=(peer, receive), name=f"peer-{peer}", daemon=True
            ).start()

    def _watch(self, peer: int, receive: dist.Work) -> None:
        try:
            receive.wait()
        except RuntimeError:
            if not self._said_goodbye:
                self.handle_loss(peer)

    def handle_loss(self, peer: int) -> None:
        """Record a lost rank; end this process unless `take_over` is called within `_GRACE_S`."""
        self.lost = peer if self.lost is None else self.lost
        log.error("rank %d is lost", peer)
        self._noticed.set()
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline:
            if self._leaving.wait(0.1):
                return
        self._on_lost(peer)
        os._exit(self._exit_code)

    def take_over(self, wait_s: float) -> int | None:
        """Stop the watchdog and return the rank that was lost, or None.

        Args:
            wait_s: seconds to wait for the loss, since a collective may fail a moment before it is
                noticed here.
        """
        self._leaving.set()
        self._noticed.wait(wait_s if self._peers else 0.0)
        return self.lost

    def say_goodbye(self) -> None:
        """Send the peers a message that this rank ends in order."""
        self._leaving.set()
        self._said_goodbye = True
        for peer in self._peers:
            with suppress(RuntimeError):
                dist.send(torch.zeros(1), dst=peer, group=self._group)
