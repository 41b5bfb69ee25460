"""The contrastive step inside the real loop: exact, split as it may be, on one rank and on two."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from fttui.engine.errors import ConfigError
from fttui.engine.losses.cross_entropy import selected_cross_entropy
from fttui.engine.protocol.events import CommandApplied, EvalFinished, RunStarted, StepFinished
from fttui.engine.protocol.states import RunState
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.checkpoint.rng import capture_rng, restore_rng
from fttui.engine.train.distributed.place import RankPlace
from fttui.engine.train.loop.step_loop import StepLoop
from fttui.engine.train.objectives.contrastive import join
from fttui.engine.train.trainers.pairs import PairTrainer
from tests.support.matrix import in_part
from tests.support.ranks import in_ranks
from tests.support.training import Script, new_run, play, read_records


def flat(gradients: Any) -> torch.Tensor:
    return torch.cat([g.flatten() for g in gradients])


def trained(trainer: PairTrainer) -> list[torch.nn.Parameter]:
    adapter = [p for p in trainer.model.parameters() if p.requires_grad]
    return [*adapter, *trainer.own_parameters.values()]


def one_shot(trainer: PairTrainer, batches: list[Any], items: float) -> torch.Tensor:
    """The step's gradient with every graph held at once, averaged over ranks."""
    ranks, config = trainer.accelerator.num_processes, trainer._contrastive
    trainer.model.train()
    parts, loss = [], torch.zeros(())
    for batch in batches:
        inputs = trainer._prepare_inputs(batch)
        hidden = trainer._forward(trainer.model, inputs)
        parts.append(trainer.objective.pool(hidden, inputs))
        ce_sum, _ = selected_cross_entropy(hidden, inputs["labels"], trainer._head)
        loss = loss + config.ce_weight * ce_sum / items * ranks
    everyone, own = trainer.objective.spread(join(parts))
    contrastive = trainer.objective.compare(everyone, own).loss_sum
    loss = loss + config.weight * contrastive * trainer._scale
    found = flat(torch.autograd.grad(loss, trained(trainer)))
    if ranks > 1:
        dist.all_reduce(found)
    return found / ranks


@contextmanager
def compared(errors: list[float]) -> Iterator[None]:
    """Beside every step, take its gradient in one piece, with the same dropout masks."""
    prepare, clip = PairTrainer.prepare_step, PairTrainer._clip_grad_norm
    expected: list[torch.Tensor] = []

    def prepared(self: PairTrainer, batches: list[Any]) -> None:
        before = capture_rng()
        prepare(self, batches)
        after = capture_rng()
        restore_rng(before)
        items = float(self._get_num_items_in_batch(batches, self.args.device))
        expected[:] = [one_shot(self, batches, items)]
        restore_rng(after)

    def clipped(self: PairTrainer, model: Any) -> torch.Tensor:
        found = flat([p.grad for p in trained(self) if p.grad is not None])
        if self.own_parameters and dist.is_initialized():
            share = found[-1:].clone()
            dist.all_reduce(share)
            found[-1:] = share / dist.get_world_size()
        errors.append(((found - expected[0]).norm() / expected[0].norm()).item())
        return clip(self, model)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PairTrainer, "prepare_step", prepared)
        patch.setattr(PairTrainer, "_clip_grad_norm", clipped)
        yield


def play_compared(place: RankPlace, run: RunDirectory, out: Path) -> None:
    errors: list[float] = []
    with compared(errors):
        play(run, place=place)
    out.with_suffix(f".{place.rank}").write_text(json.dumps(errors))


def written(folder: Path, **overrides: Any) -> RunDirectory:
    """A tiny run of micro-batches of one pair."""
    folder.mkdir()
    return new_run(folder, train__batch=1, **overrides)


@pytest.mark.parametrize(
    ("learned", "kept_bytes"), in_part([("false", 0), ("true", 2**20)], [("true", 2**20)])
)
def test_batch_one_times_eight_is_the_batch_of_eight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, learned: str, kept_bytes: int
) -> None:
    monkeypatch.setattr("fttui.engine.train.objectives.gradcache.KEPT_GRAPH_BYTES", kept_bytes)
    run = written(
        tmp_path / "run",
        train__accumulate=8,
        train__steps=4,
        contrastive__learn_temperature=learned,
        contrastive__symmetric=learned,
    )
    errors: list[float] = []
    with compared(errors):
        played = play(run)
    assert len(errors) == 4
    assert max(errors) <= 1e-5, errors
    assert {event.extra["candidates"] for event in played.events(StepFinished)} == {8.0}


def test_two_ranks_times_four_are_the_batch_of_eight(tmp_path: Path) -> None:
    run = written(
        tmp_path / "run",
        train__accumulate=4,
        train__steps=4,
        train__devices=2,
        contrastive__learn_temperature="true",
    )
    assert in_ranks(2, play_compared, run, tmp_path / "errors") == [0, 0]
    for rank in (0, 1):
        errors = json.loads((tmp_path / f"errors.{rank}").read_text())
        assert len(errors) == 4
        assert max(errors) <= 1e-5, errors
    started = [r.event for r in read_records(run) if isinstance(r.event, RunStarted)]
    assert (started[-1].world_size, len(started[-1].devices)) == (2, 2)
    assert started[-1].facts["ranks"] == "2 of 2"


def play_as(place: RankPlace, run: RunDirectory) -> None:
    play(run, place=place)


@pytest.mark.parametrize("cache", in_part(["on", "off"], ["on"]))
def test_two_ranks_equal_one_with_twice_the_batch(tmp_path: Path, cache: str) -> None:
    same: dict[str, Any] = {
        "train__steps": 4,
        "train__accumulate": 2,
        "train__optimizer": "sgd",
        "train__lr": 0.2,
        "adapter__dropout": 0.0,
        "contrastive__cross_accumulation": cache,
        "checkpoint__every": 0,
        "data__eval_limit": 5,
    }
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one = new_run(tmp_path / "one", train__batch=4, **same)
    two = new_run(tmp_path / "two", train__batch=2, train__devices=2, **same)
    assert in_ranks(2, play_as, two) == [0, 0]
    alone = play(one).records
    for kind in (StepFinished, EvalFinished):
        wanted, found = (
            [_figures(r.event) for r in records if isinstance(r.event, kind)]
            for records in (alone, read_records(two))
        )
        assert len(wanted) == len(found) > 0
        for one_step, two_step in zip(wanted, found, strict=True):
            assert two_step == pytest.approx(one_step, rel=1e-6, abs=1e-6)


def _figures(event: StepFinished | EvalFinished) -> dict[str, float]:
    if isinstance(event, EvalFinished):
        return event.metrics
    return {"loss": event.loss_or_nan, "norm": event.grad_norm or 0.0, **event.parts, **event.extra}


def test_a_pause_while_looking_ahead_drops_the_step_and_repeats_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "straight").mkdir()
    straight = play(new_run(tmp_path / "straight", train__accumulate=4, train__batch=2))
    asked: list[int] = []
    may_continue = StepLoop.may_continue

    def pause_at_the_third(self: Any) -> bool:
        if self._control.position.step == 4 and len(asked) < 3:
            asked.append(1)
            if len(asked) == 3:
                self._conclusion._event_log.send("pause")
        return may_continue(self)

    monkeypatch.setattr(StepLoop, "may_continue", pause_at_the_third)
    script = Script(states={RunState.PAUSED: ["checkpoint", "resume"]})
    (tmp_path / "paused").mkdir()
    played = play(new_run(tmp_path / "paused", train__accumulate=4, train__batch=2), script)
    assert len(played.events(CommandApplied)) == 3
    assert played.losses() == straight.losses()


def test_a_learned_temperature_is_part_of_the_exact_state(tmp_path: Path) -> None:
    sets = {"contrastive__learn_temperature": "true"}
    (tmp_path / "straight").mkdir()
    straight = play(new_run(tmp_path / "straight", **sets))
    (tmp_path / "back").mkdir()
    back = play(new_run(tmp_path / "back", **sets), Script({6: ["rollback 4"]}))
    after = {step: loss for step, loss in straight.losses().items() if step > 4}
    assert back.losses(timeline=2) == after
    (tmp_path / "stopped").mkdir()
    run = new_run(tmp_path / "stopped", **sets)
    play(run, Script({3: ["stop"]}))
    resumed = play(run, resume="last")
    assert resumed.losses() == straight.losses()
    seen = [event.extra["temperature"] for event in straight.events(StepFinished)]
    assert seen[-1] != seen[0]


def test_another_number_of_ranks_than_asked_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ask for 2 ranks, but 1 started"):
        play(new_run(tmp_path, train__devices=2))


@pytest.mark.parametrize("task", in_part(["contrastive", "sft"], ["contrastive"]))
def test_the_joint_loss_does_not_depend_on_the_split(tmp_path: Path, task: str) -> None:
    same: dict[str, Any] = {
        "train__steps": 3,
        "train__optimizer": "sgd",
        "adapter__dropout": 0.0,
        "contrastive__kind": "infonce" if task == "contrastive" else "simctg",
    }
    found = []
    for batch, accumulate, eval_batch in ((4, 2, 3), (1, 8, 1), (2, 4, 8)):
        folder = tmp_path / str(batch)
        folder.mkdir()
        split = {"train__batch": batch, "train__accumulate": accumulate, "eval__batch": eval_batch}
        records = play(new_run(folder, task, **same, **split)).records
        events = [r.event for r in records if isinstance(r.event, StepFinished | EvalFinished)]
        found.append([_figures(event) for event in events])
    for other in found[1:]:
        for one_step, other_step in zip(found[0], other, strict=True):
            assert other_step == pytest.approx(one_step, rel=2e-6, abs=2e-6)
