"""Online training on rewards under control: the reward rises, also after a rollback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fttui.engine.protocol.events import RolledBack, SampleGenerated, StepFinished
from tests.support import foreign
from tests.support.foreign import grpo, play_watched
from tests.support.training import Script

STEPS = 32


def early_words(completions: list[str], **columns: Any) -> list[float]:
    """The share of words of a completion that are in the first half of the vocabulary."""
    words = [one.split() for one in completions]
    return [sum(w in foreign.WORDS[:30] for w in one) / max(1, len(one)) for one in words]


@pytest.mark.long
def test_the_reward_of_a_watched_grpo_rises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign, "distinct_words", early_words)
    groups: dict[str, Any] = {
        "num_generations": 8,
        "per_device_train_batch_size": 8,
        "steps_per_generation": 1,
    }
    groups |= {"gradient_accumulation_steps": 1, "max_steps": STEPS, "learning_rate": 1e-2}
    steady: dict[str, Any] = {"beta": 0.0, "lr_scheduler_type": "constant", "warmup_steps": 0}
    watched = play_watched(
        lambda folder: grpo(folder, **groups, **steady),
        tmp_path,
        monkeypatch,
        Script({16: ["rollback 12"]}),
        checkpoint_every=4,
    )
    assert watched.played is not None
    assert [one.to_step for one in watched.played.events(RolledBack)] == [12]
    samples = watched.played.events(SampleGenerated)
    assert len({one.text for one in samples}) > STEPS / 4
    assert all(one.prompt for one in samples)
    steps = dict(watched.played.at(StepFinished))
    assert len(steps) == STEPS
    # The trainer logs the figures of a step when it has ended, so the next one shows them.
    rewards = [steps[step].extra["reward"] for step in sorted(steps) if step > 1]
    print([round(reward, 2) for reward in rewards])
    first, last = (sum(part) / 5 for part in (rewards[:5], rewards[-5:]))
    assert first < 0.7
    assert last > 0.9
