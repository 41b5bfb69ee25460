"""The mean of the weights of several checkpoints, and which checkpoints those are."""

from __future__ import annotations

import pytest
import safetensors.torch
import torch

from fttui.engine.errors import CheckpointError
from fttui.engine.export.plain import mean_weights
from fttui.engine.protocol.events import AnyEvent, CheckpointSaved, Record, RolledBack
from fttui.engine.run.records.ancestors import names_leading_here, names_leading_to


def file(**weights: list[float]) -> bytes:
    made = {name: torch.tensor(values, dtype=torch.bfloat16) for name, values in weights.items()}
    return safetensors.torch.save(made)


def test_the_mean_has_the_precision_of_the_weights() -> None:
    found = safetensors.torch.load(
        mean_weights({"one": file(a=[1, 2]), "two": file(a=[3, 4]), "three": file(a=[5, 9])})
    )
    assert (found["a"].dtype, found["a"].tolist()) == (torch.bfloat16, [3.0, 5.0])


def test_other_weights_have_no_mean() -> None:
    with pytest.raises(CheckpointError, match="one and two do not hold the same weights"):
        mean_weights({"one": file(a=[1]), "two": file(b=[1])})
    with pytest.raises(CheckpointError, match="do not hold the same weights"):
        mean_weights({"one": file(a=[1]), "two": file(a=[1, 2])})


def saved(step: int, name: str) -> tuple[int, AnyEvent]:
    return step, CheckpointSaved(name=name, size_bytes=1, seconds=0.1)


def test_checkpoints_that_were_rolled_back_are_not_on_the_way() -> None:
    back = RolledBack(checkpoint="b", from_step=6, to_step=4, old_timeline=1, new_timeline=2)
    events = [saved(2, "a"), saved(4, "b"), saved(6, "c"), (4, back), saved(6, "d"), saved(8, "e")]
    records = [
        Record(seq=seq, time=0.0, step=step, timeline=1, event=event)
        for seq, (step, event) in enumerate(events)
    ]
    assert names_leading_to("d", records) == ["a", "b", "d"]
    assert names_leading_to("c", records) == ["a", "b", "c"]
    assert names_leading_to("x", records) == []
    assert names_leading_here(records) == ["a", "b", "d", "e"]


def test_training_goes_on_beside_a_mean_until_a_rollback_takes_it_there() -> None:
    mean: AnyEvent = CheckpointSaved(name="m", size_bytes=1, seconds=0.1, mean_of=["a", "b"])
    back = RolledBack(checkpoint="m", from_step=6, to_step=4, old_timeline=1, new_timeline=2)
    events = [saved(2, "a"), saved(4, "b"), (4, mean), saved(6, "c"), (4, back), saved(6, "d")]
    records = [
        Record(seq=seq, time=0.0, step=step, timeline=1, event=event)
        for seq, (step, event) in enumerate(events)
    ]
    assert names_leading_here(records[:4]) == ["a", "b", "c"]
    assert names_leading_to("c", records) == ["a", "b", "c"]
    assert names_leading_to("m", records) == ["a", "b", "m"]
    assert names_leading_here(records) == ["a", "b", "m", "d"]


def test_a_rollback_to_an_abandoned_timeline_takes_its_own_checkpoints_with_it() -> None:
    first = RolledBack(checkpoint="a", from_step=4, to_step=2, old_timeline=1, new_timeline=2)
    second = RolledBack(checkpoint="b", from_step=3, to_step=4, old_timeline=2, new_timeline=3)
    events = [saved(2, "a"), saved(4, "b"), (2, first), saved(3, "c"), (4, second), saved(6, "d")]
    records = [
        Record(seq=seq, time=0.0, step=step, timeline=1, event=event)
        for seq, (step, event) in enumerate(events)
    ]
    assert names_leading_to("d", records) == ["a", "b", "d"]
