"""Incidents around a run: full disks, damaged files, odd commands, bad luck at start and end."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from fttui.engine.core.reports.anomaly_report import from_json
from fttui.engine.data.batches.batch_source import BatchSource
from fttui.engine.protocol.commands import Recover, Rollback
from fttui.engine.protocol.events import (
    AnomalyRaised,
    AnomalyResolved,
    AutopilotDecided,
    CheckpointSaved,
    CommandApplied,
    CommandFailed,
    GradientsMeasured,
    LogEmitted,
    ProbationEnded,
    RolledBack,
    StepFinished,
)
from fttui.engine.protocol.states import RunState
from fttui.engine.run.journal import FrameReader, FrameWriter
from fttui.engine.train import session
from fttui.engine.train.checkpoint.counters import Counters
from fttui.engine.train.checkpoint.training_state import TrainingState
from fttui.engine.train.signals import StopSignals
from fttui.engine.train.trainers.build import build_trainer
from fttui.engine.train.trainers.pairs import PairTrainer
from tests.support.matrix import in_part
from tests.support.training import Played, Script, new_run, play, read_records


def test_a_command_sent_while_loading_is_carried_out(tmp_path: Path) -> None:
    played = play(new_run(tmp_path), Script(early=["note early", "stop"]))
    assert [e.command for e in played.events(CommandApplied)] == ["note early", "stop"]
    assert played.outcome.state is RunState.STOPPED


@pytest.mark.parametrize("asked", in_part(["stop", "signal"], ["signal"]))
def test_before_the_first_step_there_is_nothing_to_save(tmp_path: Path, asked: str) -> None:
    run = new_run(tmp_path, train__steps=2)
    signals = StopSignals()
    signals.count = int(asked == "signal")
    stopped = play(run, Script(early=["stop"] * (asked == "stop")), signals=signals)
    assert (stopped.outcome.state, stopped.outcome.checkpoint) == (RunState.STOPPED, None)
    assert not list(run.checkpoints.iterdir())
    assert not stopped.events(CheckpointSaved)
    begun = play(run)
    assert sorted(begun.losses()) == [1, 2]
    assert begun.outcome.state is RunState.FINISHED


def test_a_command_left_by_a_dead_engine_is_answered_not_carried_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*args: Any) -> None:
        raise KeyboardInterrupt

    run = new_run(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("fttui.engine.train.control.command_queue.CommandQueue.look", die)
        with pytest.raises(KeyboardInterrupt):
            play(run, Script(early=["lr scale 0.5"]))
    played = play(run)
    (failed,) = played.events(CommandFailed)
    assert "send it again" in failed.reason
    assert {e.lr_scale for e in played.events(StepFinished)} == {1.0}


def test_settings_hold_when_they_cannot_be_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fttui.engine.train.controlled_session.store_desired", full)
    played = play(new_run(tmp_path), Script({3: ["lr scale 0.5"]}))
    assert played.events(StepFinished)[-1].lr_scale == 0.5
    assert any("restart would lose" in e.text for e in played.events(LogEmitted))


def test_a_percentile_clip_is_stored_once_and_follows_the_norms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[object] = []
    monkeypatch.setattr(
        "fttui.engine.train.controlled_session.store_desired",
        lambda run, desired, config: stored.append(desired),
    )
    played = play(new_run(tmp_path), Script({3: ["clip p50"]}))
    assert len(stored) == 1
    assert len({e.clip for e in played.events(StepFinished)[3:]}) > 1


def test_whatever_fails_a_save_does_not_end_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise OverflowError("can't serialize")

    monkeypatch.setattr(TrainingState, "save_shared", fail)
    played = play(new_run(tmp_path), Script({3: ["checkpoint"]}))
    (failed,) = played.events(CommandFailed)
    assert "OverflowError" in failed.reason
    assert max(played.losses()) == 8
    assert played.outcome.state is RunState.UNSAVED
    assert "OverflowError" in played.outcome.unsaved
    assert not played.events(CheckpointSaved)


def test_an_adapter_that_is_not_finite_is_never_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = TrainingState.save_shared

    def spoilt(self: TrainingState, folder: Path, counters: Counters) -> None:
        if counters.step >= 3:
            next(iter(self._weights.values())).data[0] = math.inf
        save(self, folder, counters)

    monkeypatch.setattr(TrainingState, "save_shared", spoilt)
    script = Script({3: ["checkpoint"]}, states={RunState.HALTED: ["stop"]})
    played = play(new_run(tmp_path), script)
    assert "is not finite" in played.events(CommandFailed)[0].reason
    assert all(step < 3 for step, _ in played.at(CheckpointSaved))
    assert not [p for p in played.run.path.glob("checkpoints/step-00000[3-9]*") if any(p.iterdir())]


def test_the_end_of_a_run_fits_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(tmp_path)
    append = FrameWriter.append

    def full_while_reserved(self: FrameWriter, *payloads: bytes) -> int:
        if (run.path / "journal.reserve").exists() and len(read_records(run)) > 20:
            raise OSError(28, "No space left on device")
        return append(self, *payloads)

    monkeypatch.setattr(FrameWriter, "append", full_while_reserved)
    played = play(run)
    assert list(played.losses()) == list(range(1, 9))


def test_damage_in_the_journal_costs_only_the_record_it_hit(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    first = play(run, Script({6: ["stop"]}))
    offsets = [offset for offset, _ in FrameReader(run.journal).read()]
    data = bytearray(run.journal.read_bytes())
    data[offsets[len(offsets) // 2] + 12] ^= 0xFF
    run.journal.write_bytes(data)
    second = play(run, resume="last")
    assert [r.seq for r in second.records] == list(range(1, len(second.records) + 1))
    kept = [r for r in second.records[: len(first.records)] if r in first.records]
    assert len(kept) == len(first.records) - 1
    assert list(run.path.glob("journal.log.damaged-*"))


def test_a_checkpoint_that_did_not_help_is_not_returned_to_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute_loss = PairTrainer.compute_loss

    def poisoned(self: PairTrainer, *args: Any, **kwargs: Any) -> Any:
        loss = compute_loss(self, *args, **kwargs)
        return loss * float("nan") if self.state.global_step >= 5 else loss

    monkeypatch.setattr(PairTrainer, "compute_loss", poisoned)
    script = Script(states={RunState.HALTED: ["stop no-save"]})
    played = play(new_run(tmp_path, guard__nonfinite="rollback"), script)
    targets = [e.checkpoint for e in played.events(RolledBack)]
    assert targets == ["step-000004", "step-000000"]
    applied = [e for e in played.events(CommandApplied) if e.issuer == "guard"]
    assert [e.applied.checkpoint for e in applied if isinstance(e.applied, Rollback)] == targets
    assert all(e.settings is not None and e.previous is not None for e in applied)


def test_a_finished_run_is_not_trained_further(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    before = play(run)
    again = play(run, resume="last")
    assert again.losses() == before.losses()
    assert any("--max-steps N" in e.text for e in again.events(LogEmitted))
    assert len(again.events(CheckpointSaved)) == len(before.events(CheckpointSaved))


def test_damaged_settings_fall_back_to_the_configured_ones(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    play(run, Script({2: ["lr scale 0.5"], 3: ["stop"]}))
    (run.path / "desired.json").write_text("{")
    played: Played = play(run, resume="last")
    assert math.isclose(played.events(StepFinished)[-1].lr_scale, 1.0)


def _exploding(monkeypatch: pytest.MonkeyPatch, first: int, last: int) -> None:
    """Losses of some data become huge; the data, not the steps, so that passing them helps."""
    compute_loss = PairTrainer.compute_loss
    fetch = BatchSource.fetch
    place = {"at": 0}

    def fetched(self: BatchSource, count: int) -> Any:
        place["at"] = self.position // count
        return fetch(self, count)

    def poisoned(self: PairTrainer, *args: Any, **kwargs: Any) -> Any:
        loss = compute_loss(self, *args, **kwargs)
        return loss * 50 if first <= place["at"] <= last else loss

    monkeypatch.setattr(BatchSource, "fetch", fetched)
    monkeypatch.setattr(PairTrainer, "compute_loss", poisoned)


LONG: dict[str, Any] = {
    "train__steps": 48, "checkpoint__every": 10, "train__lr": 0.001, "policy__probation": 12,
}  # fmt: skip


def test_recover_goes_past_the_bad_data_and_its_probation_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _exploding(monkeypatch, 34, 35)
    played = play(new_run(tmp_path, **LONG), Script({36: ["recover"]}))
    (back,) = played.events(RolledBack)
    assert (back.to_step, back.skipped_batches) == (30, 25), "20 steps beyond the alarm at 35"
    after = played.events(StepFinished)[36:]
    assert {e.lr_scale for e in after} == {0.5}
    assert max(e.loss_or_nan for e in after) < 10
    (ended,) = played.events(ProbationEnded)
    assert (ended.passed, ended.checkpoint, ended.steps) == (True, back.checkpoint, 12)
    alarms = [e for s, e in played.at(AnomalyRaised) if e.severity == "alarm" and 30 < s <= 36]
    for alarm in alarms:  # one rollback answers them all
        text = (played.run.reports / f"{alarm.report}.md").read_text()
        assert "A rollback was made: step 36 → 30" in text
    assert len(alarms) > 1
    assert {alarm.incident for alarm in alarms} == {alarms[0].id}


SHORT_STEPS = {**LONG, "train__accumulate": 1}


def test_going_back_for_no_anomaly_is_no_failed_attempt_at_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _exploding(monkeypatch, 34, 35)
    played = play(new_run(tmp_path, **SHORT_STEPS), Script({12: ["rollback 10"]}))
    spike = next(e for _, e in played.at(AnomalyRaised) if e.severity == "alarm")
    text = (played.run.reports / f"{spike.report}.md").read_text()
    assert "skip=2" in text, "some twenty steps of data, not eighty"


def test_the_autopilot_proposes_by_default_and_acts_when_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _exploding(monkeypatch, 30, 200)
    for mode in ("propose", "act"):
        (tmp_path / mode).mkdir()
        script = Script({5: [f"policy autopilot {mode}"]})
        played = play(new_run(tmp_path / mode, **SHORT_STEPS), script)
        decided = played.events(AutopilotDecided)
        assert decided[0].decision == mode
        assert decided[0].command.startswith("recover divergence-")
        applied = [e for e in played.events(CommandApplied) if e.issuer == "autopilot"]
        assert len(applied) == len(played.events(RolledBack)) == (mode == "act")
        assert all(e.reason for e in applied)
        for event in applied:
            assert isinstance(event.applied, Recover)
            assert event.previous is not None
            assert event.settings is not None
            assert event.settings.lr_scale == event.previous.lr_scale / 2
        text = (played.run.reports / f"{decided[0].anomaly}.md").read_text()
        assert f"autopilot's decision: {mode} `recover" in text
        assert ("A rollback was made:" in text) == (mode == "act")


def _jumping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the loss of steps 28 and 29 jump, but not their gradients."""
    compute_loss = PairTrainer.compute_loss

    def shifted(self: PairTrainer, *args: Any, **kwargs: Any) -> Any:
        loss = compute_loss(self, *args, **kwargs)
        return loss + 50 if self.state.global_step in (27, 28) else loss

    monkeypatch.setattr(PairTrainer, "compute_loss", shifted)


def test_an_alarm_gets_one_verdict_however_often_its_run_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _jumping(monkeypatch)
    run = new_run(tmp_path, train__steps=64, train__lr=0.001)
    stopped = play(run, Script({32: ["stop"]}))
    assert stopped.outcome.state is RunState.STOPPED
    assert "spike-28" in {e.id for e in stopped.events(AnomalyRaised)}
    assert not stopped.events(AnomalyResolved)
    for _ in range(2):  # to the end, and when there is nothing left to train
        assert play(run, resume="last").outcome.state is RunState.FINISHED
    found = [r.event for r in read_records(run) if isinstance(r.event, AnomalyResolved)]
    assert [e.verdict for e in found if e.id == "spike-28"] == ["recovered"]
    assert len(found) == len({e.id for e in found})


def test_a_loss_that_jumps_alone_has_its_modules_in_the_report_and_a_verdict_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _jumping(monkeypatch)
    played = play(new_run(tmp_path, train__steps=32, train__lr=0.001))
    raised = {e.id: s for s, e in played.at(AnomalyRaised) if e.severity == "alarm"}
    assert raised["spike-28"] == 28
    assert [s for s, e in played.at(GradientsMeasured) if e.reason == "odd"] == [28, 29]
    report = from_json((played.run.reports / "spike-28.json").read_bytes())
    assert report.evidence.modules
    assert report.evidence.modules_step is None
    found = {e.id: e.verdict for e in played.events(AnomalyResolved)}
    assert found.keys() == {e.id for e in played.events(AnomalyRaised)}
    assert found["spike-28"] == "undecided"


def test_the_loss_scale_of_half_precision_is_in_every_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scaling(*args: Any, **named: Any) -> Any:
        trainer = build_trainer(*args, **named)
        trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=64, growth_interval=3)
        return trainer

    monkeypatch.setattr(session, "build_trainer", scaling)
    steps = play(new_run(tmp_path)).events(StepFinished)
    assert [e.extra["loss_scale"] for e in steps] == [64.0] * 3 + [128.0] * 3 + [256.0] * 2
    assert all(math.isfinite(e.grad_norm or math.nan) and not e.skipped for e in steps)


def test_recover_without_an_anomaly_is_refused_with_the_reason(tmp_path: Path) -> None:
    played = play(new_run(tmp_path), Script({3: ["recover"]}))
    (failed,) = played.events(CommandFailed)
    assert "there was no instability" in failed.reason


def test_gradients_are_measured_when_asked_for(tmp_path: Path) -> None:
    played = play(new_run(tmp_path), Script({3: ["gradients"]}))
    (flow,) = played.events(GradientsMeasured)
    norm = played.events(StepFinished)[3].grad_norm
    assert norm is not None
    assert math.hypot(*(m.grad_norm for m in flow.modules)) == pytest.approx(norm, rel=1e-3)
    assert all(m.update_norm > 0 for m in flow.modules)
    assert any(m.module.startswith("layers.0.") for m in flow.modules)
    assert flow.reason == "asked"
