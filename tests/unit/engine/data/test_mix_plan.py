"""The schedule of a mix, what a check says of it, and what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fttui.engine.config.checks.data import DATA
from fttui.engine.config.schema import RunConfig
from fttui.engine.config.step_plan import plan_steps
from fttui.engine.data.batches.mixing import MixChange
from fttui.engine.data.batches.sampler import Mix
from fttui.engine.data.mix_plan import mix_facts, mix_schedule
from fttui.engine.errors import ConfigError

TWO = [{"path": "in/code.jsonl"}, {"path": "org/math"}]
PHASES = [
    {"at": 0, "weights": {"code": 1, "math": 1}},
    {"at": 0.5, "weights": {"code": 0, "math": 3}},
]


def config(train: Any = TWO, mix: Any = PHASES, **sections: Any) -> RunConfig:
    rest = {"train": {"steps": 10, "batch": 2, "accumulate": 3}, **sections}
    data = {"train": train, "mix": mix}
    return msgspec.convert({"model": {"id": "m"}, "data": data, **rest}, RunConfig)


def problems(found: RunConfig) -> list[str]:
    return [f"{one.key}: {one.text}" for check in DATA for one in check(found)]


def test_phases_begin_at_a_step_or_a_share_of_the_run() -> None:
    mix = Mix.of([20, 10], [1, 1])
    schedule = mix_schedule(config(), mix, 10)
    assert schedule is not None
    assert schedule.names == ("code", "math")
    assert schedule.phases == (MixChange(0, (1, 1)), MixChange(15, (0, 3)))
    steps = [PHASES[0], PHASES[1] | {"at": 7}]
    later = mix_schedule(config(mix=steps), mix, 10)
    assert later is not None
    assert later.phases[1].position == 21
    assert mix_schedule(config("a.jsonl", []), None, 10) is None


def test_a_check_says_the_shares_of_each_phase_and_how_often_records_are_used() -> None:
    found = config()
    plan = plan_steps(found, 30, 1)
    assert mix_facts(found, Mix.of([20, 10], [1, 1]), plan) == {
        "mix by phases": "steps 1 to 5: code 50%, math 50%; steps 6 to 10: code 0%, math 100%",
        "mix over the run": "code 15 records (each of its 20 0.75 times), "
        "math 45 records (each of its 10 4.5 times)",
    }


def test_constant_weights_say_how_often_records_are_used() -> None:
    weighted = [one | {"weight": 1.0} for one in TWO]
    facts = mix_facts(config(weighted, []), Mix.of([20, 10], [1, 1]), plan_steps(config(), 30, 1))
    assert list(facts) == ["mix over the run"]


def test_a_phase_that_the_run_does_not_reach_is_named() -> None:
    found = config(mix=[PHASES[0], PHASES[1] | {"at": 40}])
    facts = mix_facts(found, None, plan_steps(found, 30, 1))
    assert "from step 41, which this run of 10 does not reach" in facts["mix by phases"]


def test_two_phases_of_one_step_are_refused() -> None:
    both = [*PHASES, PHASES[1] | {"at": 5}]
    with pytest.raises(ConfigError, match="the phase at 5 begins at step 5 of 10, and the one"):
        mix_schedule(config(mix=both), None, 10)


def test_a_mix_that_can_be_used_passes() -> None:
    assert problems(config()) == []


@pytest.mark.parametrize(
    ("train", "mix", "said"),
    [
        ("a.jsonl", PHASES, "data.mix: weighs several sources, but data.train names one"),
        ([one | {"weight": 1} for one in TWO], PHASES, "sources in data.train have a weight too"),
        (TWO, PHASES[1:], "the first phase begins at 0.5, expected 0"),
        (TWO, [PHASES[0], PHASES[1], PHASES[1]], "the phases begin at 0, 0.5, 0.5; list each once"),
        (TWO, [{"weights": {"code": 1}}], "the weight of math is missing; name every source"),
        (TWO, [{"weights": {"code": 1, "mth": 1}}], "no source is named 'mth'; the sources are"),
        (TWO, [{"weights": {"code": 0, "math": 0}}], "all weights are 0, so that nothing is left"),
        (
            [{"path": "a/x.jsonl"}, {"path": "b/x.jsonl"}],
            [{"weights": {"x": 1}}],
            "two sources are named x; give each a `name` of its own in data.train",
        ),
    ],
)
def test_what_cannot_be_mixed_is_refused_by_name(train: Any, mix: Any, said: str) -> None:
    assert any(said in one for one in problems(config(train, mix)))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a/code.jsonl", "code"),
        ("a/code.v1.2.csv.gz", "code.v1.2"),
        ("org/set", "set"),
        ("folder/", "folder"),
        ("notes.md", "notes"),
    ],
)
def test_a_source_is_called_by_the_last_part_of_its_path(path: str, name: str) -> None:
    assert config([{"path": path}], []).data.source_names == [name]
