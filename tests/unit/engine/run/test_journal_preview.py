from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from fttui.engine.protocol.codec import decode_record, encode
from fttui.engine.protocol.events import LogEmitted, Record, StepFinished
from fttui.engine.run import journal_preview
from fttui.engine.run.journal import MAGIC, frame


def _journal(path: Path, steps: int) -> None:
    with open(path, "wb") as file:
        file.write(MAGIC)
        for seq in range(1, 2 * steps + 1):
            step = (seq + 1) // 2
            text = "k StepFinished " * (seq % 5)  # words of a log must not pass for a step
            event = StepFinished(loss=1 / seq) if seq % 2 else LogEmitted(level="info", text=text)
            record = Record(seq=seq, time=1e9 + seq / 3, step=step, timeline=seq % 300, event=event)
            file.write(frame(encode(record)))


def test_a_sample_is_whole_steps_from_everywhere(tmp_path: Path) -> None:
    _journal(tmp_path / "journal.log", 3000)
    payloads = journal_preview.sample_records(tmp_path / "journal.log", 0)
    steps = [r for r in map(decode_record, payloads) if r and isinstance(r.event, StepFinished)]
    assert len(steps) > 0.9 * journal_preview.SAMPLES
    gaps = [b.step - a.step for a, b in pairwise(steps)]
    assert min(gaps) > 0
    assert max(gaps) < 5 * 3000 / journal_preview.SAMPLES
    assert steps[0].step < 40
    assert steps[-1].step > 2950


def _chosen(path: Path, *steps: tuple[float, float]) -> list[int]:
    """Steps of (loss, gradient norm) that the min-max sampler chooses, all in one part."""
    with open(path, "wb") as file:
        file.write(MAGIC)
        for seq, (loss, norm) in enumerate(steps, start=1):
            event = StepFinished(loss=loss, grad_norm=norm)
            record = Record(seq=seq, time=0.0, step=seq, timeline=1, event=event)
            file.write(frame(encode(record)))
    sampler = journal_preview.MinMaxSampler(path, 0, 0, 10**6)
    while not sampler.advance():
        pass
    return [r.step for r in map(decode_record, sampler.records()) if r]


def test_the_extremes_of_a_part_and_the_newest_step_are_chosen(tmp_path: Path) -> None:
    steps = [(2.0, 1.0), (5.0, 1.0), (3.0, 9.0), (1.0, 1.0), (2.5, 2.0), (2.0, 1.0)]
    assert _chosen(tmp_path / "journal.log", *steps) == [2, 3, 4, 6]


def test_of_equal_extremes_and_of_non_finite_losses_the_first_is_chosen(tmp_path: Path) -> None:
    nan = float("nan")
    steps = [(2.0, 1.0), (nan, 99.0), (2.0, 1.0), (nan, 99.0), (2.0, 1.0)]
    assert _chosen(tmp_path / "journal.log", *steps) == [1, 2, 5]
