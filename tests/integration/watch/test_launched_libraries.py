"""The programs of TRL, axolotl and LLaMA-Factory under `fttui exec`, through their real packages.

`.ci/libraries` makes an environment for each of those that `make test` does not install.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from fttui.engine.protocol.commands import (
    Pause,
    Resume,
    Rollback,
    RunSteps,
    SaveCheckpoint,
    ScaleLr,
)
from fttui.engine.protocol.events import RolledBack, RunEnded, StepFinished
from fttui.engine.protocol.states import RunState
from fttui.engine.run.run_dir import RunDirectory
from fttui.tui.cli.experiments.run_driver import RunDriver
from tests.support.tiny import tiny_llama
from tests.support.training import read_records

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENTS = ROOT / ".libraries"
LORA = ["q_proj", "v_proj"]
STEPS = 16
LIMIT_S = 500


@dataclass(frozen=True)
class Library:
    """A program that trains from a configuration file."""

    environment: str
    """Name of its environment; empty for that of the tests."""
    command: tuple[str, ...]
    """Program and arguments, to which the path of the configuration is added."""
    settings: dict[str, Any]

    def bin(self) -> Path:
        """Return the folder of its program; skip the test if it is not installed."""
        own = ENVIRONMENTS / self.environment / "bin"
        for folder in (own, Path(sys.executable).parent):
            if (folder / self.command[0]).exists():
                return folder
        pytest.skip(
            f"{self.command[0]} is not installed; .ci/libraries installs it in {own.parent}"
        )


def axolotl(**more: Any) -> Library:
    """Training of all weights, because axolotl draws new adapters without a seed."""
    dataset = {"path": "rows.json", "ds_type": "json", "type": "alpaca"}
    return Library(
        "axolotl",
        ("axolotl", "train"),
        {
            "base_model": "MODEL",
            "datasets": [dataset],
            "dataset_prepared_path": "prepared",
            "output_dir": "out",
            "sequence_len": 256,
            "micro_batch_size": 2,
            "gradient_accumulation_steps": 2,
            "max_steps": STEPS,
            "num_epochs": 9,
            "optimizer": "adamw_torch",
            "learning_rate": 1e-3,
            "lr_scheduler": "cosine",
            "val_set_size": 0,
            "logging_steps": 1,
            "save_strategy": "no",
            "seed": 7,
            **dict.fromkeys(("bf16", "fp16", "tf32", "flash_attention"), False),
            "gradient_checkpointing": False,
            "special_tokens": {"pad_token": "<|pad|>"},
            **more,
        },
    )


COMMON = {
    "model_name_or_path": "MODEL",
    "output_dir": "out",
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "learning_rate": 1e-3,
    "max_steps": STEPS,
    "lr_scheduler_type": "cosine",
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
    "seed": 7,
}
LIBRARIES = {
    "trl sft": Library(
        "",
        ("trl", "sft", "--config"),
        {**COMMON, "dataset_name": "rows", "use_peft": True, "lora_r": 4, "lora_dropout": 0.05,
         "lora_target_modules": LORA, "max_length": 64},
    ),
    "axolotl": axolotl(),
    "LLaMA-Factory": Library(
        "llamafactory",
        ("llamafactory-cli", "train"),
        {**COMMON, "stage": "sft", "do_train": True, "finetuning_type": "lora", "lora_rank": 4,
         "lora_dropout": 0.05, "lora_target": ",".join(LORA), "dataset": "local",
         "dataset_dir": ".", "template": "default", "cutoff_len": 256},
    ),
}  # fmt: skip


class Training:
    """One training of a library in a folder of its own, which has model, data and configuration."""

    def __init__(self, library: Library, folder: Path, model: Path) -> None:
        self._library = library
        self._bin = library.bin()
        self._folder = folder
        (folder / "rows").mkdir(parents=True)
        rows = [{"instruction": f"say {n}", "input": "", "output": f"it is {n}"} for n in range(24)]
        (folder / "rows.json").write_text(json.dumps(rows))
        texts = [{"prompt": f"say {n}", "completion": f" it is {n}"} for n in range(24)]
        (folder / "rows" / "train.jsonl").write_text("\n".join(map(json.dumps, texts)))
        (folder / "dataset_info.json").write_text('{"local": {"file_name": "rows.json"}}')
        given = json.dumps(library.settings).replace('"MODEL"', json.dumps(str(model)))
        (folder / "my.yaml").write_text(given)

    @property
    def words(self) -> list[str]:
        """The command that trains."""
        return [*self._library.command, "my.yaml"]

    @contextmanager
    def started(self, *before: str) -> Iterator[subprocess.Popen[bytes]]:
        """Start the training; `before` are words before its command, such as `fttui exec --`."""
        path = f"{self._bin}{os.pathsep}{os.environ['PATH']}"
        offline = dict.fromkeys(
            ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"), "1"
        )
        home = {"HOME": str(self._folder), "AXOLOTL_DO_NOT_TRACK": "1", "CUDA_VISIBLE_DEVICES": ""}
        with (self._folder / "said").open("wb") as said:
            process = subprocess.Popen(
                [*before, *self.words],
                cwd=self._folder,
                stdout=said,
                stderr=subprocess.STDOUT,
                env={**os.environ, **offline, **home, "PATH": path},
            )
            try:
                yield process
            finally:
                process.terminate()
                process.wait(60)

    def alone(self) -> dict[str, torch.Tensor]:
        """Train without fttui; return the trained weights."""
        with self.started("env") as process:
            assert process.wait(LIMIT_S) == 0, self.said
        return self.weights

    def steered(self) -> RunDirectory:
        """Train under `fttui exec`: save, train on, return, and go to the end."""
        python = str(self._bin / "python")
        exec_ = (python, "-m", "fttui.tui", "exec", "--headless", "--runs-dir", "runs", "--")
        with self.started(*exec_) as process:
            steer(self._run(process))
            assert process.wait(LIMIT_S) == 0, self.said
        return self._run(process)

    def _run(self, process: subprocess.Popen[bytes]) -> RunDirectory:
        """Return the run once it has trained a step."""
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            found = [p for p in (self._folder / "runs").glob("*") if not p.name.startswith(".")]
            if found and _trains(run := RunDirectory(found[0])):
                return run
            assert process.poll() is None, self.said
            time.sleep(0.1)
        raise AssertionError(self.said)

    @property
    def said(self) -> str:
        """What the training printed."""
        return (self._folder / "said").read_text(errors="replace")

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """The weights that the library has saved: of the adapter, or all of them."""
        (path,) = (self._folder / "out").glob("*model.safetensors")
        return safetensors.torch.load_file(path)


def _trains(run: RunDirectory) -> bool:
    """Whether a run has trained a step."""
    return run.journal.exists() and any(
        isinstance(record.event, StepFinished) for record in read_records(run)
    )


def steer(run: RunDirectory) -> None:
    """Save a checkpoint, train on with another rate, return to the checkpoint, and let it train."""
    driver, why = RunDriver(run), "a test"
    driver.send(Pause(), why)
    saved = driver.send(SaveCheckpoint(), why)
    driver.send(ScaleLr(factor=0.5), why)
    driver.send(RunSteps(steps=2), why)
    driver.until_held(saved.step + 2, lambda found: None)
    driver.send(Rollback(checkpoint=saved.new), why)
    driver.send(ScaleLr(factor=1.0), why)
    driver.send(Resume(), why)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(3 * LIMIT_S)
@pytest.mark.parametrize("name", LIBRARIES)
def test_a_program_that_was_rolled_back_saves_the_weights_of_one_alone(
    name: str, tmp_path: Path
) -> None:
    library, model = LIBRARIES[name], tiny_llama(tmp_path)
    wanted = Training(library, tmp_path / "alone", model).alone()
    training = Training(library, tmp_path / "watched", model)
    events = [record.event for record in read_records(training.steered())]
    (back,) = [event for event in events if isinstance(event, RolledBack)]
    assert back.from_step == back.to_step + 2
    (ended,) = [event for event in events if isinstance(event, RunEnded)]
    assert ended.state is RunState.FINISHED
    found = training.weights
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[key], wanted[key]) for key in wanted)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(3 * LIMIT_S)
def test_the_plugin_of_axolotl_watches_without_exec(tmp_path: Path) -> None:
    adapter = {"adapter": "lora", "lora_r": 4, "lora_alpha": 8, "lora_target_modules": LORA}
    library = axolotl(plugins=["fttui.axolotl.Plugin"], **adapter)
    training = Training(library, tmp_path / "plugin", tiny_llama(tmp_path))
    training.alone()
    assert "fttui attach" in training.said
    (folder,) = (tmp_path / "plugin" / "runs").iterdir()
    steps = [
        r.step for r in read_records(RunDirectory(folder)) if isinstance(r.event, StepFinished)
    ]
    assert steps == list(range(1, STEPS + 1))
