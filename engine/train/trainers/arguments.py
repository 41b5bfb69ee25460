"""Arguments of the Hugging Face and TRL trainers, derived from the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ...config.schema import RunConfig, TrainConfig
from ...config.step_plan import StepPlan
from ...errors import ConfigError
from ...model.precision import compute_dtype

_SCHEDULES = {
    "linear": "linear",
    "cosine": "cosine",
    "cosine_restarts": "cosine_with_restarts",
    "constant": "constant_with_warmup",
    "inverse_sqrt": "inverse_sqrt",
    "polynomial": "polynomial",
    "wsd": "warmup_stable_decay",
    "one_cycle": "constant_with_warmup",
    "exponential": "constant_with_warmup",
    "step": "constant_with_warmup",
}
_OPTIMIZERS = {
    "adamw": "adamw_torch",
    "adamw_8bit": "adamw_bnb_8bit",
    "paged_adamw_8bit": "paged_adamw_8bit",
    "adafactor": "adafactor",
    "lion": "lion_32bit",
    "lion_8bit": "lion_8bit",
    "paged_lion_8bit": "paged_lion_8bit",
}
"""Names in transformers; `loop.optimizer_kinds` makes the optimizers that it lacks, and
`core.schedules` the schedules."""
_WITH_FLOOR = {"linear": "polynomial", "cosine": "cosine_with_min_lr"}
"""Schedules that have another name in transformers if they end at a floor."""


def trainer_arguments(config: RunConfig, plan: StepPlan, device: torch.device, out: Path) -> Any:
    """Return keyword arguments for both the Hugging Face and the TRL trainer.

    Their logging, saving and evaluating are switched off, because fttui does all three itself. The
    Hugging Face loop runs a fixed number of steps.

    Raises:
        ConfigError: `train.batch` is still `auto`.
    """
    train = config.train
    if train.batch == "auto":
        raise ConfigError(
            "train.batch: got auto, which is decided before the engine starts; start the run with "
            "fttui run, or set a number"
        )
    return {
        "output_dir": str(out),
        "max_steps": plan.steps,
        "per_device_train_batch_size": train.micro_batch_size,
        "gradient_accumulation_steps": train.accumulation,
        "learning_rate": train.lr,
        **_schedule_arguments(train, plan),
        "warmup_steps": plan.warmup_steps,
        "optim": _optimizer(config, device),
        "weight_decay": train.weight_decay,
        "neftune_noise_alpha": train.neftune or None,
        "max_grad_norm": 1.0,
        "seed": train.seed,
        "full_determinism": train.deterministic,
        "activation_checkpointing": False,
        "logging_strategy": "no",
        "logging_nan_inf_filter": False,
        "save_strategy": "no",
        "eval_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "remove_unused_columns": False,
        # Otherwise DDP arranges gradients anew after its first backward pass, and sums over more
        # than two ranks get another order: a resumed run would differ in its first step.
        "ddp_find_unused_parameters": train.ranks > 2,
        "use_cpu": device.type == "cpu",
        **_precision(config, device),
    }


def _optimizer(config: RunConfig, device: torch.device) -> str:
    """Return the name of the optimizer in transformers.

    AdamW is fused on a GPU and with `train.fast: static`, unless fp16 needs a loss scaler.
    """
    name = _OPTIMIZERS.get(config.train.base_optimizer)
    if name is None:
        return "adamw_torch"  # not used: `create_optimizer` makes the optimizer itself
    like_a_gpu = device.type == "cuda" or config.train.fast == "static"
    fused = like_a_gpu and not _precision(config, device)["fp16"]
    return f"{name}_fused" if fused and name == "adamw_torch" else name


def _schedule_arguments(train: TrainConfig, plan: StepPlan) -> dict[str, Any]:
    schedule, floor = train.schedule, train.lr_floor
    name = _SCHEDULES[schedule]
    if floor and schedule in _WITH_FLOOR:
        name = _WITH_FLOOR[schedule]
    found: dict[str, dict[str, Any]] = {
        "cosine_with_min_lr": {"min_lr_rate": floor},
        "cosine_with_restarts": {"num_cycles": train.schedule_cycles},
        "polynomial": {
            "lr_end": train.lr * floor,
            "power": train.schedule_power if schedule == "polynomial" else 1.0,
        },
        "warmup_stable_decay": {
            "num_decay_steps": max(1, round(plan.steps * train.schedule_decay)),
            "min_lr_ratio": floor,
        },
    }
    return {"lr_scheduler_type": name, "lr_scheduler_kwargs": found.get(name, {})}


def _precision(config: RunConfig, device: torch.device) -> dict[str, bool]:
    dtype = compute_dtype(config.model.precision, device)
    return {"bf16": dtype == torch.bfloat16, "fp16": dtype == torch.float16}
