"""Notifications about a run through apprise: webhook, Slack, Discord, mail and others.

The addresses are secrets and come from the environment alone. They are never logged, and neither
are errors that may quote them.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

from ...core.anomaly import ALARM
from ...protocol.events import (
    AnomalyRaised,
    AnomalyResolved,
    AnyEvent,
    AutopilotDecided,
    ProbationEnded,
    RunEnded,
    StateChanged,
)
from ...protocol.states import RunState
from ...telemetry.logs import silence
from ..event_log import EventLog

log = logging.getLogger(__name__)

URLS = "FTTUI_NOTIFY_URLS"
"""Environment variable that holds the apprise URLs, separated by spaces or commas."""
_WAITING = 50
"""Largest number of waiting messages; further ones are dropped, so that a service that does not
answer costs no memory."""
_FINISH_S = 5.0
"""Seconds that the end of a run waits for the last message."""

_DECIDED = {"act": "sends", "propose": "proposes", "wait": "does not send"}

Send = Callable[[str, str], bool]


class Notifier:
    """Sends notifications for the important events of a run, from a thread of its own."""

    def __init__(self, run: str, send: Send, complain: Callable[[str], None]) -> None:
        self._run = run
        self._send = send
        self._complain = complain
        self._complained = False
        self._waiting: queue.Queue[tuple[str, str] | None] = queue.Queue(_WAITING)
        self._thread = threading.Thread(target=self._work, name="notify", daemon=True)
        self._thread.start()

    def follow(self, event: AnyEvent) -> None:
        """Queue a notification if the event calls for one; never blocks.

        If too many wait already, it is dropped.
        """
        if (text := wording(event)) is None:
            return
        try:
            self._waiting.put_nowait((f"fttui {self._run}", text))
        except queue.Full:
            self._fail("too many notifications are waiting; some are dropped")

    def close(self) -> None:
        """Send the waiting messages, for a few seconds at most."""
        try:
            self._waiting.put(None, timeout=_FINISH_S)
        except queue.Full:
            return
        self._thread.join(_FINISH_S)

    def _work(self) -> None:
        while (message := self._waiting.get()) is not None:
            try:
                sent = self._send(*message)
            except Exception as error:  # noqa: BLE001  # a plug-in of apprise may raise any exception
                self._fail(f"a notification failed with {type(error).__name__}")
            else:
                if not sent:
                    self._fail(f"a notification was not accepted; check ${URLS}")

    def _fail(self, text: str) -> None:
        if not self._complained:
            self._complained = True
            self._complain(f"{text} (further failures are not logged)")


def wording(event: AnyEvent) -> str | None:
    """Return the text that is sent about an event; None for most events."""
    text = None
    match event:
        case AnomalyRaised(severity=severity) if severity == ALARM:
            first = f"; recommended: {event.ways[0].text}" if event.ways else ""
            text = f"{event.kind.replace('_', ' ')}: {event.headline}{first}"
        case AnomalyResolved(verdict="not recovered"):
            text = f"{event.id} has not recovered"
        case AutopilotDecided():
            does = _DECIDED.get(event.decision, event.decision)
            text = f"the autopilot {does} `{event.command}` ({event.reason})"
        case ProbationEnded():
            how = "passed its probation" if event.passed else f"failed: {event.reason}"
            text = f"the recovery to {event.checkpoint} {how}"
        case StateChanged(state=RunState.HALTED):
            text = f"halted: {event.detail}"
        case RunEnded():
            text = f"{event.state.value}{': ' + event.error if event.error else ''}"
        case _:
            pass
    return text


def start_notifier(run: str, event_log: EventLog) -> Notifier | None:
    """Start a notifier for the events of a run; None without URLs or without apprise."""
    urls = os.environ.get(URLS, "").replace(",", " ").split()
    if not urls:
        return None
    send = _apprise(urls)
    if send is None:
        log.warning("$%s is set, but apprise is missing: pip install 'fttui[notify]'", URLS)
        return None
    notifier = Notifier(run, send, log.warning)
    event_log.listen(notifier.follow)
    return notifier


def _apprise(urls: list[str]) -> Send | None:
    try:
        import apprise
    except ImportError:
        return None
    silence("apprise")
    services: Any = apprise.Apprise()
    for url in urls:
        services.add(url)
    return lambda title, body: bool(services.notify(title=title, body=body))
