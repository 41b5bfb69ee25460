"""One-shot commands against a fake trainer: no model, no torch, real checkpoint files."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from fttui.engine.config.schema import RunConfig
from fttui.engine.core.recovery import NoWayBack
from fttui.engine.errors import CheckpointError
from fttui.engine.protocol.chat.events import ChatAnswered
from fttui.engine.protocol.commands import (
    AddNote,
    Chat,
    Command,
    Rollback,
    SaveCheckpoint,
    Stop,
    TrainingAction,
    parse_command,
)
from fttui.engine.protocol.events import (
    AnyEvent,
    CheckpointRemoved,
    CheckpointSaved,
    EvalFinished,
    LogEmitted,
    RolledBack,
    SampleGenerated,
    StateChanged,
)
from fttui.engine.protocol.settings import Leash, RunSettings
from fttui.engine.protocol.states import RunState
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.checkpoint.checkpointer import Checkpointer
from fttui.engine.train.checkpoint.counters import Counters
from fttui.engine.train.control.command_executor import CommandExecutor
from fttui.engine.train.control.command_scheduler import Impossible
from fttui.engine.train.control.control_state import ControlState
from fttui.engine.train.control.controlled_trainer import EvalResult, EvaluationInterrupted
from fttui.engine.train.control.step_replay import NoReplay, OnRequest
from fttui.engine.train.distributed.agreement import SingleRank
from fttui.engine.train.event_log import EventLog

if TYPE_CHECKING:
    from fttui.engine.train.control.controlled_trainer import ControlledTrainer
    from fttui.engine.train.monitoring.monitor import TrainingMonitor


class Data:
    """A position in the data."""

    def __init__(self) -> None:
        self.position = 0
        self.mix_changes = ()

    @property
    def epoch(self) -> float:
        return self.position / 8

    def rewind_to(self, position: int) -> None:
        self.position = position

    def return_to(self, position: int, changes: object = ()) -> None:
        self.position = position

    def skip(self, micro_batches: int) -> None:
        self.position += micro_batches


class FakeTrainer:
    """A trainer whose only weight is a number."""

    def __init__(self, log: EventLog) -> None:
        self.position = log.position
        self.data = Data()
        self.weight = 0
        self.can_evaluate = True
        self.interrupted_at: int | None = None
        self.unwritable = False
        self.refuses: dict[type[Command], str] = {}

    @property
    def state(self) -> FakeTrainer:
        return self

    def train_to(self, step: int) -> None:
        """Some steps of two micro-batches."""
        self.data.position += 2 * (step - self.position.step)
        self.weight = step * 10
        self.position.move_to(step, 0.1)

    def evaluate(self, interrupted: Callable[[], bool]) -> EvalResult:
        if self.interrupted_at == self.position.step or interrupted():
            raise EvaluationInterrupted("evaluation interrupted after 1 of 2 batches")
        return EvalResult({"loss": 2.5}, 0.5)

    def sample(self, prompt: str) -> str:
        return f"{prompt} and so on"

    def chat(self, chat: Chat, record: Callable[[AnyEvent], None], interrupted: object) -> str:
        record(ChatAnswered(answerer="model", text=chat.prompt.upper()))
        return "model 2 tokens"

    def mark(self, position: int) -> Any:
        return SimpleNamespace(step=self.position.step, position=position, weight=self.weight)

    def return_to(self, boundary: Any) -> None:
        self.weight = boundary.weight
        self.position.move_to(boundary.step, 0.1)

    def gathered(self) -> AbstractContextManager[None]:
        """Nothing has to be gathered."""
        return nullcontext()

    def save_shared(self, folder: Path, counters: Counters) -> None:
        if self.unwritable:
            raise OSError("no space left on device")
        (folder / "state.msgpack").write_bytes(msgspec.msgpack.encode((self.weight, counters)))

    def save_own(self, folder: Path, rank: int) -> None:
        (folder / f"rng-{rank}").write_bytes(b"x")

    def stage(self, folder: Path, rank: int) -> Any:
        data = (folder / "state.msgpack").read_bytes()
        return msgspec.msgpack.decode(data, type=tuple[int, Counters])

    def apply(self, staged: tuple[int, Counters]) -> Counters:
        self.weight, counters = staged
        self.position.move_to(counters.step, 0.1)
        return counters

    def fingerprint(self, counters: Counters) -> bytes:
        return b"same"


class FakeMonitor:
    """A monitor that finds what it is told to."""

    def __init__(self) -> None:
        self.best = False
        self.stop_reason: str | None = None
        self.rollback: Rollback | None = None
        self.asked = self.evaluations = 0
        self.restored: dict[str, Any] | None = None
        self.rolled_back_to: int | None = None

    def checkpoint_facts(self) -> dict[str, Any]:
        return {"good": True, "loss": 1.5}

    def state(self) -> dict[str, Any]:
        return {"seen": 1}

    def restore(self, state: dict[str, Any]) -> None:
        self.restored = state

    def rolled_back(self, step: int) -> None:
        self.rolled_back_to = step

    def recovery(self, anomaly: str, settings: RunSettings) -> Rollback:
        if self.rollback is None:
            raise NoWayBack(f"no anomaly {anomaly!r}")
        return self.rollback

    def evaluated(self, metrics: dict[str, float]) -> None:
        self.evaluations += 1

    def is_best(self) -> bool:
        return self.best

    def reason_to_stop(self) -> str | None:
        return self.stop_reason

    def ask_gradients(self) -> None:
        self.asked += 1


class Bench:
    """An executor with everything around it."""

    def __init__(self, folder: Path, mean: Any = None, **sections: Any) -> None:
        run = RunDirectory(folder)
        run.checkpoints.mkdir(parents=True)
        config = msgspec.convert(
            {
                "model": {"id": "m"},
                "data": {"train": "d"},
                "train": {"accumulate": 2},
                **sections,
            },
            RunConfig,
        )
        self.events: list[AnyEvent] = []
        self.log = EventLog(None)
        self.log.listen(self.events.append)
        self.log.enter(RunState.RUNNING)
        self.stops = False
        self.profiled: list[int] = []
        self.trainer: Any = FakeTrainer(self.log)
        self.monitor: Any = FakeMonitor()
        self.control = ControlState(
            RunSettings(), self.log.position, norm_percentile=lambda p: None, store=lambda s: None
        )
        profiler: Any = SimpleNamespace(ask=self.profiled.append)
        self.executor = CommandExecutor(
            config,
            event_log=self.log,
            control=self.control,
            trainer=cast("ControlledTrainer", self.trainer),
            checkpointer=Checkpointer(run, self.trainer, SingleRank(), 1),
            monitor=cast("TrainingMonitor", self.monitor),
            on_request=OnRequest(profiler, NoReplay(), mean),
            ends_evaluation=lambda: self.stops,
        )

    def do(self, text: str) -> tuple[str, str]:
        """Carry out a command as it is typed."""
        command = parse_command(text)
        assert isinstance(command, TrainingAction)
        return self.executor.perform(command, "me")

    def found(self, kind: type) -> list[Any]:
        """Events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_rollback_restores_everything_and_opens_a_timeline(bench: Bench) -> None:
    bench.trainer.train_to(4)
    assert bench.do("checkpoint") == ("", "step-000004")
    bench.trainer.train_to(9)
    assert bench.do("rollback 4 lr=0.5 clip=0.3 skip=3") == ("9", "4, timeline 2")
    assert (bench.trainer.weight, bench.log.step) == (40, 4)
    assert bench.trainer.data.position == 8 + 3 * 2
    assert (bench.control.settings.lr_scale, bench.control.settings.clip) == (0.5, 0.3)
    assert bench.monitor.restored == {"seen": 1}
    assert bench.monitor.rolled_back_to == 4
    (event,) = bench.found(RolledBack)
    assert (event.from_step, event.to_step, event.old_timeline, event.new_timeline) == (9, 4, 1, 2)
    assert event.skipped_batches == 3


def test_a_rollback_ends_a_halt(bench: Bench) -> None:
    bench.trainer.train_to(2)
    bench.do("checkpoint")
    bench.control.halt("loss nan")
    bench.do("rollback last")
    assert bench.control.halted is None


def test_a_rollback_to_nothing_changes_nothing(bench: Bench) -> None:
    bench.trainer.train_to(3)
    with pytest.raises(Impossible, match="no complete checkpoint"):
        bench.do("rollback last")
    assert (bench.log.step, bench.log.timeline, bench.log.state) == (3, 1, RunState.RUNNING)
    assert bench.found(RolledBack) == []


def test_a_recovery_is_the_rollback_that_the_monitor_plans(bench: Bench) -> None:
    bench.trainer.train_to(4)
    bench.do("checkpoint")
    bench.trainer.train_to(8)
    bench.monitor.rollback = Rollback(checkpoint="step-000004", lr_scale=0.25, clip=0.1, skip=1)
    assert bench.do("recover") == ("8", "4, timeline 2")
    assert bench.control.settings.lr_scale == 0.25


def test_a_recovery_without_an_anomaly_gives_the_reason(bench: Bench) -> None:
    with pytest.raises(Impossible, match="no anomaly 'spike-1'"):
        bench.do("recover spike-1")


def test_the_same_boundary_is_saved_once_unless_pinned_or_noted(bench: Bench) -> None:
    bench.trainer.train_to(4)
    assert [bench.do("checkpoint")[1] for _ in range(2)] == ["step-000004"] * 2
    assert bench.do("checkpoint pin before lunch")[1] == "step-000004.2"
    pinned = bench.found(CheckpointSaved)[-1]
    assert (pinned.pinned, pinned.note, pinned.loss) == (True, "before lunch", 1.5)
    bench.control.change(msgspec.structs.replace(bench.control.settings, lr_scale=0.5))
    assert bench.do("checkpoint")[1] == "step-000004.3", "other settings are another state"


def test_old_checkpoints_are_removed_and_pinned_ones_stay(tmp_path: Path) -> None:
    bench = Bench(tmp_path, checkpoint={"keep": 1})
    for step, text in ((1, "checkpoint pin"), (2, "checkpoint"), (3, "checkpoint")):
        bench.trainer.train_to(step)
        bench.do(text)
    assert [event.name for event in bench.found(CheckpointRemoved)] == ["step-000002"]
    assert bench.executor.newest == "step-000003"


def test_a_checkpoint_that_cannot_be_written_leaves_nothing_and_training_goes_on(
    bench: Bench,
) -> None:
    bench.trainer.train_to(4)
    bench.trainer.unwritable = True
    with pytest.raises(Impossible, match=r"checkpoint not written: .*no space left"):
        bench.do("checkpoint")
    assert bench.log.state is RunState.RUNNING
    assert bench.executor.newest is None


def test_a_run_that_cannot_save_can_stop_and_says_that_it_is_not_saved(bench: Bench) -> None:
    bench.trainer.train_to(4)
    bench.trainer.unwritable = True
    assert "stopped at step 4, not saved: checkpoint not written" in bench.do("stop")[1]
    assert "no space left" in bench.executor.unsaved
    bench.trainer.unwritable = False
    assert bench.do("stop")[1] == "stopped at step 4, saved step-000004.2"


def test_a_last_state_that_cannot_be_saved_is_remembered(bench: Bench) -> None:
    bench.trainer.train_to(4)
    bench.trainer.unwritable = True
    assert bench.executor.finish()
    assert "no space left" in bench.executor.unsaved


def test_stopping_without_saving_leaves_nothing_unsaved(bench: Bench) -> None:
    bench.trainer.train_to(4)
    bench.trainer.unwritable = True
    assert "nothing saved" in bench.do("stop no-save")[1]
    assert bench.executor.unsaved == ""


def test_a_trainer_that_refuses_checkpoints_stops_without_one(bench: Bench) -> None:
    bench.trainer.train_to(4)
    bench.trainer.refuses = {SaveCheckpoint: "FSDP shards the state"}
    assert bench.do("stop")[1] == "stopped at step 4, nothing saved: FSDP shards the state"
    assert bench.executor.unsaved == ""
    assert bench.executor.newest is None


def test_scheduled_work_is_done_once_at_its_step(tmp_path: Path) -> None:
    bench = Bench(tmp_path, eval={"every": 2}, checkpoint={"every": 4})
    for step in range(5):
        bench.trainer.train_to(step)
        bench.executor.scheduled()
        bench.executor.scheduled()
    assert bench.monitor.evaluations == 2
    assert [event.name for event in bench.found(CheckpointSaved)] == ["step-000000", "step-000004"]
    assert not bench.executor.due or bench.log.step % 2 == 0


def test_the_best_evaluation_is_saved_and_early_stopping_ends_the_run(tmp_path: Path) -> None:
    bench = Bench(tmp_path, eval={"every": 2}, checkpoint={"every": 0})
    bench.trainer.train_to(2)
    bench.monitor.best, bench.monitor.stop_reason = True, "no better for 3 evaluations"
    bench.executor.scheduled()
    assert len(bench.found(CheckpointSaved)) == 1
    (entry,) = bench.control.due
    assert isinstance(entry.command, Stop)
    assert (entry.issuer, entry.reason) == ("early stop", "no better for 3 evaluations")


def test_an_interrupted_evaluation_is_owed_and_made_up_for_after_a_resume(tmp_path: Path) -> None:
    bench = Bench(tmp_path, eval={"every": 2}, checkpoint={"every": 0})
    bench.trainer.train_to(2)
    bench.trainer.interrupted_at = 2
    bench.executor.scheduled()
    assert bench.executor.owes_evaluation
    assert "repeated when the run resumes" in bench.found(LogEmitted)[0].text
    bench.do("checkpoint")
    bench.trainer.interrupted_at = None
    bench.executor.resume_from("last")
    bench.executor.scheduled()
    assert bench.monitor.evaluations == 1
    assert not bench.executor.owes_evaluation


def test_an_evaluation_that_was_asked_for_fails_if_it_is_interrupted(bench: Bench) -> None:
    bench.trainer.interrupted_at = 0
    with pytest.raises(Impossible, match="interrupted after 1 of 2"):
        bench.do("eval")
    assert not bench.executor.owes_evaluation


def test_an_evaluation_says_its_loss_and_samples_the_prompts(tmp_path: Path) -> None:
    bench = Bench(tmp_path, eval={"samples": ["one", "two"]})
    assert bench.do("eval") == ("", "loss 2.5")
    assert bench.do("eval") == ("", "loss 2.5"), "asked again, it is done again"
    assert [event.prompt for event in bench.found(SampleGenerated)] == ["one", "two"] * 2
    states = [event.state for event in bench.found(StateChanged)]
    assert states[-1] is RunState.RUNNING
    bench.stops = True
    bench.events.clear()
    with pytest.raises(Impossible):
        bench.do("eval")
    assert bench.found(EvalFinished) == bench.found(SampleGenerated) == []


def test_without_evaluation_records_the_reason_is_given(bench: Bench) -> None:
    bench.trainer.can_evaluate = False
    with pytest.raises(Impossible, match=r"data\.eval"):
        bench.do("eval")


def test_skipping_moves_the_data_by_whole_steps(bench: Bench) -> None:
    bench.trainer.train_to(2)
    assert bench.do("skip 3") == ("epoch 0.500", "epoch 1.250")
    bench.trainer.weight = -1
    bench.executor.rewind()
    assert (bench.trainer.data.position, bench.trainer.weight) == (10, 20)


def test_a_stop_after_a_rollback_to_the_start_is_where_a_resume_goes_on(bench: Bench) -> None:
    """Otherwise the newest checkpoint would be one of the steps that were abandoned."""
    bench.do("checkpoint")
    bench.trainer.train_to(4)
    bench.do("checkpoint")
    bench.do("rollback 0")
    assert bench.do("stop") == ("running", "stopped at step 0, saved step-000000-t2")


def test_a_stop_saves_unless_told_otherwise(bench: Bench) -> None:
    assert bench.do("stop") == (
        "running",
        "stopped before the first step, so there was nothing to save",
    )
    bench.trainer.train_to(3)
    assert bench.do("stop no-save") == ("running", "stopped at step 3, nothing saved")
    assert bench.executor.newest is None
    assert bench.do("stop") == ("running", "stopped at step 3, saved step-000003")


def test_measurements_are_asked_for(bench: Bench) -> None:
    assert bench.do("gradients") == ("", "with the next update")
    assert bench.do("profile 1") == ("", "the next step")
    assert bench.do("profile 3") == ("", "the next 3 steps")
    assert (bench.monitor.asked, bench.profiled) == (1, [1, 3])


def test_a_note_is_passed_on_with_its_author(bench: Bench) -> None:
    noted: list[tuple[AddNote, str]] = []

    def note(given: AddNote, issuer: str) -> str:
        noted.append((given, issuer))
        return "there"

    bench.monitor.noted = note
    assert bench.do("note look here") == ("", "there")
    assert noted == [(AddNote(text="look here"), "me")]


def test_the_end_of_the_run_is_evaluated_and_saved(bench: Bench) -> None:
    bench.trainer.train_to(8)
    assert bench.executor.finish()
    assert bench.monitor.evaluations == 1
    assert bench.executor.newest == "step-000008"
    bench.trainer.train_to(9)
    bench.trainer.interrupted_at = 9
    assert not bench.executor.finish()
    assert bench.executor.newest == "step-000008"


def test_a_resume_from_nothing_is_an_error(bench: Bench) -> None:
    with pytest.raises(CheckpointError):
        bench.executor.resume_from("last")


def test_after_skipped_data_a_checkpoint_has_the_new_position(bench: Bench) -> None:
    bench.trainer.train_to(4)
    assert bench.do("checkpoint")[1] == "step-000004"
    bench.do("skip 2")
    assert bench.do("checkpoint")[1] == "step-000004.2"


LEASH = Leash(lr_low=0.25, lr_high=2.0)


def test_a_rollback_of_an_agent_keeps_its_learning_rate_in_range(bench: Bench) -> None:
    bench.trainer.train_to(4)
    bench.do("checkpoint")
    bench.trainer.train_to(9)
    with bench.control.within(LEASH), pytest.raises(Impossible, match="agents may set"):
        bench.do("rollback 4 lr=0.2")
    assert bench.trainer.weight == 90, "nothing was restored"
    assert bench.log.timeline == 1
    with bench.control.within(LEASH):
        bench.do("rollback 4 lr=0.25")
    assert bench.control.settings.lr_scale == 0.25


def test_an_agent_stops_a_run_only_with_a_checkpoint(bench: Bench) -> None:
    with bench.control.within(LEASH), pytest.raises(Impossible, match="only with a checkpoint"):
        bench.do("stop")
    bench.trainer.train_to(3)
    bench.trainer.unwritable = True
    with bench.control.within(LEASH), pytest.raises(Impossible, match="no space left"):
        bench.do("stop")
    bench.trainer.unwritable = False
    with bench.control.within(LEASH):
        assert "saved step-000003" in bench.do("stop")[1]


def test_a_mean_of_which_the_deciding_metric_is_missing_is_refused(tmp_path: Path) -> None:
    mean = SimpleNamespace(chosen=lambda *_: ["a", "b"], in_place=lambda _: nullcontext())
    bench = Bench(tmp_path, mean=mean, checkpoint={"best": "exact"})
    bench.monitor.metrics_here = {"loss": 3.0, "exact": 0.5}  # now the function fails
    with pytest.raises(Impossible, match="exact of the mean could not be measured"):
        bench.do("soup 2")
    assert bench.log.state is RunState.RUNNING
    assert not bench.found(CheckpointSaved)


def test_a_sample_that_is_impossible_does_not_end_the_run(tmp_path: Path) -> None:
    bench = Bench(tmp_path, eval={"samples": ["far too long", "short"]})

    def sample(prompt: str) -> str:
        if prompt != "short":
            raise Impossible("it has too many tokens")
        return "text"

    bench.trainer.sample = sample
    bench.do("eval")
    assert [event.prompt for event in bench.found(SampleGenerated)] == ["short"]
    (told,) = bench.found(LogEmitted)
    assert told.text == "no sample for the prompt 'far too long': it has too many tokens"
