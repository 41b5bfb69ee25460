"""A trial step before a run leaves no trace in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fttui.engine.errors import ModelError
from fttui.engine.protocol.events import (
    CommandApplied,
    LogEmitted,
    RunStarted,
    StateChanged,
    StepFinished,
)
from fttui.engine.protocol.states import RunState
from fttui.engine.train.loop.memory_meter import MemoryMeter, MemoryReading
from fttui.engine.train.trainers import memory_probe
from tests.support.matrix import in_part
from tests.support.training import Script, new_run, play

SETS: dict[str, Any] = {"train__steps": 3, "train__warmup": 0, "checkpoint__every": 0}


@pytest.mark.parametrize(
    ("task", "fast"),
    in_part(
        [("sft", "off"), ("contrastive", "off"), ("sft", "static"), ("contrastive", "static")],
        [("contrastive", "static")],
    ),
)
def test_a_run_after_a_trial_is_the_same_to_the_last_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, fast: str
) -> None:
    paths = [tmp_path / name for name in ("plain", "tried")]
    for path in paths:
        path.mkdir()
    sets = {**SETS, "train__fast": f'"{fast}"'}
    plain, tried = (new_run(path, task, **sets) for path in paths)
    expected = play(plain)
    lengths: list[int] = []
    step = memory_probe.trial_step

    def watched(trainer: Any, batch: Any) -> memory_probe.Peak:
        lengths.append(batch["input_ids"].shape[1])
        before = {n: p.detach().clone() for n, p in trainer.model.named_parameters()}
        moved: list[bool] = []
        update = memory_probe._update

        def updated(trainer: Any) -> None:
            update(trainer)
            now = trainer.model.named_parameters()
            moved.append(any(not torch.equal(p, before[n]) for n, p in now))

        monkeypatch.setattr(memory_probe, "_update", updated)
        found = step(trainer, batch)
        assert moved == [True], "it does train"
        return found

    monkeypatch.setattr(memory_probe, "may_try", lambda *_: True)
    monkeypatch.setattr(memory_probe, "trial_step", watched)
    got = play(tried)
    assert len(lengths) == 1
    assert lengths[0] >= 28, "the longest are tried"
    assert got.losses() == expected.losses()
    started = got.events(RunStarted)[-1]
    said = started.facts["memory of a step"]
    assert ("with its graphs" in said) == (fast != "off")
    assert started.planned_bytes["adapters"] > 0


@pytest.mark.parametrize("task", in_part(["contrastive", "dpo"], ["dpo"]))
def test_a_pause_during_the_trial_holds_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    paths = [tmp_path / name for name in ("plain", "paused")]
    for path in paths:
        path.mkdir()
    plain, paused = (new_run(path, task, **SETS) for path in paths)
    expected = play(plain)
    monkeypatch.setattr(memory_probe, "may_try", lambda *_: True)
    run_pass = memory_probe._pass
    script = Script(states={RunState.PAUSED: ["resume"]})

    def during(trainer: Any, batch: Any) -> None:
        if script.senders:
            script.senders.pop()("pause")
        run_pass(trainer, batch)

    monkeypatch.setattr(memory_probe, "_pass", during)
    got = play(paused, script)
    assert [applied.command for applied in got.events(CommandApplied)] == ["pause", "resume"]
    first = next(n for n, r in enumerate(got.records) if isinstance(r.event, StepFinished))
    assert any(
        isinstance(r.event, StateChanged) and r.event.state is RunState.PAUSED
        for r in got.records[:first]
    )
    assert "not measured" not in got.events(RunStarted)[-1].facts["memory of a step"]
    assert got.losses() == expected.losses()


def test_what_does_not_fit_ends_with_the_changes_that_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: Any) -> memory_probe.Peak:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(memory_probe, "may_try", lambda *_: True)
    monkeypatch.setattr(memory_probe, "trial_step", exhausted)
    with pytest.raises(ModelError, match="the longest batch does not fit"):
        play(new_run(tmp_path, "sft", **SETS))


def test_a_step_that_takes_more_than_planned_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = memory_probe.planned_of

    def on_a_gpu(*arguments: Any) -> Any:
        found = planned(*arguments)
        assert found is not None
        return replace(found, device="cuda")

    reading = MemoryReading(2**40, 2**40, 2**41, 0)
    monkeypatch.setattr(memory_probe, "planned_of", on_a_gpu)
    monkeypatch.setattr(MemoryMeter, "read", lambda _: reading)
    played = play(new_run(tmp_path, "sft", **SETS))
    said = [e.text for e in played.events(LogEmitted) if e.level == "warning"]
    assert len(said) == 1
    assert "a step took 1024.00 GiB allocated" in said[0]
