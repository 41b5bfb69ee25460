"""The configuration of a watched run, as far as the arguments of its trainer say it."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from ..config.load import dump_config
from ..config.schema import (
    CheckpointConfig,
    DataConfig,
    EvalConfig,
    ModelConfig,
    RunConfig,
    TrainConfig,
)

_TASKS = (("DPO", "dpo"), ("KTO", "kto"), ("SentenceTransformer", "contrastive"))
_LEAST_LR = 1e-12
SCRIPT_DATA = "(read by the script)"


def watched_config(trainer: Any, name: str, checkpoint_every: int, keep: int) -> RunConfig:
    """Return the configuration that control, monitoring and the app read."""
    args = trainer.args
    steps = int(args.max_steps) if args.max_steps and args.max_steps > 0 else None
    epochs = None if steps else float(args.num_train_epochs)
    train = TrainConfig(
        steps=steps,
        epochs=epochs,
        batch=max(1, int(args.per_device_train_batch_size)),
        accumulate=max(1, int(args.gradient_accumulation_steps)),
        lr=max(float(args.learning_rate or 0.0), _LEAST_LR),
        weight_decay=float(args.weight_decay),
        clip=float(args.max_grad_norm or 0.0),
        seed=int(args.seed),
        devices=max(1, int(args.world_size)),
    )
    return RunConfig(
        model=ModelConfig(id=model_name(trainer.model), quantize="none"),
        data=DataConfig(train=SCRIPT_DATA),
        train=train,
        name=name,
        task=task_of(trainer),
        eval=EvalConfig(every=0),
        checkpoint=CheckpointConfig(every=checkpoint_every, keep=keep, at_start=True),
    )


def resolved_text(config: RunConfig) -> str:
    """Return the configuration as YAML, with a word about where it comes from."""
    origin = "# From the arguments of the trainer of a watched script; it cannot start a run.\n"
    return origin + dump_config(config)


def source_text(trainer: Any) -> str:
    """Return what the user wrote: the command and the trainer's own arguments, as YAML."""
    given = trainer.args.to_dict()
    lines = [f"{key}: {json.dumps(value, default=str)}" for key, value in sorted(given.items())]
    return f"# {command_line()}\n# {type(trainer).__module__}.{type(trainer).__qualname__}\n" + (
        "\n".join(lines) + "\n"
    )


def command_line() -> str:
    """Return the command that started this process."""
    return shlex.join([Path(sys.executable).name, *sys.argv])


def script_path() -> Path:
    """Return the script of this process, or the current folder in an interactive session."""
    return Path(sys.argv[0] or ".").absolute()


def run_name(trainer: Any) -> str:
    """Return the name that the user gave the run, else that of the script."""
    return str(trainer.args.run_name or "") or script_path().stem or "script"


def model_name(model: Any) -> str:
    """Return the id or folder that a model was loaded from, or the name of its class."""
    config = getattr(model, "config", None)
    return str(getattr(config, "name_or_path", "") or type(model).__name__)


def task_of(trainer: Any) -> Any:
    """Return the task of fttui that is most like that of the trainer."""
    name = type(trainer).__name__
    return next((task for sign, task in _TASKS if name.startswith(sign)), "sft")
