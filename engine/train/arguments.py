"""From our configuration to the arguments of the HF and TRL trainers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ..config.plan import Plan
from ..config.schema import RunConfig
from ..model.precision import compute_dtype

_SCHEDULES = {
    "linear": "linear",
    "cosine": "cosine",
    "constant": "constant_with_warmup",
    "inverse_sqrt": "inverse_sqrt",
    "polynomial": "polynomial",
    "wsd": "warmup_stable_decay",
}
_OPTIMIZERS = {
    "adamw": "adamw_torch",
    "adamw_8bit": "adamw_bnb_8bit",
    "paged_adamw_8bit": "paged_adamw_8bit",
    "adafactor": "adafactor",
    "lion": "lion_32bit",
    "sgd": "sgd",
}
_DECAY_SHARE = 0.2
"""Of a wsd schedule that decays to zero."""


def trainer_arguments(config: RunConfig, plan: Plan, device: torch.device, out: Path) -> Any:
    """Keyword arguments both trainers understand.

    Logging, saving and evaluating are switched off there: the step loop does all three itself,
    exactly and under control. The loop only ever sees a fixed number of steps.
    """
    train = config.train
    return {
        "output_dir": str(out),
        "max_steps": plan.steps,
        "per_device_train_batch_size": train.batch,
        "gradient_accumulation_steps": train.accumulate,
        "learning_rate": train.lr,
        "lr_scheduler_type": _SCHEDULES[train.schedule],
        "lr_scheduler_kwargs": _schedule_arguments(train.schedule, plan),
        "warmup_steps": plan.warmup_steps,
        "optim": _optimizer(config, device),
        "weight_decay": train.weight_decay,
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
        "ddp_find_unused_parameters": False,
        "use_cpu": device.type == "cpu",
        **_precision(config, device),
    }


def _optimizer(config: RunConfig, device: torch.device) -> str:
    """One kernel for all weights on a GPU, unless there is a loss scale for it to know of."""
    name = _OPTIMIZERS[config.train.optimizer]
    fused = device.type == "cuda" and not _precision(config, device)["fp16"]
    return f"{name}_fused" if fused and name == "adamw_torch" else name


def _schedule_arguments(schedule: str, plan: Plan) -> dict[str, Any]:
    if schedule == "wsd":
        return {"num_decay_steps": max(1, round(plan.steps * _DECAY_SHARE))}
    return {}


def _precision(config: RunConfig, device: torch.device) -> dict[str, bool]:
    dtype = compute_dtype(config.model.precision, device)
    return {"bf16": dtype == torch.bfloat16, "fp16": dtype == torch.float16}
