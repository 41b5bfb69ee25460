"""Read a configuration of axolotl."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..tasks import COMPARING_TASKS
from .adapters import listed, read_attention, read_lora, read_modules_to_save
from .axolotl_data import read_datasets
from .draft import Draft, Imported, keys_by_reason, number, truth
from .preference_losses import read_losses
from .trainer.intervals import leave_out_evaluations, read_held_out
from .trainer.keys import (
    TrainerDefaults,
    read_changing,
    read_groups,
    read_rest,
    read_trainer,
)

TOOL = "axolotl"
DEFAULTS = TrainerDefaults(
    tool=TOOL,
    lr=2e-4,
    schedule="cosine",
    warmup=0.03,
    epochs=1.0,
    batch=1,
    optimizer="adamw_torch_fused",
    epochs_key="num_epochs",
    batch_key="micro_batch_size",
    optimizer_key="optimizer",
    schedule_key="lr_scheduler",
)
WITHOUT_EFFECT = keys_by_reason(
    {
        "a faster kernel with the same result up to rounding": """
            liger_rope liger_rms_norm liger_glu_activation liger_layer_norm
            liger_fused_linear_cross_entropy liger_cross_entropy
            liger_rms_norm_gated cut_cross_entropy lora_mlp_kernel lora_qkv_kernel
            lora_o_kernel lora_embedding_kernel unsloth_lora_mlp use_kernels
            use_scattermoe use_sonicmoe experts_implementation
            flash_attn_cross_entropy fused_attn_kernel flash_attn_rms_norm
            flash_attn_fuse_mlp flash_attn_fuse_qkv flash_optimum
            flex_attn_compile_kwargs gemma4_hybrid_attn_impl torch_compile tiled_mlp
            torch_compile_mode sdp_attention xformers_attention sage_attention
            flex_attention use_glm_dsa_kernels use_dsv4_kernels
        """,
        "how the model or tokenizer is loaded; transformers decides by the model": """
            model_type tokenizer_type tokenizer_use_fast tokenizer_legacy device_map
            is_llama_derived_model is_mistral_derived_model is_falcon_derived_model
            tokenizer_use_mistral_common low_cpu_mem_usage cls_model_config strict
            hf_use_auth_token base_model_ignore_patterns
            experimental_skip_move_to_device resize_token_embeddings_to_32x
            shrink_embeddings lora_fan_in_fan_out dataset_prepared_path
            dataset_processes dataset_keep_in_memory test_value ddp
            llama4_linearized_experts gptq_disable_exllama gptq_groupsize
            gptq_model_v1 relora_prune_ratio relora_cpu_offload relora_anneal_steps
            jagged_restart_anneal_steps moe_bnb_fast moe_dequant_chunk_size
            nvfp4_merge_aware
        """,
        "what is logged; fttui logs every step": """
            wandb_project wandb_entity wandb_watch wandb_name wandb_run_id
            wandb_log_model wandb_mode use_wandb use_mlflow mlflow_tracking_uri
            mlflow_experiment_name mlflow_run_name hf_mlflow_log_artifacts use_comet
            comet_project_name use_tensorboard use_swanlab swanlab_project
            swanlab_mode swanlab_experiment_name swanlab_description
            swanlab_log_completions swanlab_completion_log_interval
            swanlab_completion_max_buffer swanlab_workspace swanlab_log_model
            use_otel_metrics otel_metrics_host otel_metrics_port use_trackio
            profiler_steps eval_table_size eval_max_new_tokens
            eval_causal_lm_metrics do_bench_eval do_causal_lm_eval gc_steps
            unsloth_cross_entropy_loss
        """,
        "how batches are padded, packed and shuffled; fttui does it in its own way": """
            pad_to_sequence_len eval_sample_packing sample_packing_group_size
            sample_packing_bin_size sample_packing_eff_est total_num_tokens
            streaming_multipack_buffer_size shuffle_merged_datasets
        """,
    }
)
NEARLY = {
    "loss_watchdog_threshold": "the run is not stopped at a loss; fttui raises its own alerts",
    "loss_watchdog_patience": "the run is not stopped at a loss; fttui raises its own alerts",
    "bf16_full": "the precision of the adapter is train.adapter_precision",
    "gptq": "the GPTQ weights are dequantized while they are loaded",
    "bfloat16_full": "the precision of the adapter is train.adapter_precision",
}
_RELORA = "plain LoRA is trained: adapters are not merged and restarted during training"
_RESTARTS = "the schedule does not restart"
DROPPED = {
    **dict.fromkeys(("relora", "relora_steps", "relora_warmup_steps"), _RELORA),
    **dict.fromkeys(("jagged_restart_steps", "jagged_restart_warmup_steps"), _RESTARTS),
    "lora_target_parameters": "experts in one tensor get no adapter",
    "curriculum_sampling": "records are drawn at random, not in their order",
    "sample_packing_sequentially": "records are drawn at random, not in their order",
    "min_sample_len": "fttui keeps short records",
    "float32": "set model.precision: fp32 to compute in it",
}
_HARMLESS = ("liger", "cut_cross_entropy", "kernels", "swanlab", "expert_parallel")
"""Words in the names of plugins that only make training faster, share the work or log it."""
REFUSED = {
    "dpo_use_weighting": "pairs are not weighted by their probability (WPO)",
    "s2_attention": "shifted sparse attention is not supported",
    "processor_type": "fttui does not train on images, audio or video",
    "process_reward_model": "fttui trains reward models of whole answers, not of steps",
    "num_labels": "fttui does not train classifiers",
    "qat": "training with simulated quantization is not supported",
    "lisa_n_layers": "LISA is not supported",
    "llmcompressor": "sparse training is not supported",
    "peft_layers_to_transform": "name the layers in adapter.targets as a regular expression",
    "loraplus_lr_group": "groups of learning rates beside LoRA+ are not supported",
    "ebft": "energy-based training is not supported",
    "diffusion": "fttui does not train diffusion language models",
    "fp8": "training in FP8 is not supported",
    "reinit_weights": "fttui does not train a model from random weights",
    "use_eaft": "the loss EAFT is not supported",
    "use_onebitllms": "fttui does not train one-bit models",
    "trl": "online reinforcement learning is not supported",
}
_ATTENTION = {
    "flash_attention_2": "flash_attention_2",
    "flash_attention_3": "flash_attention_2",
    "sdpa": "sdpa",
    "eager": "eager",
}
_LOSSES = {"dpo": "sigmoid", "ipo": "ipo", "orpo": "orpo", "simpo": "simpo"}


def read_axolotl(given: Mapping[str, Any]) -> Imported:
    """Read a configuration of axolotl, key by key.

    Raises:
        ValueError, TypeError, AttributeError, KeyError, ArithmeticError: A value has another form
            than expected.
    """
    draft = Draft(given)
    draft.same("base_model", "model.id", str(draft.get("base_model", "")))
    _read_model(draft)
    _read_adapter(draft)
    _read_preference(draft)
    read_datasets(draft)
    _read_sizes(draft)
    read_groups(draft, _refused(draft), WITHOUT_EFFECT)
    read_changing(draft, NEARLY, DROPPED)
    _read_plugins(draft)
    read_trainer(draft, DEFAULTS)
    _read_intervals(draft)
    read_rest(draft)
    return Imported(TOOL, tuple(draft.rows), draft.values, draft.notes)


def _read_plugins(draft: Draft) -> None:
    names = listed(draft.get("plugins"))
    other = [name for name in names if not any(word in name for word in _HARMLESS)]
    if other:
        draft.dropped("plugins", f"fttui does not run {', '.join(other)}")
    elif names:
        draft.without_effect(
            "plugins", "faster kernels with the same result up to rounding, or logging"
        )


def _refused(draft: Draft) -> dict[str, str]:
    """Return {key: reason} of the keys to refuse."""
    if draft.values.get("task") != "reward" or draft.get("num_labels") != 1:
        return REFUSED
    draft.without_effect("num_labels", "a reward model gives one number")
    return {key: reason for key, reason in REFUSED.items() if key != "num_labels"}


def _read_model(draft: Draft) -> None:
    for key in ("revision_of_model",):
        if draft.get(key) is not None:
            draft.same(key, "model.revision", str(draft.get(key)))
    if draft.get("trust_remote_code") is not None:
        draft.same(
            "trust_remote_code", "model.trust_remote_code", truth(draft.get("trust_remote_code"))
        )
    for key in ("tokenizer_config", "base_model_config"):
        if draft.get(key) == draft.get("base_model"):
            draft.without_effect(key, "it names the base model itself")
        elif draft.get(key) is not None:
            draft.refused(key, "fttui does not use the tokenizer or configuration of another model")
    packed = draft.has("sample_packing")
    read_attention(draft, "attn_implementation", _ATTENTION, packed=packed)
    if draft.get("flash_attention") is not None:
        draft.without_effect(
            "flash_attention", "a faster kernel with the same result up to rounding"
        )
    _read_model_changes(draft)


def _read_model_changes(draft: Draft) -> None:
    for key in ("overrides_of_model_config", "overrides_of_model_kwargs", "model_config"):
        changes = dict(draft.get(key) or {})
        if changes.pop("output_router_logits", False) and not changes:
            reason = "the load balancing loss has the weight of the model's configuration"
            draft.differs(key, reason)
        elif changes:
            draft.refused(key, "fttui does not change the configuration of the model")
        elif draft.get(key) is not None:
            draft.without_effect(key, "it is empty")


def _read_adapter(draft: Draft) -> None:
    kind = draft.get("adapter")
    _read_quantization(draft, kind)
    if draft.get("lora_model_dir") is not None and draft.has("lora_model_dir"):
        draft.same("lora_model_dir", "adapter.start", str(draft.get("lora_model_dir")))
    if kind not in ("lora", "qlora"):
        _read_full(draft, kind)
        return
    draft.without_effect("adapter", "adapters are LoRA; model.quantize makes it QLoRA")
    read_lora(draft, "lora_r", r=8, alpha=16, dropout=0.0, tool=TOOL)
    targets = draft.get("lora_target_modules")
    if truth(draft.get("lora_target_linear")) or not targets:
        draft.default("adapter.targets", "all-linear", "lora_target_linear")
        draft.read_with("lora_target_linear", "the targets of the adapter")
        if targets:
            draft.nearly(
                "lora_target_modules", "adapter.targets", "all-linear", "lora_target_linear"
            )
    else:
        found = targets if isinstance(targets, str) else listed(targets)
        draft.same("lora_target_modules", "adapter.targets", found)
        if draft.get("lora_target_linear") is not None:
            draft.without_effect("lora_target_linear", "it is off")
    read_modules_to_save(draft, "lora_modules_to_save")
    if "loftq_config" in (draft.get("peft") or {}):
        draft.same("peft", "adapter.init", "loftq")
        draft.default("model.quantize", "nf4", "LoftQ starts from the error of NF4")
    if draft.has("unfrozen_parameters"):
        draft.without_effect("unfrozen_parameters", "with an adapter, only the adapter is trained")


def _read_quantization(draft: Draft, kind: Any) -> None:
    four, eight = truth(draft.get("load_in_4bit")), truth(draft.get("load_in_8bit"))
    form = "nf4" if four or (kind == "qlora" and not eight) else "int8" if eight else "none"
    if kind not in ("lora", "qlora"):
        form = "none"
    options = draft.get("bnb_config_kwargs") or {}
    if form == "nf4" and options.get("bnb_4bit_quant_type") == "fp4":
        form = "fp4"
    for key in ("load_in_4bit", "load_in_8bit"):
        if draft.get(key) is not None:
            draft.same(key, "model.quantize", form)
    draft.values["model.quantize"] = form
    draft.notes.setdefault("model.quantize", f"adapter: {kind}" if kind else "full fine-tuning")
    _read_experts(draft, form)
    _read_stored_form(draft)
    if options:
        double = truth(options.get("bnb_4bit_use_double_quant", True))
        draft.same("bnb_config_kwargs", "model.double_quant", double)


def _read_stored_form(draft: Draft) -> None:
    """Read how weights that are stored quantized are loaded."""
    key, options = "model_quantization_config", "model_quantization_config_kwargs"
    dequantized = truth((draft.get(options) or {}).get("dequantize"))
    if draft.has(key) and not dequantized:
        draft.refused(key, "a base in this form is trained only with dequantize: true")
    elif draft.has(key):
        draft.same(key, "model.quantize", "none")
    draft.read_with(options, key)


def _read_experts(draft: Draft, form: str) -> None:
    key = "quantize_moe_experts"
    if draft.get(key) is None:
        return
    wanted, quantized = draft.has(key), form in ("nf4", "fp4")
    if wanted and quantized:
        draft.without_effect(key, "experts are quantized with the rest of the model")
    elif not wanted and quantized:
        draft.differs(key, "experts are quantized with the rest of the model all the same")
    elif not wanted:
        draft.without_effect(key, "experts in one tensor are not quantized")
    else:
        draft.dropped(key, f"experts in one tensor are not quantized with quantize: {form}")


def _read_full(draft: Draft, kind: Any) -> None:
    if kind is not None:
        draft.refused("adapter", f"adapters of the kind {kind} are not supported; LoRA is")
    draft.default("adapter.kind", "none", "no adapter: full fine-tuning")
    layers = listed(draft.get("unfrozen_parameters"))
    if layers:
        pattern = "|".join(f"(?:{one.strip('^')}.*)" for one in layers)
        reason = "a regular expression for the full names of the weights"
        draft.nearly("unfrozen_parameters", "train.layers", pattern, reason)
    for key in ("lora_r", "lora_alpha", "lora_dropout", "lora_target_linear", "lora_target_modules",
                "lora_modules_to_save", "full_finetune"):  # fmt: skip
        if draft.get(key) is not None:
            draft.without_effect(key, "there is no adapter")


def _read_preference(draft: Draft) -> None:
    if truth(draft.get("reward_model")):
        draft.same("reward_model", "task", "reward")
    if draft.get("center_rewards_coefficient") is not None:
        centering = float(number(draft.get("center_rewards_coefficient")))
        draft.same("center_rewards_coefficient", "reward.centering", centering)
    kind = draft.get("rl")
    if kind is None:
        return
    if kind not in (*_LOSSES, "kto"):
        draft.refused("rl", f"the training {kind} is not supported")
        return
    draft.same("rl", "task", "kto" if kind == "kto" else "dpo")
    if kind in _LOSSES:
        draft.default("preference.loss", _LOSSES[kind], f"rl: {kind}")
    if kind == "dpo":
        read_losses(draft, "dpo_loss_type", listed(draft.get("dpo_loss_type")), "dpo_loss_weights")
    if kind == "simpo" and draft.get("cpo_alpha") is None:
        draft.default("preference.ce_weight", 1.0, f"default of {TOOL}")
    numbers = {
        "rl_beta": "preference.beta",
        "dpo_beta": "preference.beta",
        "dpo_label_smoothing": "preference.label_smoothing",
        "orpo_alpha": "preference.beta",
        "rpo_alpha": "preference.ce_weight",
        "cpo_alpha": "preference.ce_weight",
        "simpo_gamma": "preference.gamma",
        "kto_desirable_weight": "preference.desirable_weight",
        "kto_undesirable_weight": "preference.undesirable_weight",
    }
    for key, path in numbers.items():
        if draft.get(key) is not None:
            draft.same(key, path, float(number(draft.get(key))))


def _read_sizes(draft: Draft) -> None:
    if draft.has("streaming"):
        draft.same("streaming", "data.streaming", True)
    if draft.get("sequence_len") is None:
        draft.default("data.max_length", 512, f"default of {TOOL}")
    else:
        _read_length(draft)
    packs = draft.get("sample_packing")
    if truth(packs) and draft.values.get("task") in COMPARING_TASKS:
        draft.without_effect("sample_packing", "preferences are not packed")
    elif truth(packs) and draft.values.get("data.streaming"):
        draft.dropped("sample_packing", "streamed data are not packed")
    elif packs is not None:
        draft.same("sample_packing", "data.packing", truth(packs))
    if draft.get("train_on_inputs") is not None:
        draft.same(
            "train_on_inputs", "data.completion_only", not truth(draft.get("train_on_inputs"))
        )
    if draft.has("dataset_exact_deduplication"):
        draft.same("dataset_exact_deduplication", "data.dedup", "exact")
    _read_total_batch(draft)
    if not draft.get("test_datasets"):
        read_held_out(draft, "val_set_size", TOOL)


def _read_total_batch(draft: Draft) -> None:
    """Read `batch_size`, the sequences of a step, which counts without a number of accumulations.

    `gradient_accumulation_steps` is read later, with the keys that all tools have.
    """
    key, accumulate = "batch_size", "gradient_accumulation_steps"
    if draft.get(key) is None:
        return
    if draft.get(accumulate) is not None:
        draft.without_effect(key, f"micro_batch_size and {accumulate} decide it")
        return
    steps = int(number(draft.get(key))) // int(number(draft.get("micro_batch_size", 1)))
    draft.same(key, "train.accumulate", max(1, steps))


def _read_length(draft: Draft) -> None:
    key, how = "sequence_len", draft.get("excess_length_strategy", "drop")
    length = int(number(draft.get(key)))
    if how == "truncate":
        draft.same(key, "data.max_length", length)
    else:
        effect = "stops at" if how == "raise" else "drops"
        reason = f"axolotl {effect} longer records; they are truncated here, and counted as cut"
        draft.nearly(key, "data.max_length", length, reason)
    draft.read_with("excess_length_strategy", key)


def _read_intervals(draft: Draft) -> None:
    streamed = draft.values.get("data.streaming")
    for key, section in (("evals_per_epoch", "eval"), ("saves_per_epoch", "checkpoint")):
        value = draft.get(key)
        if value is None:
            continue
        if streamed and number(value) > 0:
            reason = f"the length of an epoch of streamed data is unknown; set {section}.every"
            draft.dropped(key, reason)
            continue
        if number(value) <= 0:
            draft.same(key, f"{section}.every", 0)
        else:
            draft.same(key, f"{section}.per_epoch", number(value))
    if not streamed and not {"eval.every", "eval.per_epoch"} & set(draft.values):
        draft.default("eval.per_epoch", 1, f"default of {TOOL}")
    leave_out_evaluations(draft)
    if not streamed and not {"checkpoint.every", "checkpoint.per_epoch"} & set(draft.values):
        draft.default("checkpoint.per_epoch", 1, f"default of {TOOL}")
