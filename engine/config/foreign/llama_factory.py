"""Read a configuration of LLaMA-Factory, with its table of datasets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..tasks import REFERENCE_LOSSES
from .adapters import listed, read_attention, read_lora, read_modules_to_save
from .draft import Draft, Imported, keys_by_reason, number, truth
from .llama_factory_data import read_datasets
from .templates import EXACT, LLAMA_FACTORY
from .trainer.intervals import leave_out_evaluations, read_held_out
from .trainer.keys import (
    TrainerDefaults,
    read_changing,
    read_groups,
    read_rest,
    read_trainer,
)

TOOL = "LLaMA-Factory"
DEFAULTS = TrainerDefaults(tool=TOOL, lr=5e-5)
WITHOUT_EFFECT = keys_by_reason(
    {
        "how the model or the data are loaded": """
            use_fast_tokenizer low_cpu_mem_usage infer_backend cache_dir
            hf_hub_token ms_hub_token om_hub_token print_param_status
            preprocessing_batch_size overwrite_cache buffer_size tokenized_path
            data_shared_file_system ignore_pad_token_for_loss export_size
            export_device export_legacy_format do_eval predict_with_generate
            placement_strategy
        """,
        "how fast it runs; the result does not depend on it": """
            enable_liger_kernel use_unsloth use_unsloth_gc use_v1_kernels use_cache
            disable_gradient_checkpointing use_reentrant_gc upcast_layernorm
            upcast_lmhead_output include_effective_tokens_per_second
            compute_accuracy swanlab_project use_swanlab swanlab_run_name
            swanlab_mode kt_config kt_cpu_activation kt_num_threads kt_backend
            kt_tp_enabled kt_threadpool_count kt_max_cache_depth kt_share_backward_bb
        """,
    }
)
REFUSED = {
    "export_dir": "this file merges an adapter, which fttui export does",
    "do_predict": "fttui trains; it does not predict on a dataset",
    "image_max_pixels": "fttui does not train on images, audio or video",
    "video_max_pixels": "fttui does not train on images, audio or video",
    "use_galore": "GaLore is read from optim: galore_adamw",
    "use_apollo": "APOLLO is read from optim: apollo_adamw",
    "use_badam": "the optimizer BAdam is not supported",
    "use_adam_mini": "the optimizer Adam-mini is not supported",
    "use_muon": "Muon is read from optim: muon",
    "use_llama_pro": "LLaMA Pro is not supported",
    "mixture_of_depths": "mixture of depths is not supported",
    "use_dft_loss": "the loss DFT is not supported",
    "use_asft_loss": "the loss ASFT is not supported",
    "use_eaft_loss": "the loss EAFT is not supported",
    "fp8": "training in FP8 is not supported",
    "shift_attn": "shifted sparse attention is not supported",
    "rope_scaling": "fttui does not scale positions",
    "reward_model": "online reinforcement learning is not supported",
}
NEARLY = {
    "use_kt": "experts are computed on the GPU, which has to hold them; quantize: nf4 makes them "
    "a quarter as large",
    "kt_weight_path": "experts have the form of the model in model.id",
    "kt_expert_checkpoint_path": "experts have the form of the model in model.id",
    "kt_non_expert_weight_path": "weights have the form of the model in model.id",
}
_ATTENTION = {"fa2": "flash_attention_2", "sdpa": "sdpa", "disabled": "eager"}
_LOSSES = ("sigmoid", "hinge", "ipo", "orpo", "simpo")
_STAGES = {"sft": "sft", "pt": "sft", "rm": "reward", "dpo": "dpo", "kto": "kto"}
"""The task of each stage."""


def read_llama_factory(given: Mapping[str, Any], table: Mapping[str, Any], folder: str) -> Imported:
    """Read a configuration of LLaMA-Factory, key by key.

    Args:
        given: the configuration.
        table: the datasets by name, as in `dataset_info.json`.
        folder: folder of the table, in which files of datasets are.

    Raises:
        ValueError, TypeError, AttributeError, KeyError, ArithmeticError: A value has another form
            than expected.
    """
    draft = Draft(given)
    draft.same("model_name_or_path", "model.id", str(draft.get("model_name_or_path", "")))
    if draft.get("model_revision") is not None:
        draft.same("model_revision", "model.revision", str(draft.get("model_revision")))
    if draft.get("trust_remote_code") is not None:
        trusted = truth(draft.get("trust_remote_code"))
        draft.same("trust_remote_code", "model.trust_remote_code", trusted)
    read_attention(draft, "flash_attn", _ATTENTION, packed=draft.has("packing"))
    _read_stage(draft)
    _read_quantization(draft)
    _read_finetuning(draft)
    read_datasets(draft, table, folder)
    _read_sizes(draft)
    _read_records(draft)
    if "data.eval" not in draft.values:
        read_held_out(draft, "val_size", TOOL)
    read_groups(draft, REFUSED, WITHOUT_EFFECT)
    read_changing(draft, NEARLY, {"split_special_tokens": "special tokens in texts stay whole"})
    read_trainer(draft, DEFAULTS)
    leave_out_evaluations(draft)
    read_rest(draft)
    return Imported(TOOL, tuple(draft.rows), draft.values, draft.notes)


def _read_stage(draft: Draft) -> None:
    stage = draft.get("stage", "sft")
    if stage not in _STAGES:
        draft.refused("stage", f"the stage {stage} is not supported")
    elif stage == "rm":
        why = f"the head of {TOOL} also drops 10 % of the states in training"
        draft.nearly("stage", "task", _STAGES[stage], why)
    elif draft.get("stage") is not None:
        draft.same("stage", "task", _STAGES[stage])
    loss = draft.get("pref_loss")
    if loss is not None and loss not in _LOSSES:
        draft.refused("pref_loss", f"the loss {loss} is not supported")
    elif loss is not None:
        draft.same("pref_loss", "preference.loss", loss)
    numbers = {
        "pref_beta": "preference.beta",
        "pref_ftx": "preference.ce_weight",
        "simpo_gamma": "preference.gamma",
        "dpo_label_smoothing": "preference.label_smoothing",
        "kto_chosen_weight": "preference.desirable_weight",
        "kto_rejected_weight": "preference.undesirable_weight",
    }
    for key, path in numbers.items():
        if draft.get(key) is not None:
            draft.same(key, path, float(number(draft.get(key))))
    if loss == "orpo":
        _read_orpo(draft)
    _read_more_losses(draft, loss or "sigmoid")
    if draft.get("ref_model") is not None:
        draft.refused("ref_model", "the reference is the model as it was before training")


def _read_more_losses(draft: Draft, loss: str) -> None:
    """Read what is added to a loss with a reference: BCO, and the weight of long completions."""
    added, long = "pref_bco_weight", "ld_alpha"
    if draft.get(long) is not None:
        reason = f"{TOOL} counts the tokens of the reference in full"
        value = float(number(draft.get(long)))
        draft.nearly(long, "preference.ld_alpha", value, reason)
    if not draft.has(added):
        draft.read_with(added, "pref_loss")
    elif loss not in REFERENCE_LOSSES:
        draft.without_effect(added, f"{TOOL} adds it to losses with a reference only")
    else:
        weight = float(number(draft.get(added)))
        shares = {loss: 1 / (1 + weight), "bco_pair": weight / (1 + weight)}
        reason = f"{TOOL} subtracts the running mean of the rewards in the part bco_pair"
        draft.leave_out("preference.loss", "same", f"a part of the loss, with {added}")
        draft.nearly(added, "preference.loss", shares, reason)


def _read_orpo(draft: Draft) -> None:
    """Read the weight and the tokens of the next-token loss in ORPO.

    ORPO contains that loss with weight 1, and `pref_ftx` is added to this weight.
    """
    why = f"{TOOL} leaves the prompt out of its next-token loss"
    draft.default("preference.ce_tokens", "completion", why)
    if draft.get("pref_ftx") is not None:
        more = float(number(draft.get("pref_ftx")))
        draft.leave_out("preference.ce_weight", "same", "added to the next-token loss of orpo")
        draft.default("preference.ce_weight", 1.0 + more, "orpo's own 1, and pref_ftx")


def _read_quantization(draft: Draft) -> None:
    bits = draft.get("quantization_bit")
    method = draft.get("quantization_method", "bnb")
    kind = draft.get("quantization_type", "nf4")
    if bits is None:
        draft.default("model.quantize", "none", f"default of {TOOL}")
    elif method not in ("bnb", "bitsandbytes") or bits not in (4, 8):
        draft.refused("quantization_bit", f"{bits} bits with {method} are not supported")
    else:
        draft.same("quantization_bit", "model.quantize", "int8" if bits == 8 else kind)
    for key in ("quantization_method", "quantization_type"):
        if draft.get(key) is not None:
            draft.without_effect(key, "read with quantization_bit")
    if draft.get("double_quantization") is not None:
        double = truth(draft.get("double_quantization"))
        draft.same("double_quantization", "model.double_quant", double)


def _read_finetuning(draft: Draft) -> None:
    kind = draft.get("finetuning_type", "lora")
    key = "finetuning_type"
    if kind == "lora":
        if draft.get(key) is not None:
            draft.without_effect(key, "adapters are LoRA")
        _read_adapter(draft)
    elif kind in ("full", "freeze"):
        draft.same(key, "adapter.kind", "none")
        if kind == "freeze":
            _read_frozen(draft)
        for other in ("lora_rank", "lora_alpha", "lora_dropout", "lora_target"):
            if draft.get(other) is not None:
                draft.without_effect(other, "there is no adapter")
    else:
        draft.refused(key, f"adapters of the kind {kind} are not supported; LoRA is")


def _read_adapter(draft: Draft) -> None:
    rank = int(number(draft.get("lora_rank", 8)))
    read_lora(draft, "lora_rank", r=8, alpha=2 * rank, dropout=0.0, tool=TOOL)
    target = draft.get("lora_target", "all")
    found = "all-linear" if target == "all" else listed(target)
    if draft.get("lora_target") is None:
        draft.default("adapter.targets", found, f"default of {TOOL}")
    else:
        draft.same("lora_target", "adapter.targets", found)
    read_modules_to_save(draft, "additional_target")
    if draft.has("pissa_init"):
        draft.same("pissa_init", "adapter.init", "pissa")
        for key in ("pissa_iter", "pissa_convert"):
            if draft.get(key) is not None:
                draft.without_effect(key, "fttui decomposes exactly; export gives plain LoRA")
    starts = listed(draft.get("adapter_name_or_path"))
    if len(starts) > 1:
        draft.refused("adapter_name_or_path", "fttui starts from one adapter only")
    elif starts:
        draft.same("adapter_name_or_path", "adapter.start", starts[0])
    if draft.get("create_new_adapter") is not None:
        merged = truth(draft.get("create_new_adapter"))
        draft.same("create_new_adapter", "adapter.merge_first", merged)


def _read_frozen(draft: Draft) -> None:
    layers = int(number(draft.get("freeze_trainable_layers", 2)))
    if layers < 0:
        draft.refused("freeze_trainable_layers", "fttui does not train the first layers alone")
    elif draft.get("freeze_trainable_layers") is None:
        draft.default("train.layers", layers, f"default of {TOOL}")
    else:
        draft.same("freeze_trainable_layers", "train.layers", layers)
    if draft.get("freeze_trainable_modules") == "all":
        draft.without_effect("freeze_trainable_modules", "whole layers are trained")
    elif draft.get("freeze_trainable_modules") is not None:
        draft.refused("freeze_trainable_modules", "name the weights in train.layers by a pattern")


def _read_sizes(draft: Draft) -> None:
    if draft.get("cutoff_len") is None:
        draft.default("data.max_length", 2048, f"default of {TOOL}")
    else:
        reason = f"a longer record is cut at its end; {TOOL} shortens prompt and answer alike"
        if draft.get("stage") == "pt":
            reason = f"a longer text is cut; {TOOL} joins all texts and splits them at this length"
        length = int(number(draft.get("cutoff_len")))
        draft.nearly("cutoff_len", "data.max_length", length, reason)
    if draft.get("max_samples") is not None:
        draft.same("max_samples", "data.train_limit", int(number(draft.get("max_samples"))))
    _read_packing(draft)
    if draft.has("streaming"):
        draft.same("streaming", "data.streaming", True)


def _read_records(draft: Draft) -> None:
    """Read which text is learned, new tokens, reasoning, chat template and system message."""
    if draft.get("train_on_prompt") is not None:
        learned = truth(draft.get("train_on_prompt"))
        draft.same("train_on_prompt", "data.completion_only", not learned)
    if draft.get("mask_history") is not None:
        last = truth(draft.get("mask_history"))
        draft.same("mask_history", "data.train_on", "last" if last else "all")
    if draft.has("add_tokens"):
        tokens = [{"token": token} for token in listed(draft.get("add_tokens")) or []]
        draft.same("add_tokens", "model.add_tokens", tokens)
    for key in ("add_special_tokens", "new_special_tokens"):
        if draft.has(key):
            draft.same(key, "data.special_tokens", listed(draft.get(key)))
    if draft.get("resize_vocab") is not None:
        draft.without_effect("resize_vocab", "new tokens get rows by themselves")
    for key in ("enable_thinking", "reasoning_effort"):
        if draft.get(key) is not None:
            draft.differs(key, "reasoning is learned as the chat template writes it")
    _read_template(draft)
    if draft.get("default_system") is not None:
        draft.same("default_system", "data.system", str(draft.get("default_system")))


def _read_packing(draft: Draft) -> None:
    if draft.has("neat_packing"):
        draft.same("neat_packing", "data.packing", True)
        draft.read_with("packing", "neat_packing")
    elif draft.has("packing"):
        draft.nearly("packing", "data.packing", True, "attention does not cross records")
    for key in ("packing", "neat_packing"):
        if key in draft.unread():
            draft.without_effect(key, "it is off")


def _read_template(draft: Draft) -> None:
    name = draft.get("template")
    if draft.get("stage") == "pt":
        draft.read_with("template", "stage: texts have no template")
    elif name not in LLAMA_FACTORY:
        reason = f"the template of the model's tokenizer is used, not {TOOL}'s text of this name"
        if name is not None:
            draft.differs("template", reason)
    elif name not in EXACT:
        reason = "white space right beside an answer, such as a line break, is not learned"
        draft.nearly("template", "data.template", LLAMA_FACTORY[name], reason)
    else:
        draft.same("template", "data.template", LLAMA_FACTORY[name])
