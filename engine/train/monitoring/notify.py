"""Alerts outside the screen: webhook, Slack, Discord, mail and whatever else apprise speaks.

Where to is a secret and comes from the environment alone; neither it nor an error that may quote it
is ever logged.
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
from ..event_log import EventLog

log = logging.getLogger(__name__)

URLS = "FTTUI_NOTIFY_URLS"
"""Environment variable with apprise URLs, separated by spaces or commas."""
_WAITING = 50
"""Messages that may wait; more are dropped, so that a dead service costs nothing."""
_FINISH_S = 5.0
"""How long the end of a run waits for the last message."""

Send = Callable[[str, str], bool]


class Notifier:
    """Sends what a person away from the screen should know, on a thread of its own."""

    def __init__(self, run: str, send: Send, complain: Callable[[str], None]) -> None:
        self._run = run
        self._send = send
        self._complain = complain
        self._complained = False
        self._waiting: queue.Queue[tuple[str, str] | None] = queue.Queue(_WAITING)
        self._thread = threading.Thread(target=self._work, name="notify", daemon=True)
        self._thread.start()

    def hear(self, event: AnyEvent) -> None:
        """Take an event in; returns at once."""
        if (text := wording(event)) is None:
            return
        try:
            self._waiting.put_nowait((f"fttui {self._run}", text))
        except queue.Full:
            self._fail("too many notifications wait; some are dropped")

    def close(self) -> None:
        """Send what waits, within a few seconds."""
        try:
            self._waiting.put(None, timeout=_FINISH_S)
        except queue.Full:
            return
        self._thread.join(_FINISH_S)

    def _work(self) -> None:
        while (message := self._waiting.get()) is not None:
            try:
                sent = self._send(*message)
            except Exception as error:  # noqa: BLE001  # a plug-in may raise anything
                self._fail(f"a notification failed with {type(error).__name__}")
            else:
                if not sent:
                    self._fail(f"a notification was not accepted; check ${URLS}")

    def _fail(self, text: str) -> None:
        if not self._complained:
            self._complained = True
            self._complain(f"{text} (told once)")


def wording(event: AnyEvent) -> str | None:
    """What is sent about an event; None for most."""
    text = None
    match event:
        case AnomalyRaised(severity=severity) if severity == ALARM:
            first = f"; recommended: {event.actions[0]}" if event.actions else ""
            text = f"{event.kind.replace('_', ' ')}: {event.headline}{first}"
        case AnomalyResolved(verdict="not recovered"):
            text = f"{event.id} has not recovered"
        case AutopilotDecided():
            text = f"autopilot: {event.decision} {event.command} ({event.reason})"
        case ProbationEnded():
            how = "held" if event.passed else f"did not hold: {event.reason}"
            text = f"the recovery to {event.checkpoint} {how}"
        case StateChanged(state=RunState.HALTED):
            text = f"halted: {event.detail}"
        case RunEnded():
            text = f"{event.state.value}{': ' + event.error if event.error else ''}"
        case _:
            pass
    return text


def start_notifier(run: str, event_log: EventLog) -> Notifier | None:
    """A notifier that listens to the run; None where no URL is given or apprise is not there."""
    urls = os.environ.get(URLS, "").replace(",", " ").split()
    if not urls:
        return None
    send = _apprise(urls)
    if send is None:
        log.warning("$%s is set, but apprise is missing: pip install 'fttui[notify]'", URLS)
        return None
    notifier = Notifier(run, send, log.warning)
    event_log.listen(notifier.hear)
    return notifier


def _apprise(urls: list[str]) -> Send | None:
    try:
        import apprise
    except ImportError:
        return None
    # What it logs may quote an address, and with it the secret.
    logging.getLogger("apprise").propagate = False
    services: Any = apprise.Apprise()
    for url in urls:
        services.add(url)
    return lambda title, body: bool(services.notify(title=title, body=body))
