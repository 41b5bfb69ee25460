"""The configuration of a script's run, and the command that started the script."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from ..config.load import dump_config
from ..config.schema import (
    CheckpointConfig,
    DataConfig,
    EvalConfig,
    GuardConfig,
    ModelConfig,
    RunConfig,
    TrainConfig,
)
from ..core.guard import HISTORY_STEPS
from .checkpoint_plan import CheckpointPlan

LEAST_LR = 1e-12
"""Learning rate in the configuration of a script that names none; 0 is not a valid value there."""
SCRIPT_DATA = "(read by the script)"


def script_config(
    model: str,
    train: TrainConfig,
    name: str,
    plan: CheckpointPlan,
    keep: int,
    *,
    task: Any = "sft",
    scaled: bool = False,
) -> RunConfig:
    """Return the configuration of a script's run from what is known about it.

    Args:
        model: id or class of the model.
        train: what is known about optimizer and batches.
        name: name of the run.
        plan: when checkpoints are written.
        keep: newest checkpoints that are kept.
        task: the task of fttui that is most like that of the script.
        scaled: whether a loss scaler finds its scale by overflows, so that they halt nothing.
    """
    checkpoint = CheckpointConfig(every=plan.every, keep=keep, at_start=plan.at_start)
    return RunConfig(
        model=ModelConfig(id=model, quantize="none"),
        data=DataConfig(train=SCRIPT_DATA),
        train=train,
        name=name,
        task=task,
        eval=EvalConfig(every=0),
        checkpoint=checkpoint,
        guard=GuardConfig(nonfinite_budget=HISTORY_STEPS) if scaled else GuardConfig(),
    )


def resolved_text(config: RunConfig) -> str:
    """Return the configuration as YAML, with a comment that names its source."""
    origin = "# From the arguments of the trainer of a watched script; it cannot start a run.\n"
    return origin + dump_config(config)


def command_line() -> str:
    """Return the command that started this process."""
    return shlex.join([Path(sys.executable).name, *sys.argv])


def script_path() -> Path:
    """Return the absolute path of `sys.argv[0]`: the script, or the program that runs a notebook.

    At the prompt of Python it is the current folder.
    """
    return Path(sys.argv[0] or ".").absolute()


def model_name(model: Any) -> str:
    """Return the id or folder that a model was loaded from, or the name of its class."""
    config = getattr(model, "config", None)
    return str(getattr(config, "name_or_path", "") or type(model).__name__)
