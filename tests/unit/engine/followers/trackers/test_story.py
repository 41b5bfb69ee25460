from __future__ import annotations

import msgspec
import pytest

from fttui.engine.followers.trackers.deliveries import Note, Points, Sample
from fttui.engine.followers.trackers.story import Story
from fttui.engine.protocol.benchmarks.result import BenchmarkFinished
from fttui.engine.protocol.event_parts import Culprit, CulpritSearch, DataFinding
from fttui.engine.protocol.events import (
    AnyEvent,
    CulpritsFound,
    DataFindingsChanged,
    NoteAdded,
    Record,
    RolledBack,
    RunEnded,
    StateChanged,
)
from fttui.engine.protocol.races.variant_step import VariantStep
from fttui.engine.protocol.states import RunState
from tests.support.benchmarks import result
from tests.support.journaled import records


def told(event: AnyEvent) -> Note:
    found = Story().add(Record(seq=1, time=0.0, step=3, timeline=1, event=event))
    assert isinstance(found, Note)
    return found


def test_a_timeline_knows_where_it_comes_from_and_who_wanted_it() -> None:
    story = Story()
    for record in records():
        story.add(record)
    second = story.timelines[2]
    assert (second.parent, second.start_step) == (1, 4)
    assert second.reason == "rolled back from step 6 to 4 by ann: a spike"
    assert story.ended is not None


def test_each_kind_of_record_becomes_what_trackers_take() -> None:
    story = Story()
    found = [item for record in records() if (item := story.add(record))]
    points = [item for item in found if isinstance(item, Points)]
    assert [(item.step, item.timeline) for item in points if "train/loss" in item.metrics] == [
        *((step, 1) for step in range(1, 7)), *((step, 2) for step in range(5, 9)),
    ]  # fmt: skip
    assert points[0].metrics["train/loss.ce"] == 2.0
    assert "train/grad_norm" not in points[0].metrics, "what was not measured is left out"
    assert points[0].metrics["speed/step_s"] == 0.0
    assert [item.metrics["eval/loss"] for item in points if "eval/loss" in item.metrics] == [0.5]
    assert [item.text for item in found if isinstance(item, Sample)] == ["there"]
    notes = [item for item in found if isinstance(item, Note)]
    assert [item.kind for item in notes] == [
        "start", "checkpoint", "anomaly", "rollback", "command", "end",
    ]  # fmt: skip
    assert [item.alarm for item in notes] == [False, False, True, False, False, False]


def test_a_timeline_whose_rollback_was_lost_is_still_told() -> None:
    story = Story()
    last = records()[-1]
    story.add(msgspec.structs.replace(last, timeline=3))
    assert (story.timelines[3].parent, story.timelines[3].start_step) == (1, 8)


@pytest.mark.parametrize(
    ("event", "kind", "text", "alarm"),
    [
        (NoteAdded(text="look", issuer="ann"), "note", "look (ann)", False),
        (StateChanged(state=RunState.HALTED, detail="NaN"), "anomaly", "halted: NaN", True),
        (
            RunEnded(state=RunState.FAILED, exit_code=11, error="out of memory"),
            "end",
            "failed: out of memory",
            True,
        ),
        (
            RolledBack(
                checkpoint="c", from_step=9, to_step=4, old_timeline=1, new_timeline=2,
                skipped_batches=8,
            ),
            "rollback",
            "rolled back from step 9 to 4, 8 batches skipped",
            False,
        ),
        (
            CulpritsFound(
                anomaly="a1",
                anomaly_step=3,
                search=CulpritSearch(
                    verdict="found",
                    culprits=[
                        Culprit(
                            id="s7",
                            loss=2.0,
                            loss_without=1.0,
                            grad_norm=1.0,
                            grad_norm_without=1.0,
                        )
                    ],
                ),
            ),
            "anomaly",
            "search for culprits of a1: found: s7",
            False,
        ),
        (
            DataFindingsChanged(
                findings=[
                    DataFinding(reason="cut", text="truncated", unit="records", count=1, total=4)
                ]
            ),
            "data",
            "1 of 4 records (25 %) truncated",
            False,
        ),
    ],
)  # fmt: skip
def test_events_in_words(event: AnyEvent, kind: str, text: str, alarm: bool) -> None:
    note = told(event)
    assert (note.kind, note.text, note.alarm) == (kind, text, alarm)


def test_a_benchmark_is_a_point_at_its_checkpoint_or_a_note_where_that_run_is_closed() -> None:
    story = Story()
    for record in records():
        story.add(record)
    finished = BenchmarkFinished(result=result(0.75, step=6, timeline=2))
    found = story.add(Record(seq=90, time=0.0, step=8, timeline=2, event=finished))
    assert isinstance(found, Points)
    assert (found.step, found.timeline, found.metrics) == (6, 2, {"bench/words.acc": 0.75})
    earlier = BenchmarkFinished(result=result(0.75, step=4, timeline=1))
    note = story.add(Record(seq=91, time=0.0, step=8, timeline=2, event=earlier))
    assert isinstance(note, Note)
    assert note.text == earlier.result.text


def test_a_step_of_a_variant_is_a_point_on_the_timeline_of_the_variant() -> None:
    story = Story()
    for record in records():
        story.add(record)
    step = VariantStep(variant="lr 2e-4", at=9, loss=1.5, metrics={"loss": 1.75})
    found = story.add(Record(seq=90, time=0.0, step=8, timeline=2, event=step))
    assert isinstance(found, Points)
    assert (found.seq, found.step, found.timeline) == (90, 9, 2)
    assert found.metrics == {"train/loss": 1.5, "eval/loss": 1.75}
