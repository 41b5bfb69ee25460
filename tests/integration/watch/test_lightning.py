"""Lightning trainers under control, through the callback and through Lightning's entry point."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fttui.engine.protocol.events import (
    CommandFailed,
    EvalFinished,
    LogEmitted,
    RunEnded,
    RunStarted,
    StateChanged,
    StepFinished,
)
from fttui.engine.protocol.states import RunState
from fttui.engine.run.control_log import ControlWriter
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.controlled_session import SessionOutcome
from fttui.engine.train.journal_writer import JournalWriter
from fttui.engine.watch import script_run
from fttui.engine.watch.watch_options import WatchOptions
from tests.support.matrix import in_part
from tests.support.training import Played, Script, ScriptedEventLog, read_records

from .test_scripts import only_run, run_exec

pl = pytest.importorskip("lightning.pytorch")

Patch = pytest.MonkeyPatch
STEPS = 12
"""Three passes of eight batches, two for each step."""


class Module(pl.LightningModule):  # type: ignore[misc, name-defined]  # Lightning is untyped
    """A regression with dropout and a decaying rate."""

    def __init__(self, poison: int = -1) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
        self.poison = poison
        self.taken = 0

    def training_step(self, batch: list[Tensor], number: int) -> Tensor:
        loss = (self.net(batch[0]) - batch[1]).square().mean()
        self.log("size", float(len(batch[0])))
        self.taken += 1
        return loss * float("nan") if self.taken == self.poison else loss

    def validation_step(self, batch: list[Tensor], number: int) -> None:
        self.log("val_loss", (self.net(batch[0]) - batch[1]).square().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    @property
    def weights(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.parameters()])


def loader() -> DataLoader[Any]:
    draw = torch.Generator().manual_seed(2)
    x, y = torch.randn(32, 4, generator=draw), torch.randn(32, 1, generator=draw)
    return DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True)


def fit(folder: Path, module: Module, callbacks: list[Any], **changed: Any) -> Any:
    given: dict[str, Any] = {
        "max_epochs": 3,
        "accumulate_grad_batches": 2,
        "gradient_clip_val": 0.5,
        "num_sanity_val_steps": 1,
    }
    trainer = pl.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
        **given | changed,
    )
    torch.manual_seed(3)
    trainer.fit(module, loader(), loader())
    return trainer


@dataclass
class Watched:
    """A watched training, and what its journal holds."""

    module: Module
    trainer: Any
    played: Played
    lrs: list[float] = field(default_factory=list)


def watched(
    folder: Path, monkeypatch: Patch, script: Script | None = None, poison: int = -1, **changed: Any
) -> Watched:
    from fttui.engine.watch.lightning.callback import lightning_callback

    monkeypatch.setenv("FTTUI_RUNS", str(folder / "runs"))
    monkeypatch.setattr(script_run, "launch_hub", lambda run: None)
    writers: list[ControlWriter] = []

    def scripted(run: RunDirectory | None, writer: JournalWriter | None) -> ScriptedEventLog:
        assert run is not None
        writers.append(ControlWriter(run))
        return ScriptedEventLog(writer, writers[-1], script or Script(), 1)

    callback = lightning_callback(WatchOptions(make_event_log=scripted))
    module = Module(poison)
    trainer = fit(folder, module, [callback], **changed)
    writers[0].close()
    run = only_run(folder)
    outcome = SessionOutcome(RunState.FINISHED, None)
    return Watched(module, trainer, Played(run, outcome, read_records(run)))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Module:
    """The same training without fttui."""
    module = Module()
    fit(tmp_path_factory.mktemp("alone"), module, [])
    return module


def test_a_watched_training_is_the_same_training(
    tmp_path: Path, monkeypatch: Patch, alone: Module
) -> None:
    found = watched(tmp_path, monkeypatch)
    assert torch.equal(found.module.weights, alone.weights)
    steps = found.played.events(StepFinished)
    assert [number for number, _ in found.played.at(StepFinished)] == list(range(1, STEPS + 1))
    assert all(step.grad_norm and step.loss_or_nan > 0 for step in steps)
    assert [step.lr for step in steps] == pytest.approx([0.01 * 0.9**n for n in range(STEPS)])
    assert steps[1].extra["size"] == 4.0
    assert [step.epoch for step in steps][3::4] == [1.0, 2.0, 3.0]
    validations = found.played.events(EvalFinished)
    assert [list(one.metrics) for one in validations] == [["loss"]] * 3
    assert len({one.metrics["loss"] for one in validations}) == 3
    started = found.played.events(RunStarted)[-1]
    assert (started.total_steps, started.task) == (STEPS, "Lightning")
    (ended,) = found.played.events(RunEnded)
    assert ended.state is RunState.FINISHED
    assert [e for e in found.played.events(LogEmitted) if e.level != "info"] == []
    assert found.trainer.gradient_clip_val == 0.5


def test_rate_and_clip_are_changed_for_the_updates_that_follow(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    found = watched(tmp_path, monkeypatch, Script({3: ["lr scale 0.5", "clip 0.001"]}))
    assert found.played.events(CommandFailed) == []
    steps = found.played.events(StepFinished)
    scheduled = [0.01 * 0.9**n for n in range(STEPS)]
    assert [step.lr for step in steps[:3]] == pytest.approx(scheduled[:3])
    assert [step.lr for step in steps[3:]] == pytest.approx([lr / 2 for lr in scheduled[3:]])
    assert found.trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.01 * 0.9**STEPS)

    def halved_by_the_script(self: Module, optimizer: Any, **_: Any) -> None:
        half = self.trainer.global_step >= 3
        self.clip_gradients(optimizer, 0.001 if half else 0.5, "norm")
        for group in optimizer.param_groups:
            group["lr"] *= 0.5 if half else 1.0

    def put_back(self: Module, *arguments: Any, **named: Any) -> None:
        before = [group["lr"] for group in self.trainer.optimizers[0].param_groups]
        pl.LightningModule.optimizer_step(self, *arguments, **named)
        for group, lr in zip(self.trainer.optimizers[0].param_groups, before, strict=True):
            group["lr"] = lr

    monkeypatch.setattr(Module, "configure_gradient_clipping", halved_by_the_script)
    monkeypatch.setattr(Module, "optimizer_step", put_back)
    module = Module()
    fit(tmp_path / "by-the-script", module, [], gradient_clip_val=None)
    assert torch.equal(found.module.weights, module.weights)


def test_a_stop_ends_after_the_step(tmp_path: Path, monkeypatch: Patch) -> None:
    found = watched(tmp_path, monkeypatch, Script({5: ["stop"]}))
    assert found.trainer.global_step == 5
    (ended,) = found.played.events(RunEnded)
    assert ended.state is RunState.STOPPED


def test_a_pause_changes_no_number(tmp_path: Path, monkeypatch: Patch, alone: Module) -> None:
    script = Script({4: ["pause"]}, states={RunState.PAUSED: ["resume"]})
    found = watched(tmp_path, monkeypatch, script)
    states = [event.state for event in found.played.events(StateChanged)]
    assert RunState.PAUSED in states
    assert torch.equal(found.module.weights, alone.weights)


def test_a_loss_that_is_not_finite_changes_no_weight(tmp_path: Path, monkeypatch: Patch) -> None:
    found = watched(tmp_path, monkeypatch, poison=6)
    steps = found.played.events(StepFinished)
    assert [number for number, step in enumerate(steps, 1) if step.skipped] == [3]
    assert torch.isfinite(found.module.weights).all()


def test_what_lightning_does_not_let_us_do_is_refused(tmp_path: Path, monkeypatch: Patch) -> None:
    found = watched(tmp_path, monkeypatch, Script({3: ["rollback 1", "checkpoint"]}))
    refused = found.played.events(RunStarted)[-1].refused
    assert "its position in the data" in refused["rollback"]
    failed = [event.reason for event in found.played.events(CommandFailed)]
    assert len(failed) == 2
    assert any("ModelCheckpoint" in reason for reason in failed)


def test_a_module_that_optimizes_by_itself_is_not_watched(
    tmp_path: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fttui.engine.watch.lightning.callback import lightning_callback

    class Manual(Module):
        automatic_optimization = False

        def training_step(self, batch: list[Tensor], number: int) -> Any:
            """Train with an optimizer of its own."""

    monkeypatch.setenv("FTTUI_RUNS", str(tmp_path / "runs"))
    callback = lightning_callback(WatchOptions())
    fit(tmp_path, Manual(), [callback], accumulate_grad_batches=1, gradient_clip_val=None)
    assert "this trainer is not watched: the module optimizes by itself" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_an_error_of_the_script_is_that_of_its_run(tmp_path: Path, monkeypatch: Patch) -> None:
    class Failing(Module):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            raise ValueError("mine")

    monkeypatch.setattr(sys.modules[__name__], "Module", Failing)
    with pytest.raises(ValueError, match="mine"):
        watched(tmp_path, monkeypatch)
    events = [record.event for record in read_records(only_run(tmp_path))]
    (ended,) = [event for event in events if isinstance(event, RunEnded)]
    assert (ended.state, ended.error) == (
        RunState.FAILED,
        "ValueError: mine (raised in the script)",
    )


ENTRY = """
import sys
from lightning.pytorch import Trainer
print([type(one).__name__ for one in Trainer(logger=False).callbacks])
print([name for name in sys.modules if name.startswith("fttui.engine.watch.plain")])
"""


@pytest.mark.parametrize(
    ("switch", "wanted"),
    in_part([("", False), ("off", False), ("on", True)], [("on", True)]),
)
def test_the_entry_point_is_off_unless_asked_for(switch: str, wanted: bool, tmp_path: Path) -> None:
    from importlib.metadata import entry_points

    if not entry_points(group="lightning.pytorch.callbacks_factory", name="fttui"):
        pytest.skip("fttui was installed before it had the entry point; install it again")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ENTRY],
        capture_output=True,
        text=True,
        timeout=100,
        env={"PATH": "", "HOME": str(tmp_path), "FTTUI": switch},
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert ("FttuiCallback" in done.stdout) is wanted
    assert ("fttui.engine.watch.plain" in done.stdout) is wanted


def test_switched_off_the_callback_does_nothing(tmp_path: Path, monkeypatch: Patch) -> None:
    from fttui.engine.watch.lightning.callback import lightning_callback

    monkeypatch.setenv("FTTUI", "off")
    monkeypatch.setenv("FTTUI_RUNS", str(tmp_path / "runs"))
    fit(tmp_path, Module(), [lightning_callback(WatchOptions())], max_epochs=1)
    assert not (tmp_path / "runs").exists()


# `fttui exec` sets what the entry point asks for, which is tested above and in test_scripts.
@pytest.mark.long
def test_a_lightning_script_is_watched_without_a_change(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from tests.integration.watch.test_lightning import fit, Module; "
        f"fit(Path({str(tmp_path)!r}), Module(), [])"
    )
    done = run_exec(tmp_path, sys.executable, "-W", "ignore", "-c", code)
    assert done.returncode == 0, done.stdout + done.stderr
    events = [record.event for record in read_records(only_run(tmp_path))]
    assert len([event for event in events if isinstance(event, StepFinished)]) == STEPS
