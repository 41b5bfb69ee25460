from __future__ import annotations

import pytest

from fttui.engine.followers.alerts.messages import Message
from fttui.engine.followers.alerts.outbox import Outbox, QuietHours

NIGHT = QuietHours.parse("22:00-07:00")
NOON, EVENING, MORNING = 12 * 60, 23 * 60, 7 * 60


def message(kind: str, text: str = "") -> Message:
    return Message(kind=kind, incident=text or kind, text=text or kind)


def outbox(*kinds: str, mute: str = "", quiet: QuietHours | None = NIGHT, most: int = 20) -> Outbox:
    box = Outbox(frozenset(mute.split()), quiet, most)
    for kind in kinds:
        box.put(message(kind))
    return box


def send(box: Outbox, now: float, minute: int) -> str | None:
    if not (due := box.due(now, minute)):
        return None
    text = box.text(due)
    box.sent(due, now)
    return text


@pytest.mark.parametrize(
    ("text", "minute", "quiet"),
    [
        ("22:00-07:00", 22 * 60, True),
        ("22:00-07:00", 3 * 60, True),
        ("22:00-07:00", 7 * 60, False),
        ("22:00-07:00", 12 * 60, False),
        ("9:30-17:00", 9 * 60 + 29, False),
        ("9:30-17:00", 9 * 60 + 30, True),
        ("0:00-0:00", 600, True),
    ],
)
def test_quiet_hours(text: str, minute: int, quiet: bool) -> None:
    assert QuietHours.parse(text).hold(minute) is quiet


def test_by_day_each_message_is_sent_by_itself() -> None:
    box = outbox("alarm", "finished")
    assert [send(box, 0, NOON), send(box, 1, NOON), send(box, 2, NOON)] == [
        "alarm", "finished", None,
    ]  # fmt: skip


def test_by_night_only_what_is_urgent_is_sent_and_the_rest_as_one_in_the_morning() -> None:
    box = outbox("alarm", "failed", "recovery", "disk")
    assert [send(box, n, EVENING) for n in range(3)] == ["failed", "disk", None]
    assert send(box, 9, MORNING) == "alarm\nrecovery"
    assert box.empty
    box.put(message("alarm", "another"))
    box.put(message("finished"))
    assert send(box, 10, NOON) == "another", "afterwards each is sent by itself again"


def test_a_muted_kind_is_never_sent() -> None:
    box = outbox("finished", "alarm", mute="finished recovery")
    assert send(box, 0, NOON) == "alarm"
    assert box.empty


def test_what_was_not_taken_stays() -> None:
    box = outbox("alarm")
    assert box.due(0, NOON) == box.due(1, NOON) != []


def test_an_hour_has_a_limit_and_what_waited_is_one_message() -> None:
    box = outbox("a", "b", "c", "d", "e", quiet=None, most=2)
    assert [send(box, n, NOON) for n in range(4)] == ["a\nb\nc\nd\ne", None, None, None]
    box = outbox("a", "b", quiet=None, most=2)
    assert [send(box, 0, NOON), send(box, 1, NOON)] == ["a", "b"]
    for kind in "cdef":
        box.put(message(kind))
    assert send(box, 3599, NOON) is None
    assert send(box, 3600, NOON) == "c\nd\ne\nf"


def test_too_many_waiting_messages_are_dropped_and_counted() -> None:
    box = Outbox(frozenset(), None, 1)
    for number in range(205):
        box.put(message("alarm", f"m{number}"))
    text = send(box, 0, NOON)
    assert text is not None
    assert text.startswith("m5\nm6\n")
    assert text.endswith("5 older messages were dropped")
