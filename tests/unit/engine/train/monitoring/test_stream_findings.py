"""What is found in a stream reaches the journal while it is read."""

from __future__ import annotations

import logging

import pytest

from fttui.engine.config.data_reasons import CUT, NO_TARGET
from fttui.engine.data.findings import Findings
from fttui.engine.protocol.events import AnyEvent, DataFindingsChanged, RunEnded
from fttui.engine.protocol.states import RunState
from fttui.engine.train.event_log import EventLog
from fttui.engine.train.monitoring.stream_findings import EVERY_S, StreamFindings


class Stream:
    """A stream whose findings grow, and the events that are recorded about them."""

    def __init__(self, accepted: tuple[str, ...] = ()) -> None:
        self.now = 0.0
        self.known, self.streamed = Findings(), Findings()
        self.known.counted("records", 10)
        self.known.note(CUT, "eval.jsonl:1")
        self.event_log = EventLog(None)
        self.events: list[AnyEvent] = []
        self.reports = StreamFindings(
            self.known, self.streamed, accepted, self.event_log, lambda: self.now
        )
        self.event_log.listen(self.events.append)

    def read(self, records: int, cut: int = 0, dropped: int = 0) -> list[dict[str, int]]:
        """Read records and return what is newly published, by reason."""
        self.streamed.counted("records", records)
        self.streamed.note(CUT, "t.jsonl:5", count=cut)
        self.streamed.note(NO_TARGET, "t.jsonl:6", count=dropped)
        before = len(self.events)
        self.reports.report()
        new = [one for one in self.events[before:] if isinstance(one, DataFindingsChanged)]
        return [{found.reason: found.count for found in one.findings} for one in new]


def test_a_new_reason_is_published_at_once_with_what_was_known_before() -> None:
    stream = Stream()
    assert stream.read(5) == []
    assert stream.read(5, cut=2) == [{"cut": 3}]
    assert stream.read(5, dropped=1) == [{"cut": 3, "no-target": 1}]


def test_a_growing_count_is_published_when_it_is_time() -> None:
    stream = Stream()
    stream.read(5, cut=1)
    stream.now = EVERY_S - 1
    assert stream.read(5, cut=1) == []
    stream.now = EVERY_S
    assert stream.read(5) == [{"cut": 3}]
    stream.now = 3 * EVERY_S
    assert stream.read(5) == []


def test_the_final_counts_are_published_before_the_run_ends() -> None:
    stream = Stream()
    stream.read(5, cut=1)
    stream.now = 1.0
    assert stream.read(5, cut=2) == []
    stream.event_log.record(RunEnded(state=RunState.FINISHED, exit_code=0))
    *_, changed, ended = stream.events
    assert isinstance(ended, RunEnded)
    assert isinstance(changed, DataFindingsChanged)
    assert [one.count for one in changed.findings] == [4]


def test_a_large_share_is_logged_once_unless_it_is_accepted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        Stream(accepted=("no-target",)).read(10, dropped=5)
        assert not caplog.messages
        stream = Stream()
        stream.read(10, dropped=5)
        stream.now = EVERY_S
        stream.read(10, dropped=5)
    assert len(caplog.messages) == 1
    assert "5 of 10 records (50 %) dropped" in caplog.messages[0]
    assert "data.accept: [no-target]" in caplog.messages[0]
