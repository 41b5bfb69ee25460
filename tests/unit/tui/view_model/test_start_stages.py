"""The stages of a start and their seconds, as the records of a real start give them."""

from __future__ import annotations

from fttui.engine.protocol.events import AnyEvent, LogEmitted, ProgressMade, Record, RunStarted
from fttui.tui.view_model.start.stages import (
    EXPECTED,
    FIRST_STEP,
    IMPORT,
    StartStage,
    after_record,
    ahead,
)


def _started(*devices: str) -> RunStarted:
    return RunStarted(
        name="demo", incarnation=1, pid=1, host="vm", world_size=1, task="sft", model="m",
        total_steps=10, micro_batch_size=1, accumulation=1, devices=list(devices),
    )  # fmt: skip


def _progress(label: str, done: float, total: float) -> ProgressMade:
    return ProgressMade(label=label, done=done, total=total)


def _after(*timed: tuple[float, AnyEvent]) -> tuple[StartStage, ...]:
    stages: tuple[StartStage, ...] = ()
    for seq, (time, event) in enumerate(timed, 1):
        record = Record(seq=seq, time=time, step=0, timeline=1, event=event)
        stages = after_record(stages, record)
    return stages


def test_a_stage_lasts_until_it_is_complete_or_the_next_begins() -> None:
    stages = _after(
        (0.0, _started()),
        (5.0, _progress("Loading tokenizer", 0, 1)),
        (6.0, _progress("Loading weights", 0, 272)),
        (7.0, LogEmitted(level="info", text="quantizing")),
        (8.0, _progress("Loading weights", 136, 272)),
        (9.0, _progress("Loading weights", 272, 272)),
        (9.5, _progress("reading a.jsonl", 0, 0)),
        (11.0, _started("cpu")),
    )
    assert [(s.name, s.seconds(20.0)) for s in stages] == [
        (IMPORT, 5.0), ("tokenizer", 1.0), ("weights", 3.0), ("records", 1.5), (FIRST_STEP, 9.0),
    ]  # fmt: skip
    assert stages[2].share == 1.0
    assert stages[3].share is None


def test_stages_ahead_are_those_after_the_newest() -> None:
    assert ahead(()) == EXPECTED
    newest = _after((0.0, _started()), (1.0, _progress("Loading weights", 1, 4)))
    assert ahead(newest) == ("adapters", "records", "tokens", FIRST_STEP)
    assert ahead(_after((0.0, _started()), (1.0, _started("cpu")))) == ()


def test_an_unknown_progress_is_a_stage_of_its_own_name() -> None:
    stages = _after((0.0, _started()), (1.0, _progress("Converting the model", 1, 4)))
    assert (stages[-1].name, stages[-1].share) == ("Converting the model", 0.25)


def test_what_comes_before_the_first_step_does_not_end_it() -> None:
    stages = _after((0.0, _started()), (1.0, _started("cpu")), (4.0, _progress("evaluating", 1, 2)))
    assert [(s.name, s.until, s.share) for s in stages] == [
        (IMPORT, 1.0, None), ("evaluating", None, 0.5), (FIRST_STEP, None, None),
    ]  # fmt: skip


def test_another_start_begins_anew() -> None:
    stages = _after((0.0, _started()), (1.0, _started("cpu")), (9.0, _started()))
    assert [s.name for s in stages] == [IMPORT]
