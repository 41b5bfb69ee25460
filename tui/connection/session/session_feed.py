"""Delivery of records, heartbeats and link changes from a session to its listener."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from ...view_model.connection_port import Deliver, Delivery, Link, LinkChanged
from ..history_reader import ReadPosition
from .record_merger import RecordMerger, deliveries


class SessionFeed:
    """Delivers what was received from a run; each record once, in order and without gaps."""

    def __init__(self) -> None:
        self.merger = RecordMerger()
        self.last_crc: int | None = None
        """crc32 of the newest delivered record; None before the first one."""
        self.link: Link | None = None
        """The state of the connection as last delivered; None before the first delivery."""
        self.was_live = False
        """Whether the link has been LIVE at least once."""
        self._detail = ""
        self._listener: Deliver | None = None

    @property
    def last_seq(self) -> int:
        """The sequence number of the newest delivered record; 0 before the first one."""
        return self.merger.last_seq

    def start(self, listener: Deliver) -> None:
        """Deliver to a listener from now on, first of all that the session is connecting."""
        self._listener = listener
        self.set_link(Link.CONNECTING)

    def deliver(self, delivery: Delivery) -> None:
        """Hand a delivery to the listener; without a listener it is dropped."""
        if self._listener is not None:
            self._listener(delivery)

    def set_link(self, link: Link, detail: str = "") -> None:
        """Deliver the state of the connection if it, or the reason for it, has changed."""
        self.was_live |= link is Link.LIVE
        if (link, detail) != (self.link, self._detail):
            self.link, self._detail = link, detail
            self.deliver(LinkChanged(link, detail))

    def start_after(self, position: ReadPosition) -> None:
        """Expect the record after a position next: those up to it were delivered or left out."""
        self.merger.last_seq, self.last_crc = position.seq, position.crc

    def live(self, payloads: Iterable[bytes]) -> None:
        """Deliver encoded records of the live stream, as far as no older one is missing.

        Records behind a gap wait until it is filled; beyond a limit they are dropped and read from
        the journal later.
        """
        self._deliver_records(self.merger.live(payloads))

    def history(self, payloads: Iterable[bytes]) -> None:
        """Deliver encoded records of the journal that were not delivered before."""
        self._deliver_records(self.merger.history(payloads))

    def _deliver_records(self, payloads: list[bytes]) -> None:
        if payloads:
            self.last_crc = zlib.crc32(payloads[-1])
        for delivery in deliveries(payloads):
            self.deliver(delivery)
