from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from fttui.engine.protocol.events import (
    AnomalyRaised,
    AnyEvent,
    AutopilotDecided,
    LogEmitted,
    RunEnded,
    StateChanged,
    StepFinished,
)
from fttui.engine.protocol.states import RunState
from fttui.engine.train.event_log import EventLog
from fttui.engine.train.monitoring.notify import URLS, Notifier, start_notifier, wording

ALARM = AnomalyRaised(
    id="a", kind="grad_explosion", severity="alarm", headline="×20", actions=["recover a"]
)


def noted(into: list[Any], message: Any) -> bool:
    """Keep a message, as a service that takes it does."""
    into.append(message)
    return True


def test_alarms_halts_and_the_end_are_sent_and_steps_are_not() -> None:
    sent: list[tuple[str, str]] = []
    notifier = Notifier("r1", lambda *m: noted(sent, m), print)
    events: list[AnyEvent] = [
        StepFinished(loss=1.0),
        ALARM,
        StateChanged(state=RunState.HALTED, detail="loss is nan"),
        StateChanged(state=RunState.RUNNING),
        RunEnded(state=RunState.FAILED, exit_code=11, error="out of memory"),
    ]
    for event in events:
        notifier.follow(event)
    notifier.close()
    assert sent == [
        ("fttui r1", "grad explosion: ×20; recommended: recover a"),
        ("fttui r1", "halted: loss is nan"),
        ("fttui r1", "failed: out of memory"),
    ]


@pytest.mark.parametrize(
    ("decision", "does"), [("act", "sends"), ("propose", "proposes"), ("wait", "does not send")]
)
def test_a_decision_of_the_autopilot_is_a_sentence(decision: str, does: str) -> None:
    event = AutopilotDecided(anomaly="a", decision=decision, command="recover a", reason="loss 9")
    assert wording(event) == f"the autopilot {does} `recover a` (loss 9)"


def test_a_failure_is_told_once_and_never_with_what_it_says() -> None:
    said: list[str] = []

    def fail(*message: str) -> bool:
        raise OSError("https://user:secret@host refused")

    notifier = Notifier("r1", fail, said.append)
    for _ in range(3):
        notifier.follow(ALARM)
    notifier.close()
    assert len(said) == 1
    assert "secret" not in said[0]


def test_a_dead_service_never_holds_up_training() -> None:
    said: list[str] = []
    release = threading.Event()
    notifier = Notifier("r1", lambda *m: release.wait(30), said.append)
    for _ in range(200):
        notifier.follow(ALARM)
    assert len(said) == 1
    release.set()
    notifier.close()


def test_without_an_address_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(URLS, raising=False)
    assert start_notifier("r1", EventLog(None)) is None


def test_addresses_come_from_the_environment_and_stay_out_of_the_journal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    added: list[str] = []
    told: list[str] = []
    services = SimpleNamespace(add=added.append, notify=lambda title, body: noted(told, body))
    monkeypatch.setitem(sys.modules, "apprise", SimpleNamespace(Apprise=lambda: services))
    monkeypatch.setenv(URLS, "json://secret@a, slack://secret/b")
    event_log = EventLog(None)
    logged: list[AnyEvent] = []
    event_log.listen(logged.append)
    notifier = start_notifier("r1", event_log)
    assert notifier is not None
    event_log.record(ALARM)
    notifier.close()
    assert added == ["json://secret@a", "slack://secret/b"]
    assert len(told) == 1
    assert not [event for event in logged if isinstance(event, LogEmitted)]
