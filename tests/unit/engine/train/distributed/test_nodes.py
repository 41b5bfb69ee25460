"""What ranks of several nodes tell each other before they train."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from fttui.engine.errors import ConfigError, TrainingFailed
from fttui.engine.train.distributed.nodes import (
    NodePlace,
    RankFacts,
    exchange_facts,
    require_same,
)

FACTS = RankFacts(
    host="one",
    node=0,
    run="r",
    config={"name": "a", "train": {"lr": 1e-4, "steps": 5}},
    overrides=["train.nodes=2"],
    resolved="train: {}",
    versions={"torch": "2.13.0"},
    resume="step-000004",
)


class DictStore:
    """A key-value store in memory."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.values[key]

    def add(self, key: str, amount: int) -> int:
        total = int(self.values.get(key, b"0")) + amount
        self.values[key] = str(total).encode()
        return total

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)


def test_the_place_of_a_node_is_that_of_torchrun() -> None:
    assert not NodePlace.of({}).several
    place = NodePlace.of({"GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "LOCAL_RANK": "3"})
    assert (place.node, place.nodes, place.local_rank) == (1, 2, 3)
    assert place.several
    assert place.remote


def test_every_rank_learns_what_all_have_reported() -> None:
    store = DictStore()
    other = replace(FACTS, host="two", node=1, resume=None)
    sleeps: list[float] = []

    def later(seconds: float) -> None:
        sleeps.append(seconds)
        exchange_facts(store, 1, 2, other, 9, sleep=lambda _: None)

    assert exchange_facts(store, 0, 2, FACTS, 9, sleep=later) == [FACTS, other]
    assert len(sleeps) == 1


def test_a_rank_of_another_run_at_the_same_rendezvous_is_refused_at_once() -> None:
    store, sleeps = DictStore(), list[float]()
    other = msgspec.structs.replace(FACTS, node=1)
    for rank, facts in ((1, other), (0, FACTS)):
        store.set("facts-0", msgspec.json.encode(FACTS).decode())
        exchange_facts(store, rank, 2, facts, 9, sleep=sleeps.append)
    with pytest.raises(ConfigError, match="another run uses its address and port"):
        exchange_facts(store, 1, 2, other, 9, sleep=sleeps.append)
    assert json.loads(store.get("facts-1"))["node"] == 1


def test_ranks_that_do_not_start_in_time_are_named() -> None:
    clock = iter(range(100))
    with pytest.raises(TrainingFailed, match="2 of 3 ranks did not start within 5 s: rank 1, 2;"):
        exchange_facts(DictStore(), 0, 3, FACTS, 5, lambda: next(clock), lambda _: None)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"versions": {"torch": "2.12.0"}},
            "other packages than rank 0 .*torch is 2.12.0 instead of",
        ),
        ({"config": {"train": {"lr": 2e-4, "steps": 5}}}, "train.lr is 0.0002 instead of 0.0001"),
        ({"config": {"train": {"steps": 5}}}, "train.lr is None instead of 0.0001"),
        ({"overrides": ["train.nodes=2", "train.lr=1"]}, "--set is .*train.lr=1"),
    ],
)
def test_another_configuration_or_package_is_refused_and_named(
    changed: dict[str, Any], words: str
) -> None:
    other = replace(FACTS, host="two", node=1, **changed)
    with pytest.raises(ConfigError, match=words):
        require_same([FACTS, FACTS, other])
    with pytest.raises(ConfigError, match=r"rank 2 \(node 1, two\)"):
        require_same([FACTS, FACTS, other])


def test_the_name_of_the_run_and_what_is_decided_may_differ() -> None:
    config = {"name": "b", "train": {"steps": 5, "lr": 1e-4}}
    overrides = ["name=b", "train.nodes=2"]
    require_same([FACTS, replace(FACTS, config=config, overrides=overrides, resolved="other")])
