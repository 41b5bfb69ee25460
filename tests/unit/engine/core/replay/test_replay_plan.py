"""The way to an anomaly is read from the journal: its checkpoint, steps, skipped data, settings."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from fttui.engine.core.replay.replay_plan import (
    MOST_EARLIER_STEPS,
    ReplayPlan,
    Unrepeatable,
    plan_replay,
)
from fttui.engine.protocol.commands import Quarantine, SetMix, SkipBatches
from fttui.engine.protocol.events import (
    AnomalyRaised,
    AnyEvent,
    CheckpointSaved,
    CommandApplied,
    Record,
    RolledBack,
    RunStarted,
    StepFinished,
)
from fttui.engine.protocol.settings import RunSettings


class Journal:
    """A journal that is written event by event."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.step = 0

    def add(self, event: AnyEvent) -> Journal:
        seq = len(self.records) + 1
        record = Record(seq=seq, time=0.0, step=self.step, timeline=1, event=event)
        self.records.append(record)
        return self

    def train(self, steps: int, lr: float = 0.1) -> Journal:
        for _ in range(steps):
            self.step += 1
            self.add(StepFinished(loss=float(self.step), grad_norm=1.0, lr=lr, clip=0.5))
        return self

    def save(self, name: str = "") -> Journal:
        return self.add(CheckpointSaved(name=name or f"s{self.step}", size_bytes=1, seconds=0.0))

    def alarm(self, name: str = "bad", kind: str = "spike", severity: str = "alarm") -> Journal:
        return self.add(AnomalyRaised(id=name, kind=kind, severity=severity, headline="odd"))

    def back(self, name: str, step: int, skip: int = 0) -> Journal:
        event = RolledBack(
            checkpoint=name,
            from_step=self.step,
            to_step=step,
            old_timeline=1,
            new_timeline=2,
            skipped_batches=skip,
        )
        self.step = step
        return self.add(event)

    def plan(self, anomaly: str = "", known: Sequence[str] = ("s0", "s4", "s8")) -> ReplayPlan:
        return plan_replay(lambda: self.records, anomaly, known, 2)


def settings(*ids: str) -> CommandApplied:
    command = Quarantine(ids=ids)
    now = RunSettings(quarantine=ids)
    return CommandApplied(id="c", command="quarantine", applied=command, settings=now)


def test_the_newest_checkpoint_before_the_anomaly_begins_the_way() -> None:
    plan = Journal().save().train(4).save().train(3).alarm().save("after").train(2).plan()
    assert (plan.anomaly, plan.checkpoint) == ("bad", "s4")
    assert [(one.step, one.position, one.loss) for one in plan.steps] == [
        (5, 0, 5.0), (6, 2, 6.0), (7, 4, 7.0),
    ]  # fmt: skip
    assert {(one.lr, one.clip, one.skipped) for one in plan.steps} == {(0.1, 0.5, False)}


def test_steps_before_the_anomaly_are_planned_from_an_earlier_checkpoint() -> None:
    plan = Journal().save().train(4).save().train(2).alarm().plan()
    assert plan.usual is not None
    assert plan.wider is not None
    assert (plan.checkpoint, plan.wider.checkpoint, plan.wider.earlier) == ("s4", "s0", 3)
    assert [one.step for one in plan.wider.steps] == [1, 2, 3, 4, 5, 6]
    assert (plan.wider.noise, plan.wider.usual) == (plan.noise, plan.usual)


def test_fewer_steps_are_planned_if_no_checkpoint_is_from_before_all_of_them() -> None:
    journal = Journal().save().train(4).save().train(2).alarm()
    wider = journal.plan(known=["s4"]).wider
    assert wider is not None
    assert (wider.checkpoint, wider.earlier) == ("s4", 1)
    assert Journal().train(4).save().train(1).alarm().plan().wider is None


def test_the_steps_of_an_incident_since_its_first_alarm_are_planned_too() -> None:
    journal = Journal().save().train(10).alarm("first").train(2)
    later = AnomalyRaised(id="later", kind="spike", severity="alarm", headline="", incident="first")
    wider = journal.add(later).plan("later").wider
    assert wider is not None
    assert wider.earlier == 5
    journal.train(20).add(replace(later, id="last"))
    wider = journal.plan("last").wider
    assert wider is not None
    assert wider.earlier == MOST_EARLIER_STEPS


def test_a_checkpoint_of_the_anomalys_own_step_comes_too_late() -> None:
    journal = Journal().save().train(4).save().alarm()
    assert journal.plan().checkpoint == "s0"


def test_a_removed_checkpoint_is_passed_over() -> None:
    journal = Journal().save().train(4).save().train(1).alarm()
    assert journal.plan(known=["s0"]).checkpoint == "s0"
    with pytest.raises(Unrepeatable, match="no checkpoint from before bad"):
        journal.plan(known=["s5"])


def test_steps_that_a_rollback_undid_are_left_out_and_its_skipped_data_counted() -> None:
    journal = Journal().train(4).save().train(3).back("s4", 4, skip=3).train(2, lr=0.2).alarm()
    plan = journal.plan()
    assert [(one.step, one.position, one.lr) for one in plan.steps] == [(5, 6, 0.2), (6, 8, 0.2)]


def test_an_anomaly_that_was_rolled_back_is_reached_on_its_own_way() -> None:
    journal = Journal().train(4).save().train(3).alarm("old").back("s4", 4, skip=3).train(2)
    plan = journal.plan("old")
    assert [(one.step, one.position, one.lr) for one in plan.steps] == [
        (5, 0, 0.1), (6, 2, 0.1), (7, 4, 0.1),
    ]  # fmt: skip


def test_skipped_data_move_the_position_unless_a_resume_took_them_back() -> None:
    skip = CommandApplied(id="c", command="skip 2", applied=SkipBatches(steps=2))
    journal = Journal().train(4).save().train(1).add(skip).train(1).alarm()
    assert [one.position for one in journal.plan().steps] == [0, 6]
    resumed = RunStarted(
        name="n", incarnation=2, pid=1, host="h", world_size=1, task="sft", model="m",
        total_steps=9, micro_batch_size=1, accumulation=2, devices=["cpu"],
        resumed_from="s4", start_step=4, quarantine=["q"],
    )  # fmt: skip
    journal = Journal().train(4).save().add(skip).add(resumed).train(1).alarm()
    (step,) = journal.plan().steps
    assert (step.position, step.quarantine) == (0, ("q",))


def test_a_resume_from_a_checkpoint_without_a_record_keeps_the_data_skipped_before_it() -> None:
    skip = CommandApplied(id="c", command="skip 2", applied=SkipBatches(steps=2))
    journal = Journal().train(4).save().train(1).add(skip).train(2).add(skip)
    journal.back("copy", 7).train(1).alarm()
    assert [one.position for one in journal.plan().steps] == [0, 6, 8, 10]
    journal.back("copy", 6).train(1).alarm("again")
    assert [one.position for one in journal.plan("again").steps] == [0, 6, 8]


def test_every_step_has_the_quarantine_of_its_time() -> None:
    journal = Journal().train(4).save().train(1).add(settings("a")).train(1).alarm()
    assert [one.quarantine for one in journal.plan().steps] == [(), ("a",)]
    journal.back("s4", 4).train(1).alarm("later")
    assert [one.quarantine for one in journal.plan("later").steps] == [("a",)]


def mixed(**weights: float) -> CommandApplied:
    command = SetMix(weights=weights)
    return CommandApplied(id="c", command="mix", applied=command, settings=RunSettings(mix=weights))


def test_every_step_has_the_mix_of_its_time() -> None:
    journal = Journal().train(4).save().train(1).add(mixed(a=1, b=2)).train(1).alarm()
    assert [one.mix for one in journal.plan().steps] == [{}, {"a": 1, "b": 2}]


def test_steps_that_the_journal_lost_are_named() -> None:
    journal = Journal().train(4).save().train(2)
    del journal.records[-2]
    with pytest.raises(Unrepeatable, match="lacks some of the steps 5 to 6"):
        journal.alarm().plan()


def test_what_no_sample_can_explain_is_refused() -> None:
    journal = Journal().train(4).save().train(2).alarm("slow", kind="throughput_drop")
    with pytest.raises(Unrepeatable, match="was raised yet"):
        journal.plan()
    with pytest.raises(Unrepeatable, match="kind throughput_drop, which samples do not cause"):
        journal.plan("slow")
    with pytest.raises(Unrepeatable, match="no anomaly has the id none"):
        journal.plan("none")


def test_an_alert_that_one_record_explains_can_be_searched_and_a_hint_not_by_itself() -> None:
    journal = Journal().train(4).save().train(1).alarm("odd", severity="watch").train(1)
    assert journal.plan().anomaly == "odd"
    assert journal.alarm("hint", severity="info").plan().anomaly == "odd"
