from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from fttui.engine.protocol.benchmarks.result import BenchmarkFinished, BenchmarkScore
from fttui.engine.protocol.command_kinds import (
    Rollback,
    SetDropout,
    SetMix,
    SetSchedule,
    SetWeightDecay,
    SkipBatches,
)
from fttui.engine.protocol.commands import AnyCommand, parse_command
from fttui.engine.protocol.events import (
    AnyEvent,
    CheckpointSaved,
    CommandApplied,
    EvalFinished,
    Record,
    RolledBack,
    RunStarted,
    StepFinished,
)
from fttui.engine.protocol.settings import RestOfSchedule, RunSettings
from fttui.tui.view_model.history.surviving import SurvivingTimeline, surviving_timeline
from tests.support.benchmarks import result

FRESH = RunSettings(clip=1.0)


@dataclass
class Journal:
    """Writes what an engine records; the settings in force survive a rollback."""

    records: list[Record] = field(default_factory=list)
    step: int = 0
    timeline: int = 1
    settings: RunSettings = FRESH
    saved: dict[str, int] = field(default_factory=dict)

    def add(self, event: AnyEvent) -> None:
        seq = len(self.records) + 1
        record = Record(seq=seq, time=0.0, step=self.step, timeline=self.timeline, event=event)
        self.records.append(record)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.step += 1
            settings = self.settings
            loss = 100.0 * self.timeline + self.step
            self.add(StepFinished(loss=loss, lr_scale=settings.lr_scale, clip=settings.clip))

    def save(self) -> str:
        name = f"step-{self.step:06d}-t{self.timeline}"
        self.saved[name] = self.step
        self.add(CheckpointSaved(name=name, size_bytes=1, seconds=0.0))
        return name

    def set(self, text: str, **changed: object) -> None:
        self.apply(parse_command(text), **changed)

    def apply(self, command: AnyCommand, **changed: object) -> None:
        before = self.settings
        self.settings = replace(before, **changed)
        self.add(CommandApplied(id="x", command="", applied=command, previous=before,
                                settings=self.settings))  # fmt: skip

    def go_back(self, name: str, skip: int = 0, **changed: object) -> None:
        self.leave(name, skip)
        self.apply(Rollback(checkpoint=name, skip=skip), **changed)

    def leave(self, name: str, skip: int = 0) -> None:
        old, at = self.timeline, self.step
        self.timeline, self.step = old + 1, self.saved.get(name, 0)
        self.add(RolledBack(checkpoint=name, from_step=at, to_step=self.step, old_timeline=old,
                            new_timeline=self.timeline, skipped_batches=skip))  # fmt: skip

    def start(self, checkpoint: str, **changed: object) -> None:
        self.settings = now = replace(self.settings, **changed)
        self.add(RunStarted(name="x", incarnation=2, pid=1, host="h", world_size=1, task="sft",
                            model="m", total_steps=99, micro_batch_size=1, accumulation=1,
                            devices=["cpu"], resumed_from=checkpoint,
                            start_step=self.saved[checkpoint], mix=now.mix,
                            weight_decay=now.weight_decay, dropout=now.dropout))  # fmt: skip

    @property
    def found(self) -> SurvivingTimeline:
        return surviving_timeline(self.records, FRESH)

    @property
    def changes(self) -> list[tuple[int, str]]:
        return [(change.step, change.command) for change in self.found.changes]


@pytest.fixture
def journal() -> Journal:
    return Journal()


def test_a_run_without_commands_has_no_changes(journal: Journal) -> None:
    journal.train(5)
    assert journal.changes == []
    assert list(journal.found.steps) == [1, 2, 3, 4, 5]


def test_settings_are_changes_at_their_step_with_all_their_digits(journal: Journal) -> None:
    journal.train(3)
    journal.set("lr set 1e-4", lr_scale=1 / 3)
    journal.train(2)
    journal.set("clip off", clip=None)
    journal.set("policy nonfinite halt", nonfinite="halt")
    journal.train(1)
    assert journal.changes == [
        (3, "lr scale 0.3333333333333333"), (5, "clip off"), (5, "policy nonfinite halt"),
    ]  # fmt: skip
    assert journal.found.unexplained == ()


def test_steps_and_settings_of_an_abandoned_timeline_are_left_out(journal: Journal) -> None:
    journal.train(4)
    name = journal.save()
    journal.set("clip 0.1", clip=0.1)
    journal.train(6)
    journal.go_back(name, clip=1.0)
    journal.train(3)
    found = journal.found
    assert journal.changes == []
    assert [event.loss for event in found.steps.values()] == [101, 102, 103, 104, 205, 206, 207]
    assert found.abandoned_steps == 6


def test_a_setting_of_an_abandoned_timeline_counts_from_the_rollback_that_keeps_it(
    journal: Journal,
) -> None:
    journal.train(4)
    name = journal.save()
    journal.train(2)
    journal.set("lr scale 0.5", lr_scale=0.5)
    journal.train(2)
    journal.go_back(name)
    journal.train(3)
    assert journal.changes == [(4, "lr scale 0.5")]
    assert journal.found.unexplained == ()


def test_several_settings_at_one_step_are_the_last_one(journal: Journal) -> None:
    journal.train(2)
    for scale in (0.5, 2.0, 0.25):
        journal.set(f"lr scale {scale}", lr_scale=scale)
    journal.set("lr reset", lr_scale=1.0)
    assert journal.changes == []


def test_skipped_data_by_command_and_by_rollback_add_up(journal: Journal) -> None:
    journal.train(2)
    name = journal.save()
    journal.train(5)
    journal.go_back(name, skip=3, lr_scale=0.5)
    journal.apply(SkipBatches(steps=2))
    journal.train(1)
    assert journal.changes == [(2, "lr scale 0.5"), (2, "skip 5")]


def test_a_clip_by_percentile_and_a_quarantine_are_typed_as_they_are_parsed(
    journal: Journal,
) -> None:
    journal.train(1)
    journal.set("clip p90", clip=0.7, clip_percentile=90.0)
    journal.set("quarantine a b", quarantine=("a b", "c"))
    journal.train(1)
    journal.set("quarantine lift c", quarantine=("a b",))
    commands = [parse_command(text) for _, text in journal.changes]
    assert journal.changes[0] == (1, "clip p90.0")
    assert commands == [
        parse_command("clip p90"),
        parse_command(["quarantine", "a b", "c"]),
        parse_command("quarantine lift c"),
    ]


def test_other_weights_of_the_sources_and_their_return_are_changes(journal: Journal) -> None:
    weights = {"code": 2.0, "math set": 1 / 3}
    journal.train(1)
    journal.set("mix code=2", mix=weights)
    journal.train(1)
    journal.set("mix reset", mix={})
    (_, mixed), (_, reset) = journal.changes
    assert parse_command(mixed) == SetMix(weights=weights)
    assert parse_command(reset) == SetMix(weights={})


def test_weight_decay_dropout_and_schedule_are_changes_with_all_digits(journal: Journal) -> None:
    journal.train(1)
    rest = RestOfSchedule(shape="cosine", start=1, lr=1e-4 / 3)
    journal.set("weight_decay 0.3", weight_decay=1 / 3)
    journal.set("dropout 0.0", dropout=0.0)
    journal.set("schedule cosine", schedule=rest)
    journal.train(1)
    journal.set("weight_decay reset", weight_decay=None)
    journal.set("schedule reset", schedule=None)
    commands = [parse_command(text) for _, text in journal.changes]
    assert commands == [
        SetWeightDecay(value=1 / 3),
        SetDropout(rate=0.0),
        SetSchedule(shape="cosine", start=1, lr=1e-4 / 3),
        SetWeightDecay(),
        SetSchedule(shape=""),
    ]


def test_the_way_leads_through_checkpoints_of_older_timelines(journal: Journal) -> None:
    """A race: three variants from one checkpoint, and on with the second."""
    journal.train(4)
    base = journal.save()
    ends = []
    for scale in (0.5, 0.25, 2.0):
        journal.go_back(base, lr_scale=scale)
        journal.train(3)
        ends.append(journal.save())
    journal.go_back(ends[1], lr_scale=0.25)
    journal.train(2)
    losses = [event.loss for event in journal.found.steps.values()]
    assert losses == [101, 102, 103, 104, 305, 306, 307, 508, 509]
    assert journal.changes == [(4, "lr scale 0.25")]
    assert journal.found.abandoned_steps == 6


def test_a_resume_from_the_last_checkpoint_goes_on(journal: Journal) -> None:
    journal.train(4)
    name = journal.save()
    journal.start(name)
    journal.train(2)
    assert list(journal.found.steps) == [1, 2, 3, 4, 5, 6]
    assert journal.found.abandoned_steps == 0


@pytest.mark.parametrize("steps_after", [0, 2])
def test_a_setting_that_a_changed_configuration_replaces_at_a_resume_ends_there(
    journal: Journal, steps_after: int
) -> None:
    journal.train(2)
    journal.set("dropout 0.5", dropout=0.5)
    journal.set("weight_decay 0.3", weight_decay=0.3)
    journal.train(2)
    name = journal.save()
    journal.train(steps_after)
    journal.start(name, dropout=None)
    journal.train(2)
    assert journal.changes == [(2, "weight_decay 0.3"), (2, "dropout 0.5"), (4, "dropout reset")]


def test_a_resume_from_an_earlier_checkpoint_leaves_the_later_steps(journal: Journal) -> None:
    journal.train(2)
    name = journal.save()
    journal.train(4)
    journal.save()
    journal.leave(name)
    journal.start(name)
    journal.train(1)
    assert [event.loss for event in journal.found.steps.values()] == [101, 102, 203]


def test_a_resume_from_a_later_checkpoint_of_an_older_timeline(journal: Journal) -> None:
    journal.train(2)
    early = journal.save()
    journal.train(4)
    late = journal.save()
    journal.go_back(early)
    journal.train(1)
    journal.step = 6
    journal.start(late)
    journal.train(1)
    assert [event.loss for event in journal.found.steps.values()] == [
        101, 102, 103, 104, 105, 106, 207,
    ]  # fmt: skip


def test_a_rollback_to_the_beginning_has_no_steps_before_it(journal: Journal) -> None:
    journal.train(3)
    journal.leave("the beginning")
    journal.train(2)
    assert [event.loss for event in journal.found.steps.values()] == [201, 202]


def test_evaluations_are_those_of_the_surviving_steps(journal: Journal) -> None:
    journal.train(1)
    name = journal.save()
    journal.add(EvalFinished(metrics={"loss": 3.0}))
    journal.train(1)
    journal.add(EvalFinished(metrics={"loss": 2.0}))
    journal.go_back(name)
    journal.add(EvalFinished(metrics={"loss": 1.0}))
    assert journal.found.evaluations == {1: {"loss": 1.0}}


def test_benchmarks_are_the_newest_of_checkpoints_that_survive(journal: Journal) -> None:
    journal.train(1)
    first = journal.save()
    journal.train(1)
    gone = journal.save()
    journal.go_back(first)
    journal.train(2)
    last = journal.save()
    for name, value in ((last, 0.7), (first, 0.5), (gone, 0.9)):
        measured = result(
            step=journal.saved[name], checkpoint=name, scores={"acc": BenchmarkScore(value=value)}
        )
        journal.add(BenchmarkFinished(result=measured))
    assert [(n, step, s.value) for n, (step, s) in journal.found.benchmarks.items()] == [
        (f"bench.{measured.task}.acc", 3, 0.7)
    ]


def test_commands_whose_record_has_no_settings_are_listed(journal: Journal) -> None:
    journal.train(2)
    for text in ("lr scale 0.5", "warmup again", "eval"):
        journal.add(CommandApplied(id="x", command=text))
    assert journal.found.left_out == ("step 2: lr scale 0.5", "step 2: warmup again")


def test_a_run_whose_first_settings_are_not_known_starts_with_those_before_its_first_command(
    journal: Journal,
) -> None:
    journal.train(2)
    journal.set("lr scale 0.5", lr_scale=0.5)
    found = surviving_timeline(journal.records, None)
    assert [(one.step, one.command) for one in found.changes] == [(2, "lr scale 0.5")]


def test_settings_that_no_command_explains_are_counted(journal: Journal) -> None:
    journal.train(2)
    journal.settings = replace(journal.settings, lr_scale=0.5)
    journal.train(3)
    assert journal.found.unexplained == (3, 4, 5)
