"""Keys of transformers' `TrainingArguments`, which axolotl, LLaMA-Factory and TRL have as well."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ...sections.optimizers import OPTIMIZERS
from ..draft import Draft, keys_by_reason, number, truth
from .intervals import read_checkpoints, read_evaluations
from .parallel import read_parallel

OPTIMIZER_NAMES = {
    **dict.fromkeys(("adamw_torch", "adamw_torch_fused", "adamw_hf"), "adamw"),
    **dict.fromkeys(("adamw_bnb_8bit", "adamw_8bit"), "adamw_8bit"),
    "paged_adamw_8bit": "paged_adamw_8bit",
    "adafactor": "adafactor",
    "lion_32bit": "lion",
    "lion_8bit": "lion_8bit",
    "paged_lion_8bit": "paged_lion_8bit",
    "sgd": "sgd",
    "ademamix": "ademamix",
    "stable_adamw": "stable_adamw",
}
NEAR_OPTIMIZERS = {
    "adamw_torch_8bit": ("adamw_8bit", "the 8-bit state of bitsandbytes, not of torchao"),
    "adamw_torch_4bit": ("adamw_8bit", "8-bit state: a 4-bit one is not supported"),
    "paged_adamw_32bit": ("adamw", "the state stays on the GPU"),
    "paged_adamw": ("adamw", "the state stays on the GPU"),
    "paged_lion_32bit": ("lion", "the state stays on the GPU"),
    "paged_ademamix_32bit": ("ademamix", "the state stays on the GPU"),
    "muon": ("muon", "its rates are matched to those of AdamW, so check train.lr"),
    "galore_adamw": ("galore", "it projects all matrices, by train.projection"),
    "apollo_adamw": ("apollo", "it projects all matrices, by train.projection"),
}
_PAIR = re.compile(r"(\w+)\s*=\s*([^,\s]+)")
SCHEDULES = {
    "cosine": "cosine",
    "linear": "linear",
    "constant": "constant",
    "constant_with_warmup": "constant",
    "inverse_sqrt": "inverse_sqrt",
    "cosine_with_restarts": "cosine_restarts",
    "cosine_with_min_lr": "cosine",
    "warmup_stable_decay": "wsd",
    "one_cycle": "one_cycle",
}
WITHOUT_EFFECT = keys_by_reason(
    {
        "where and how files and logs are written": """
            output_dir overwrite_output_dir logging_dir save_safetensors
            save_only_model push_to_hub hub_model_id hub_strategy hub_token
            hub_private_repo hub_revision hub_model_revision hub_always_push
            do_train cache_dir auto_find_batch_size save_on_each_node
        """,
        "what is logged; fttui logs every step": """
            report_to logging_steps logging_strategy logging_first_step log_level
            log_level_replica log_on_each_node disable_tqdm
            include_num_input_tokens_seen include_tokens_per_second plot_loss
            logging_nan_inf_filter project debug trackio_space_id
            skip_memory_metrics include_for_metrics run_name
        """,
        "how fast it runs; the result does not depend on it": """
            dataset_num_proc preprocessing_num_workers dataloader_num_workers tf32
            dataloader_pin_memory dataloader_prefetch_factor
            dataloader_persistent_workers ddp_timeout ddp_find_unused_parameters
            ddp_bucket_cap_mb ddp_backend ddp_broadcast_buffers
            gradient_checkpointing gradient_checkpointing_kwargs torch_compile
            torch_compile_backend torch_compile_mode low_cpu_mem_usage
            use_liger_kernel liger_kernel_config remove_unused_columns use_cpu
            torch_empty_cache_steps eval_accumulation_steps activation_offloading
            average_tokens_across_devices overwrite_cache use_fast_tokenizer
            restore_callback_states_from_checkpoint accelerator_config padding_free
            dataloader_drop_last eval_delay batch_eval_metrics prediction_loss_only
            activation_checkpointing eval_do_concat_batches dataloader_in_order
            length_column_name ignore_data_skip past_index local_rank label_names
            jit_mode_eval use_liger max_memory gpu_memory_limit
        """,
    }
)
"""Keys that do not change the result, and what they are about."""
_OF_TRACKERS = (
    *("wandb_", "mlflow_", "comet_", "swanlab_", "trackio_", "tensorboard_", "neptune_"),
    *("hub_", "push_to_hub", "eval_table_", "hf_mlflow_", "clearml_", "ray_"),
)
"""Beginnings of keys that do not change the result, in any version of a tool."""
REFUSED = {
    "optim_target_modules": "GaLore, APOLLO and LOMO are not supported",
}


@dataclass(frozen=True)
class TrainerDefaults:
    """What a tool does when a key is not given."""

    tool: str
    lr: float
    schedule: str = "linear"
    warmup: float = 0.0
    epochs: float = 3.0
    batch: int = 8
    optimizer: str = "adamw_torch"
    epochs_key: str = "num_train_epochs"
    batch_key: str = "per_device_train_batch_size"
    optimizer_key: str = "optim"
    schedule_key: str = "lr_scheduler_type"


def read_trainer(draft: Draft, defaults: TrainerDefaults) -> None:
    """Read optimizer, schedule, length, batch, intervals, precision and how devices share the work.

    Args:
        draft: the configuration that is read.
        defaults: what the tool does where a key is not given.

    Raises:
        ValueError, ArithmeticError: A number cannot be read or used.
    """
    _read_optimizer(draft, defaults)
    _read_rate(draft, defaults)
    _read_schedule(draft, defaults)
    _read_length(draft, defaults)
    _read_batch(draft, defaults)
    _read_numbers(draft)
    _read_precision(draft)
    read_evaluations(draft)
    read_checkpoints(draft)
    read_parallel(draft, defaults.tool)
    read_groups(draft, REFUSED, WITHOUT_EFFECT)


def read_groups(
    draft: Draft, refused: Mapping[str, str], without_effect: Mapping[str, str]
) -> None:
    """Note the given keys that are refused, and those without an effect.

    Args:
        draft: the configuration that is read.
        refused: key → reason; a key that is off is noted as without effect.
        without_effect: key → reason.
    """
    for key, reason in refused.items():
        if draft.has(key):
            draft.refused(key, reason)
        elif draft.get(key) is not None:
            draft.without_effect(key, "it is off")
    for key, reason in without_effect.items():
        if draft.get(key) is not None:
            draft.without_effect(key, reason)


def read_changing(draft: Draft, nearly: Mapping[str, str], dropped: Mapping[str, str]) -> None:
    """Note the given keys that change the result; a key that is off is noted as without effect.

    Args:
        draft: the configuration that is read.
        nearly: key → reason, for keys whose effect in fttui differs a little.
        dropped: key → reason, for keys without a counterpart in fttui.
    """
    for key, reason in {**nearly, **dropped}.items():
        if not draft.has(key):
            if draft.get(key) is not None:
                draft.without_effect(key, "it is off")
        elif key in nearly:
            draft.differs(key, reason)
        else:
            draft.dropped(key, reason)


def read_rest(draft: Draft) -> None:
    """Note the keys that no rule has read as dropped, or as without effect if off or empty."""
    for key in list(draft.unread()):
        if draft.get(key) in (False, [], {}, ""):
            draft.without_effect(key, "it is off")
        elif key.startswith(_OF_TRACKERS):
            draft.without_effect(key, "what is logged, and where files are uploaded")
        else:
            draft.unknown(key)


def _read_optimizer(draft: Draft, defaults: TrainerDefaults) -> None:
    key = defaults.optimizer_key
    name = draft.get(key)
    if name is None:
        found = OPTIMIZER_NAMES[defaults.optimizer]
        draft.default("train.optimizer", found, f"default of {defaults.tool}")
    elif name in OPTIMIZER_NAMES:
        draft.same(key, "train.optimizer", OPTIMIZER_NAMES[name])
    elif name in NEAR_OPTIMIZERS:
        near, reason = NEAR_OPTIMIZERS[name]
        draft.nearly(key, "train.optimizer", near, reason)
    else:
        draft.refused(key, f"the optimizer {name} is not supported", "train.optimizer")
    _read_moments(draft)
    _leave_out_moments(draft)


def _read_moments(draft: Draft) -> None:
    """Read betas and epsilon, also those in `optim_args`, which have precedence."""
    usual = (0.9, 0.999)
    beta1, beta2 = draft.get("adam_beta1"), draft.get("adam_beta2")
    if beta1 is not None or beta2 is not None:
        betas = [number(beta1 or usual[0]), number(beta2 or usual[1])]
        for beta in ("adam_beta1", "adam_beta2"):
            if draft.get(beta) is not None:
                draft.same(beta, "train.betas", betas)
    for key in ("adam_epsilon", "adam_eps"):
        if draft.get(key) is not None:
            draft.same(key, "train.epsilon", number(draft.get(key)))
    key = "optim_args"
    given = draft.get(key) or {}
    pairs = given if isinstance(given, Mapping) else dict(_PAIR.findall(str(given)))
    for name, path in (("eps", "train.epsilon"), ("epsilon", "train.epsilon")):
        if name in pairs:
            draft.same(key, path, number(pairs[name]))
    if isinstance(pairs.get("betas"), list):
        draft.same(key, "train.betas", [number(one) for one in pairs["betas"]])
    other = sorted(set(pairs) - {"eps", "epsilon", "betas"})
    if other or (given and not pairs):
        draft.dropped(key, f"not used: {', '.join(other) or 'its form is not known'}")


def _leave_out_moments(draft: Draft) -> None:
    """Unset betas and epsilon if the optimizer has none; the other tool ignores them too."""
    name = str(draft.values.get("train.optimizer", ""))
    kind = OPTIMIZERS.get(name)
    for path, having in (
        ("train.betas", kind is not None and kind.betas),
        ("train.epsilon", kind is not None and kind.epsilon),
    ):
        if not having:
            draft.leave_out(path, "no effect", f"the optimizer {name} has none")


def _read_rate(draft: Draft, defaults: TrainerDefaults) -> None:
    if draft.get("learning_rate") is None:
        draft.default("train.lr", defaults.lr, f"default of {defaults.tool}")
    else:
        draft.same("learning_rate", "train.lr", number(draft.get("learning_rate")))
    lr = draft.values["train.lr"]
    if draft.has("loraplus_lr_ratio"):
        ratio = number(draft.get("loraplus_lr_ratio"))
        draft.same("loraplus_lr_ratio", "train.lr_ratios.lora_b", ratio)
    for key in ("loraplus_lr_embedding", "embedding_lr"):
        if draft.has(key):
            draft.same(key, "train.lr_ratios.embeddings", number(draft.get(key)) / lr)
    if draft.has("embedding_lr_scale"):
        scale = number(draft.get("embedding_lr_scale"))
        draft.same("embedding_lr_scale", "train.lr_ratios.embeddings", scale)


def _read_schedule(draft: Draft, defaults: TrainerDefaults) -> None:
    key = defaults.schedule_key
    options = draft.get("lr_scheduler_kwargs") or {}
    name = draft.get(key) or defaults.schedule
    if draft.get(key) is None:
        draft.default("train.schedule", SCHEDULES[name], f"default of {defaults.tool}")
    elif name == "polynomial":
        _read_polynomial(draft, key, options)
    elif name == "warmup_stable_decay":
        draft.nearly(
            key, "train.schedule", "wsd", "the learning rate decays in the last 20 % of the steps"
        )
    elif name in SCHEDULES:
        draft.same(key, "train.schedule", SCHEDULES[name])
    else:
        draft.refused(key, f"the schedule {name} is not supported", "train.schedule")
    if name == "cosine_with_restarts":
        cycles = int(options.get("num_cycles") or 1)
        draft.default("train.schedule_cycles", cycles, "cycles of cosine_with_restarts")
    _read_floor(draft, options)
    _read_warmup(draft, name, defaults)


def _read_polynomial(draft: Draft, key: str, options: Mapping[str, Any]) -> None:
    power = float(number(options.get("power") or 1))
    draft.same(key, "train.schedule", "polynomial" if power != 1 else "linear")
    if power not in (1, 2):
        draft.values["train.schedule_power"] = power


def _read_floor(draft: Draft, options: Mapping[str, Any]) -> None:
    lr = draft.values["train.lr"]
    key = "cosine_min_lr_ratio"
    if draft.has(key):
        draft.same(key, "train.lr_floor", float(number(draft.get(key))))
    floor = options.get("min_lr_rate")
    if floor is None and options.get("min_lr") is not None:
        floor = number(options["min_lr"]) / lr
    if floor is not None:
        draft.same("lr_scheduler_kwargs", "train.lr_floor", float(number(floor)))
    elif options:
        known = {"num_cycles", "power", "num_decay_steps", "lr_end", "min_lr", "min_lr_rate"}
        if other := sorted(set(options) - known):
            draft.dropped("lr_scheduler_kwargs", f"the schedule has no {', '.join(other)} here")
        else:
            draft.without_effect("lr_scheduler_kwargs", "read with the schedule")


def _read_warmup(draft: Draft, schedule: str, defaults: TrainerDefaults) -> None:
    steps, ratio = draft.get("warmup_steps"), draft.get("warmup_ratio")
    given = [
        key
        for key, value in (("warmup_steps", steps), ("warmup_ratio", ratio))
        if value is not None
    ]
    if schedule == "constant" and defaults.tool != "axolotl":
        draft.values["train.warmup"] = 0.0
        for key in given:
            draft.without_effect(key, f"the schedule constant has no warm-up in {defaults.tool}")
        return
    for key in given:
        value = number(draft.get(key))
        if key == "warmup_ratio" and steps:
            draft.without_effect(key, "warmup_steps has precedence")
        elif key == "warmup_steps" and not value and ratio:
            draft.without_effect(key, "warmup_ratio is given")
        else:
            draft.same(key, "train.warmup", value)
    if not given:
        draft.default("train.warmup", defaults.warmup, f"default of {defaults.tool}")


def _read_length(draft: Draft, defaults: TrainerDefaults) -> None:
    steps, key = draft.get("max_steps"), defaults.epochs_key
    if steps is not None and number(steps) > 0:
        draft.same("max_steps", "train.steps", int(number(steps)))
        if draft.get(key) is not None:
            draft.without_effect(key, "max_steps has precedence")
        return
    if steps is not None:
        draft.without_effect("max_steps", "it is off")
    if draft.get(key) is None:
        draft.default("train.epochs", defaults.epochs, f"default of {defaults.tool}")
    else:
        draft.same(key, "train.epochs", float(number(draft.get(key))))


def _read_batch(draft: Draft, defaults: TrainerDefaults) -> None:
    key = defaults.batch_key
    if draft.get(key) is None:
        draft.default("train.batch", defaults.batch, f"default of {defaults.tool}")
    else:
        draft.same(key, "train.batch", int(number(draft.get(key))))
    key = "gradient_accumulation_steps"
    if draft.get(key) is None and "train.accumulate" not in draft.values:
        draft.default("train.accumulate", 1, f"default of {defaults.tool}")
    elif draft.get(key) is not None:
        draft.same(key, "train.accumulate", int(number(draft.get(key))))
    for key in ("per_device_eval_batch_size", "eval_batch_size"):
        if draft.get(key) is not None:
            draft.same(key, "eval.batch", int(number(draft.get(key))))


_NUMBERS = {
    "weight_decay": "train.weight_decay",
    "max_grad_norm": "train.clip",
    "neftune_noise_alpha": "train.neftune",
    "label_smoothing_factor": "train.label_smoothing",
}


def _read_numbers(draft: Draft) -> None:
    for key, path in _NUMBERS.items():
        if draft.get(key) is not None:
            draft.same(key, path, float(number(draft.get(key))))
    for key in ("seed", "data_seed"):
        if draft.get(key) is None:
            continue
        if key == "seed":
            reason = "the same seed gives other random numbers here"
            draft.nearly(key, "train.seed", int(number(draft.get(key))), reason)
        else:
            draft.without_effect(key, "train.seed is the seed of the order of the data too")
    _read_sampling(draft)
    _read_resume(draft)
    if draft.has("full_determinism"):
        draft.same("full_determinism", "train.deterministic", True)


def _read_resume(draft: Draft) -> None:
    key = "resume_from_checkpoint"
    if (
        draft.has(key)
        and isinstance(draft.get(key), str)
        and draft.get(key).lower() not in ("true", "false")
    ):
        draft.dropped(key, "checkpoints of other tools cannot be resumed")
    for key in ("resume_from_checkpoint", "auto_resume_from_checkpoints"):
        if key in draft.unread():
            draft.without_effect(key, "fttui run --resume continues a run of fttui")


def _read_sampling(draft: Draft) -> None:
    grouped = "fttui draws batches at random and does not group them by length"
    if draft.has("group_by_length"):
        draft.dropped("group_by_length", grouped)
    strategy = draft.get("train_sampling_strategy")
    if strategy == "random":
        draft.without_effect("train_sampling_strategy", "fttui draws batches at random")
    elif strategy is not None:
        draft.dropped("train_sampling_strategy", grouped)


def _read_precision(draft: Draft) -> None:
    wanted = {
        "bf16": "bf16",
        "bfloat16": "bf16",
        "pure_bf16": "bf16",
        "fp16": "fp16",
        "float16": "fp16",
    }
    chosen = [
        key for key in wanted if draft.get(key) not in (None, "auto") and truth(draft.get(key))
    ]
    decided = any(wanted[key] == "fp16" for key in chosen)
    for key in wanted:
        if draft.get(key) is not None:
            _read_switch(draft, key, wanted[key], chosen, decided=decided)
    if (mixed := draft.get("mixed_precision")) is not None:
        form = next((one for one in ("bf16", "fp16") if one in str(mixed)), "fp32")
        draft.same("mixed_precision", "model.precision", form)
    for key in ("torch_dtype", "dtype"):
        names = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "auto": "auto"}
        if draft.get(key) in names and not chosen:
            draft.same(key, "model.precision", names[draft.get(key)])
        elif draft.get(key) is not None:
            draft.without_effect(key, "the precision of the computation is model.precision")


def _read_switch(
    draft: Draft, key: str, form: str, chosen: Collection[str], *, decided: bool
) -> None:
    """Read one of the keys that switch a precision on, off, or leave it to the tool."""
    if key == "pure_bf16" and key in chosen:
        reason = "the precision of the adapter is train.adapter_precision"
        draft.nearly(key, "model.precision", "bf16", reason)
    elif key in chosen:
        draft.same(key, "model.precision", form)
    elif draft.get(key) != "auto":
        draft.without_effect(key, "it is off")
    elif decided:
        draft.without_effect(key, "fp16 is set")
    else:
        draft.same(key, "model.precision", "auto")
