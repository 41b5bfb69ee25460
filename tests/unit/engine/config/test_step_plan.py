from __future__ import annotations

import pytest

from fttui.engine.config.schema import (
    CheckpointConfig,
    DataConfig,
    EvalConfig,
    ModelConfig,
    RunConfig,
    TrainConfig,
)
from fttui.engine.config.step_plan import in_steps, is_due, plan_steps, warmup_steps
from fttui.engine.errors import ConfigError


def config(**sections):
    return RunConfig(model=ModelConfig(id="m"), data=DataConfig(train="d.jsonl"), **sections)


def test_epochs_become_steps_over_all_ranks():
    plan = plan_steps(config(train=TrainConfig(epochs=3, batch=2, accumulate=4)), 330, 2)
    assert plan.samples_per_step == 16
    assert plan.steps_per_epoch == 82 / 4
    assert plan.steps == round(3 * 82 / 4)
    assert plan.epochs == pytest.approx(3, abs=0.05)


def test_steps_are_taken_as_they_are():
    plan = plan_steps(config(train=TrainConfig(steps=7, accumulate=1)), 14, 1)
    assert (plan.steps, plan.epochs) == (7, 0.5)


def test_a_fraction_of_an_epoch_is_at_least_one_step():
    assert plan_steps(config(train=TrainConfig(epochs=0.001)), 80, 1).steps == 1


@pytest.mark.parametrize(
    ("every", "at_start", "steps"),
    [(4, True, [0, 4, 8]), (5, False, [5, 10]), (0, True, [0]), (0, False, []), (1, False, [1, 2])],
)
def test_what_is_due_comes_at_every_multiple_and_at_the_start_if_asked(every, at_start, steps):
    last = max(steps, default=0)
    assert [n for n in range(last + 1) if is_due(every, n, at_start=at_start)] == steps


@pytest.mark.parametrize(
    ("warmup", "steps", "expected"),
    [(0.03, 100, 3), (0.03, 10, 1), (0, 10, 0), (1, 10, 1), (25, 10, 25)],
)
def test_warmup_is_a_share_below_one_and_steps_from_one_on(warmup, steps, expected):
    assert warmup_steps(warmup, steps) == expected


def test_too_few_records_name_the_numbers():
    with pytest.raises(
        ConfigError, match=r"takes 64 records .*batch 4 .*accumulate 8.* 2 dev.*only 63"
    ):
        plan_steps(config(train=TrainConfig(steps=1, batch=4, accumulate=8)), 63, 2)


def test_intervals_per_epoch_become_steps():
    wanted = config(
        train=TrainConfig(epochs=3, batch=2, accumulate=4),
        eval=EvalConfig(per_epoch=4),
        checkpoint=CheckpointConfig(per_epoch=0.5),
    )
    found = in_steps(wanted, plan_steps(wanted, 330, 2))
    assert (found.eval.every, found.checkpoint.every) == (round(82 / 4 / 4), 41)
    dense = config(train=wanted.train, eval=EvalConfig(per_epoch=1e6))
    often = in_steps(dense, plan_steps(wanted, 330, 2))
    assert often.eval.every == 1
    assert often.checkpoint.every == CheckpointConfig().every


def test_a_divided_update_has_whole_epochs_and_its_own_words():
    wanted = config(train=TrainConfig(epochs=2, batch=2, sequences_per_update=16, devices=2))
    plan = plan_steps(wanted, 330, 2)
    assert (plan.samples_per_step, plan.steps_per_epoch, plan.steps) == (16, 20, 40)
    with pytest.raises(ConfigError, match=r"sequences_per_update 16\).*only 15 .*lower train.seq"):
        plan_steps(wanted, 15, 2)


@pytest.mark.parametrize(
    ("train", "examples", "ranks", "said"),
    [
        (TrainConfig(batch=4, accumulate=1), 1, 1, "is only 1 to train on; lower train.batch, or"),
        (TrainConfig(batch=2, accumulate=3), 2, 1, "; lower train.accumulate or train.batch, or"),
        (TrainConfig(batch=1, accumulate=1), 1, 2, "; lower the number of devices, or add data"),
        (TrainConfig(batch=1, accumulate=1), 0, 1, "are only 0 to train on; add data"),
    ],
)
def test_too_few_records_name_only_settings_that_can_be_lowered(train, examples, ranks, said):
    with pytest.raises(ConfigError, match=said):
        plan_steps(config(train=train), examples, ranks)
