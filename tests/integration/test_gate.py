"""Figures that are read late change nothing: every record is as if each had been waited for."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from fttui.engine.core.guard import NOTHING_PASSES, Limits
from fttui.engine.data.batches.batch_source import BatchSource
from fttui.engine.errors import FttuiError
from fttui.engine.protocol.events import (
    AnomalyRaised,
    CheckpointSaved,
    GradientsMeasured,
    RolledBack,
    StateChanged,
    StepFinished,
    StepsProfiled,
)
from fttui.engine.protocol.states import RunState
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.controlled_session import SessionOutcome
from fttui.engine.train.distributed.place import RankPlace
from fttui.engine.train.loop import hf_bridge
from fttui.engine.train.loop.step_conclusion import StepConclusion
from fttui.engine.train.loop.step_loop import StepLoop
from fttui.engine.train.loop.update_gate import UpdateGate, gate_of
from fttui.engine.train.trainers.pairs import PairTrainer
from fttui.engine.train.trainers.text import TextTrainer
from tests.support.matrix import in_part
from tests.support.odd_steps import odd, told
from tests.support.ranks import in_ranks
from tests.support.training import Played, Script, new_run, play, read_records

NAN, LOUD = math.nan, 300.0


@pytest.mark.parametrize(
    ("factor", "task", "sets"),
    [
        (1.0, "sft", {"train__ema": 0.9, "train__deterministic": "true"}),
        (NAN, "sft", {"guard__nonfinite": "skip", "train__ema": 0.9}),
        pytest.param(
            NAN,
            "sft",
            {"guard__nonfinite": "rollback", "checkpoint__every": 2},
            marks=pytest.mark.long,
        ),
        pytest.param(LOUD, "sft", {"train__clip": 0, "train__ema": 0.9}, marks=pytest.mark.long),
        pytest.param(LOUD, "sft", {"train__accumulate": 1}, marks=pytest.mark.long),
        pytest.param(
            LOUD,
            "sft",
            {"train__accumulate": 1, "checkpoint__every": 1, "eval__every": 2},
            marks=pytest.mark.long,
        ),
        pytest.param(
            LOUD,
            "sft",
            {"policy__autopilot": "act", "checkpoint__every": 2},
            marks=pytest.mark.long,
        ),
        (LOUD, "contrastive", {"contrastive__learn_temperature": "true"}),
        pytest.param(
            NAN, "contrastive", {"contrastive__cross_accumulation": "on"}, marks=pytest.mark.long
        ),
    ],
)
def test_every_record_is_as_if_each_verdict_had_been_waited_for(
    tmp_path: Path, factor: float, task: str, sets: Any
) -> None:
    trainer = PairTrainer if task == "contrastive" else TextTrainer
    runs = []
    for name, gate in (("late", gate_of), ("at once", no_gate)):
        with mock.patch.object(hf_bridge, "gate_of", gate), odd(trainer, 5, factor):
            (tmp_path / name).mkdir()
            runs.append(play(new_run(tmp_path / name, task, train__fast="static", **sets)))
    assert told(runs[0]) == told(runs[1])
    steps = runs[0].events(StepFinished)
    assert len(steps) >= 8
    assert any(step.skipped for step in steps) == math.isnan(factor)
    if factor == LOUD:
        measured = runs[0].at(GradientsMeasured)
        assert [step for step, _ in measured][:1] == [5]
        assert any(module.update_norm > 0 for module in measured[0][1].modules)


def play_spoiled(place: RankPlace, run: RunDirectory, factor: float, gate: Any) -> None:
    spoiled = odd(TextTrainer, 5, factor) if place.rank == 1 else nullcontext()
    with mock.patch.object(hf_bridge, "gate_of", gate), spoiled:
        play(run, place=place)


def no_gate(optimizer: object) -> None:
    """As where the device cannot give a verdict."""


@pytest.mark.parametrize(
    "factor", [NAN, pytest.param(LOUD, marks=pytest.mark.long)], ids=["nan", "loud"]
)
def test_what_is_odd_on_one_rank_is_held_back_on_both(tmp_path: Path, factor: float) -> None:
    found = []
    for name, gate in (("late", gate_of), ("at once", no_gate)):
        (tmp_path / name).mkdir()
        sets = {"train__fast": "static", "train__devices": 2, "train__batch": 2}
        run = new_run(tmp_path / name, "sft", **sets)
        assert in_ranks(2, play_spoiled, run, factor, gate) == [0, 0]
        found.append(Played(run, SessionOutcome(RunState.FINISHED, None), read_records(run)))
    assert told(found[0]) == told(found[1])
    skipped = [step for step, event in found[0].at(StepFinished) if event.skipped]
    assert skipped == ([5] if math.isnan(factor) else [])


def test_the_autopilot_recovers_from_the_same_boundary(tmp_path: Path) -> None:
    sets = {"train__steps": 34, "policy__autopilot": "act", "checkpoint__every": 5}
    sets["guard__nonfinite"] = "halt"
    runs = []
    for name, gate in (("late", gate_of), ("at once", no_gate)):
        with mock.patch.object(hf_bridge, "gate_of", gate), odd(TextTrainer, 28, NAN):
            (tmp_path / name).mkdir()
            runs.append(play(new_run(tmp_path / name, "sft", train__fast="static", **sets)))
    assert told(runs[0]) == told(runs[1])
    assert next(step for step, _ in runs[0].at(AnomalyRaised)) == 28
    assert [event.from_step for event in runs[0].events(RolledBack)] == [28]


def test_a_halt_comes_before_the_step_after_it(tmp_path: Path) -> None:
    script = Script(states={RunState.HALTED: ["stop"]})
    with odd(TextTrainer, 3, NAN):
        run = play(new_run(tmp_path, "sft", train__fast="static", guard__nonfinite="halt"), script)
    assert [step for step, _ in run.at(StepFinished)] == [1, 2, 3]
    halted = [step for step, event in run.at(StateChanged) if event.state is RunState.HALTED]
    assert halted[0] == 3


def test_what_a_person_asks_for_meets_the_boundary_it_was_asked_at(tmp_path: Path) -> None:
    script = Script({3: ["rollback 2"], 5: ["pause"]}, states={RunState.PAUSED: ["resume"]})
    sets = {"train__fast": "static", "checkpoint__every": 2}
    run = play(new_run(tmp_path, "sft", **sets), script)
    assert [(e.from_step, e.to_step) for e in run.events(RolledBack)] == [(3, 2)]
    assert [step for step, event in run.at(StateChanged) if event.state is RunState.PAUSED] == [5]
    numbers = [(r.timeline, r.step) for r in run.records if isinstance(r.event, StepFinished)]
    assert numbers == [(1, 1), (1, 2), (1, 3), *((2, step) for step in range(3, 9))]
    assert [step for step, _ in run.at(CheckpointSaved)] == [0, 2, 4, 6, 8]


def sent_in_step(number: int, text: str) -> Any:
    """A context in which a command comes while the first pass of a step is computed."""
    fetch, waiting = StepLoop.fetch, [text]

    def fetched(self: StepLoop, micro_batches: int) -> Any:
        batches = fetch(self, micro_batches)
        if self._control.position.step + 1 == number and waiting:
            self._conclusion._event_log.send(waiting.pop())  # type: ignore[attr-defined]  # of the tests
        return batches

    return mock.patch.object(StepLoop, "fetch", fetched)


@pytest.mark.parametrize(
    "command",
    in_part(["lr scale 0.5", "clip 0.3", "note here", "checkpoint", "pause"], ["lr scale 0.5"]),
)
def test_a_step_begun_with_old_weights_is_begun_again(tmp_path: Path, command: str) -> None:
    sets = {"train__fast": "static", "train__accumulate": 4, "train__batch": 2}
    runs = []
    for name, gate in (("late", gate_of), ("at once", no_gate)):
        script = Script(states={RunState.PAUSED: ["resume"]})
        with (
            mock.patch.object(hf_bridge, "gate_of", gate),
            odd(PairTrainer, 5, LOUD, micro_batches=4),
            sent_in_step(6, command),
        ):
            (tmp_path / name).mkdir()
            run = new_run(
                tmp_path / name, "contrastive", contrastive__cross_accumulation="on", **sets
            )
            runs.append(play(run, script))
    late, at_once = ([one for one in told(run) if one[2] == "StepFinished"] for run in runs)
    assert late == at_once
    assert 5 in [step for step, _ in runs[0].at(GradientsMeasured)], "it was held back"


def test_a_setting_does_not_train_past_a_halt(tmp_path: Path) -> None:
    script = Script(states={RunState.HALTED: ["stop"]})
    sets = {"train__fast": "static", "contrastive__cross_accumulation": "on"}
    with odd(PairTrainer, 3, NAN), sent_in_step(4, "lr scale 0.5"):
        run = play(new_run(tmp_path, "contrastive", guard__nonfinite="halt", **sets), script)
    assert [step for step, _ in run.at(StepFinished)] == [1, 2, 3]


def test_a_profile_is_told_after_the_steps_it_is_of(tmp_path: Path) -> None:
    run = new_run(tmp_path, "sft", train__fast="static", checkpoint__every=0)
    played = play(run, Script({2: ["profile 2"]}))
    told_of = [(r.step, type(r.event)) for r in played.records]
    profiled = next(index for index, (_, kind) in enumerate(told_of) if kind is StepsProfiled)
    finished = [step for step, kind in told_of[:profiled] if kind is StepFinished]
    assert finished[-1] == told_of[profiled][0]


def test_a_step_is_told_of_though_the_next_one_cannot_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = BatchSource.fetch

    def fails(self: BatchSource, count: int) -> Any:
        if self.position == 6:
            raise FttuiError("the disk with the data is gone")
        return fetch(self, count)

    monkeypatch.setattr(BatchSource, "fetch", fails)
    run = new_run(tmp_path, "sft", train__fast="static", checkpoint__at_start="false")
    with pytest.raises(FttuiError, match="gone"):
        play(run)
    steps = [r.step for r in read_records(run) if isinstance(r.event, StepFinished)]
    assert steps == [1, 2, 3]


def test_the_next_forward_pass_does_not_wait_for_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    forward, finish = TextTrainer.compute_loss, StepConclusion._record

    def computed(self: Any, *args: Any, **kwargs: Any) -> Any:
        happened.append(f"forward {self.state.global_step + 1}")
        return forward(self, *args, **kwargs)

    def finished(self: StepConclusion, step: Any) -> StepFinished:
        happened.append(f"told {step.number}")
        return finish(self, step)

    monkeypatch.setattr(TextTrainer, "compute_loss", computed)
    monkeypatch.setattr(StepConclusion, "_record", finished)
    sets = {"train__fast": "static", "train__steps": 4, "train__accumulate": 1}
    play(new_run(tmp_path, "sft", checkpoint__every=3, **sets))
    in_order = "forward 1, forward 2, told 1, forward 3, told 2, told 3, forward 4, told 4"
    assert ", ".join(happened) == in_order, "a checkpoint is due at step 3, and 4 is the last"


@pytest.fixture
def weight() -> torch.nn.Parameter:
    torch.manual_seed(0)
    return torch.nn.Parameter(torch.randn(4))


def test_what_is_held_back_changes_neither_weights_nor_state(weight: torch.nn.Parameter) -> None:
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    weight.grad = torch.ones(4)
    gate = UpdateGate(optimizer)
    before = weight.detach().clone()
    held = gate.judge(torch.tensor(math.nan), torch.tensor(1.0), Limits())
    with gate.closed_if(held):
        optimizer.step()
    assert torch.equal(weight, before)
    assert optimizer.state[weight]["step"] == 0
    assert not optimizer.state[weight]["exp_avg"].any()
    gate.step()
    assert not torch.equal(weight, before)
    assert optimizer.state[weight]["step"] == 1


def test_what_passes_is_the_update_it_would_have_been(weight: torch.nn.Parameter) -> None:
    other = torch.nn.Parameter(weight.detach().clone())
    one, two = (torch.optim.AdamW([p], lr=0.1, fused=True) for p in (weight, other))
    gate = UpdateGate(one)
    for number in range(3):
        weight.grad = other.grad = torch.full((4,), 0.1 + number)
        with gate.closed_if(gate.judge(torch.tensor(2.0), torch.tensor(1.0), Limits(3.0, 1.0))):
            one.step()
        two.step()
    assert torch.equal(weight, other)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 3.5, -math.inf])
def test_only_what_is_within_both_limits_passes(weight: torch.nn.Parameter, bad: float) -> None:
    gate = UpdateGate(torch.optim.AdamW([weight], fused=True))
    good = torch.tensor(1.0)
    limits = Limits.of(3.0, 3.0)
    passes_low = bad < 0
    for pair in ((torch.tensor(bad), good), (good, torch.tensor(bad))):
        assert bool(gate.judge(*pair, limits)) != passes_low
        assert limits.hold(*(float(value) for value in pair)) == passes_low
        assert gate.judge(*pair, NOTHING_PASSES)
    assert gate.judge(torch.tensor(math.inf), good, Limits.of(None, None))
    assert not gate.judge(torch.tensor(3e38), good, Limits.of(None, None))
