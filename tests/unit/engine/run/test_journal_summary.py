from __future__ import annotations

from fttui.engine.protocol.codec import encode
from fttui.engine.protocol.events import (
    AnomalyRaised,
    AnomalyResolved,
    AnyEvent,
    CommandApplied,
    CommandFailed,
    Record,
    RunEnded,
    RunStarted,
    StepFinished,
)
from fttui.engine.protocol.states import RunState
from fttui.engine.run.journal_summary import JournalSummary, summarize_journal
from tests.contract.examples import example

ENDED = RunEnded(state=RunState.STOPPED, exit_code=130, error="stopped at once")
RAISED = AnomalyRaised(id="a1", kind="spike", severity="alarm", headline="a spike")
STEP = StepFinished(loss=1.0)


def summary(*events: tuple[int, int, AnyEvent]) -> JournalSummary:
    """Summarize a journal of (step, timeline, event)."""
    return summarize_journal(
        encode(Record(seq=seq, time=float(seq), step=step, timeline=timeline, event=event))
        for seq, (step, timeline, event) in enumerate(events, start=1)
    )


def test_an_empty_journal() -> None:
    empty = summary()
    assert (empty.status.incarnation, empty.status.reported) == (0, None)
    assert (empty.step, empty.timeline, empty.newest) == (0, 1, None)
    assert empty.status.exit_code is None


def test_the_newest_timeline_counts() -> None:
    found = summary((9, 1, STEP), (4, 2, STEP), (5, 2, StepFinished(loss=0.5)))
    assert (found.timeline, found.step, found.loss) == (2, 5, 0.5)


def test_a_new_timeline_starts_at_the_step_rolled_back_to() -> None:
    assert summary((9, 1, STEP), (4, 2, example(CommandApplied))).step == 4


def test_commands_with_an_outcome_are_answered() -> None:
    failed = CommandFailed(id="a", command="eval", reason="", issuer="me")
    applied = CommandApplied(id="b", command="eval", old="", new="", issuer="me")
    assert summary((1, 1, failed), (1, 1, applied)).answered == {"a", "b"}


def test_anomalies_are_unresolved_until_their_verdict() -> None:
    assert summary((3, 1, RAISED)).unresolved == {"a1": 3}
    resolved = AnomalyResolved(id="a1", verdict="recovered")
    assert summary((3, 1, RAISED), (9, 1, resolved)).unresolved == {}


def test_an_end_counts_until_the_next_start() -> None:
    ended = summary((0, 1, example(RunStarted)), (1, 1, ENDED))
    assert (ended.status.exit_code, ended.status.error) == (130, "stopped at once")
    again = summary((0, 1, example(RunStarted)), (1, 1, ENDED), (1, 1, example(RunStarted)))
    assert (again.status.exit_code, again.status.error) == (None, "")


def test_the_plan_is_the_newest_start_s() -> None:
    start = example(RunStarted)
    assert isinstance(start, RunStarted)
    assert summary((0, 1, start)).total_steps == start.total_steps > 0
