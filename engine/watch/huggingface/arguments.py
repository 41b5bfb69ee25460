"""The configuration of a watched run, as far as it follows from its trainer's arguments."""

from __future__ import annotations

import json
from typing import Any

from ...config.schema import RunConfig, TrainConfig
from ..checkpoint_plan import CheckpointPlan
from ..script_config import LEAST_LR, command_line, model_name, script_config, script_path

_TASKS = (("DPO", "dpo"), ("KTO", "kto"), ("SentenceTransformer", "contrastive"))


def watched_config(trainer: Any, name: str, plan: CheckpointPlan, keep: int) -> RunConfig:
    """Return the configuration that control, monitoring and the app read, from the arguments."""
    args = trainer.args
    steps = int(args.max_steps) if args.max_steps and args.max_steps > 0 else None
    epochs = None if steps else float(args.num_train_epochs)
    train = TrainConfig(
        steps=steps,
        epochs=epochs,
        batch=max(1, int(args.per_device_train_batch_size)),
        accumulate=max(1, int(args.gradient_accumulation_steps)),
        lr=max(float(args.learning_rate or 0.0), LEAST_LR),
        weight_decay=float(args.weight_decay),
        clip=float(args.max_grad_norm or 0.0),
        seed=int(args.seed),
        devices=max(1, int(args.world_size)),
    )
    model = model_name(trainer.model)
    return script_config(
        model, train, name, plan, keep, task=task_of(trainer), scaled=bool(args.fp16)
    )


def source_text(trainer: Any) -> str:
    """Return what the user wrote: the command and the trainer's own arguments, as YAML."""
    given = trainer.args.to_dict()
    lines = [f"{key}: {json.dumps(value, default=str)}" for key, value in sorted(given.items())]
    return f"# {command_line()}\n# {type(trainer).__module__}.{type(trainer).__qualname__}\n" + (
        "\n".join(lines) + "\n"
    )


def run_name(trainer: Any) -> str:
    """Return the name that the user gave the run, else that of the script."""
    return str(trainer.args.run_name or "") or script_path().stem or "script"


def task_of(trainer: Any) -> Any:
    """Return the task of fttui that is most like that of the trainer, by its class names.

    It is `sft` if no class name shows another one.
    """
    names = [one.__name__.lstrip("_") for one in type(trainer).__mro__]
    plain = [name.removeprefix("Unsloth") for name in names]
    return next((task for name in plain for sign, task in _TASKS if name.startswith(sign)), "sft")
