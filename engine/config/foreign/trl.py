"""Read a configuration of TRL's commands, of alignment-handbook, or a `TrainingArguments` file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from ..tasks import FDivergence
from .adapters import listed, read_attention, read_lora, read_modules_to_save
from .draft import Draft, Imported, KeyOutcome, keys_by_reason, number, truth
from .preference_losses import leave_out_unused, read_losses
from .trainer.intervals import leave_out_evaluations
from .trainer.keys import (
    TrainerDefaults,
    read_changing,
    read_groups,
    read_rest,
    read_trainer,
)
from .trl_task import task_of

TOOL = "TRL"
_LRS = {"sft": 2e-5, "dpo": 1e-6, "kto": 1e-6, "reward": 1e-4}
_CPO_LOSSES = {"sigmoid": "cpo", "hinge": "slic", "simpo": "simpo", "alphapo": "simpo"}
"""The losses of its trainer CPO, which have no reference."""
_TARGETS = ["q_proj", "v_proj"]
WITHOUT_EFFECT = keys_by_reason(
    {
        "how the model or the data are loaded; transformers decides by the model": """
            lora_task_type use_fast_tokenizer dataset_streaming_buffer
            generate_during_eval precompute_ref_log_probs precompute_ref_batch_size
            pad_to_multiple_of ignore_bias_buffers eval_packing use_logits_to_keep
            shuffle_dataset ref_model_mixup_alpha ref_model_sync_steps chars_per_token
            num_of_sequences pad_token
        """,
    }
)
_ONE_LIMIT = "prompt and completion are truncated together, to data.max_length"
NEARLY = {
    "max_prompt_length": _ONE_LIMIT,
    "max_completion_length": _ONE_LIMIT,
    "truncation_mode": "sequences are truncated at data.max_length as fttui check says",
    "packing_strategy": "rows are packed by the best fit, and no record is cut for it",
    "dataset_kwargs": "special tokens are added as the chat template or the tokenizer says",
}
DROPPED = {
    "model_init_kwargs": "fttui passes no further arguments to the loading of the model",
    "model_code_revision": "the code of a model comes from model.revision",
    "tools": "fttui reads tools from the records",
}
REFUSED = {
    "num_generations": "online reinforcement learning is not supported",
    "reward_funcs": "online reinforcement learning is not supported",
    "reward_model_path": "online reinforcement learning is not supported",
    "ref_model_init_kwargs": "the reference is the model as it was before training",
    "sync_ref_model": "the reference stays as it was before training",
    "use_weighting": "pairs are not weighted by their probability (WPO)",
    "use_bnb_8bit_optimizer": "name the optimizer in optim",
    "teacher_model_name_or_path": "distillation is not supported",
}
_ATTENTION = {
    "flash_attention_2": "flash_attention_2",
    "kernels-community/flash-attn2": "flash_attention_2",
    "sdpa": "sdpa",
    "eager": "eager",
}


def read_trl(given: Mapping[str, Any], task: str | None = None, file: str = "") -> Imported:
    """Read a configuration of TRL, key by key.

    Args:
        given: the configuration.
        task: sft, dpo, kto or reward; None concludes it from the keys.
        file: the last parts of the path of the file.

    Raises:
        ValueError, TypeError, AttributeError, KeyError, ArithmeticError: A value has another form
            than expected.
    """
    draft = Draft(given)
    _read_task(draft, task, file)
    _read_model(draft)
    _read_adapter(draft)
    _read_data(draft)
    read_groups(draft, REFUSED, WITHOUT_EFFECT)
    read_changing(draft, NEARLY, DROPPED)
    read_trainer(draft, TrainerDefaults(tool=TOOL, lr=_LRS[draft.values["task"]]))
    leave_out_evaluations(draft)
    read_rest(draft)
    return Imported(TOOL, tuple(draft.rows), draft.values, draft.notes)


def _read_task(draft: Draft, given: str | None, file: str) -> None:
    found = task_of(draft, file)
    task = given or found.task
    if given or not found.open:
        draft.default("task", task, "given" if given else "concluded from the keys")
    elif found.named:
        draft.default("task", task, found.open, "nearly")
        draft.extend([KeyOutcome("task", found.named, "refused", "", found.open)])
    else:
        draft.default("task", task, found.open, "nearly")
    if task == "reward":
        _read_reward(draft)
    numbers = {
        "beta": "preference.beta",
        "label_smoothing": "preference.label_smoothing",
        "rpo_alpha": "preference.ce_weight",
        "cpo_alpha": "preference.ce_weight",
        "simpo_gamma": "preference.gamma",
        "desirable_weight": "preference.desirable_weight",
        "undesirable_weight": "preference.undesirable_weight",
        "discopop_tau": "preference.discopop_tau",
        "ld_alpha": "preference.ld_alpha",
        "alpha": "preference.reward_alpha",
    }
    for key, path in numbers.items():
        if draft.get(key) is not None:
            draft.same(key, path, float(number(draft.get(key))))
    _read_loss(draft, task)
    if task == "dpo":
        leave_out_unused(draft, TOOL)


def _read_reward(draft: Draft) -> None:
    centering = draft.get("center_rewards_coefficient")
    if centering is not None:
        draft.same("center_rewards_coefficient", "reward.centering", float(number(centering)))
    if draft.get("num_labels") == 1:
        draft.without_effect("num_labels", "a reward model gives one number")
    elif draft.get("num_labels") is not None:
        draft.refused("num_labels", "fttui does not train classifiers")


def _read_loss(draft: Draft, task: str) -> None:
    _read_divergence(draft)
    given = draft.get("loss_type")
    names = listed(given)
    loss = names[0] if len(names) == 1 else given
    if _is_cpo(draft) and task == "dpo":
        _read_cpo(draft, "sigmoid" if loss is None else loss)
    elif task == "kto" and loss in ("kto", "apo_zero_unpaired"):
        draft.same("loss_type", "preference.rated_loss", loss)
    elif loss is None or (task == "sft" and loss == "nll"):
        draft.read_with("loss_type", "the task")
    elif task == "dpo":
        read_losses(draft, "loss_type", names, "loss_weights")
    else:
        draft.refused("loss_type", f"the loss {loss} is not supported")


def _read_divergence(draft: Draft) -> None:
    key, order = "f_divergence_type", "f_alpha_divergence_coef"
    given = draft.get(key)
    name = str(given).rpartition(".")[2].lower()
    if given is not None and name not in get_args(FDivergence):
        draft.refused(key, f"the divergence {name} is not supported")
    elif name == "reverse_kl":
        draft.without_effect(key, "the reverse KL divergence is that of DPO")
    elif given is not None:
        draft.same(key, "preference.f_divergence", name)
    if draft.get(order) is not None and name == "alpha_divergence":
        reason = "as TRL 1.16 means it; of releases before 1.0 set 1 − α"
        draft.nearly(order, "preference.f_alpha", float(number(draft.get(order))), reason)
    elif draft.get(order) is not None:
        draft.without_effect(order, "only the α-divergence uses it")


def _is_cpo(draft: Draft) -> bool:
    """Return whether a key belongs to the trainer CPO alone."""
    own = any(draft.get(key) is not None for key in ("cpo_alpha", "simpo_gamma", "alpha"))
    return own or draft.get("loss_type") in ("simpo", "alphapo")


def _read_cpo(draft: Draft, loss: Any) -> None:
    if loss not in _CPO_LOSSES:
        draft.refused("loss_type", f"the loss {loss} is not supported")
        return
    chosen = _CPO_LOSSES[loss]
    if loss == "alphapo":
        draft.leave_out("preference.ce_weight", "no effect", "alphapo has no next-token loss")
        draft.default("preference.ce_weight", 0.0, f"alphapo of {TOOL}")
    if draft.get("loss_type") is None:
        draft.default("preference.loss", chosen, "concluded from the keys")
    else:
        draft.same("loss_type", "preference.loss", chosen)
    if loss == "simpo" and draft.get("cpo_alpha") is None:
        draft.default("preference.ce_weight", 1.0, f"default of {TOOL}")


def _read_model(draft: Draft) -> None:
    if draft.get("model_name_or_path") is not None:
        draft.same("model_name_or_path", "model.id", str(draft.get("model_name_or_path")))
    if draft.get("model_revision") is not None:
        draft.same("model_revision", "model.revision", str(draft.get("model_revision")))
    if draft.get("trust_remote_code") is not None:
        trusted = truth(draft.get("trust_remote_code"))
        draft.same("trust_remote_code", "model.trust_remote_code", trusted)
    read_attention(draft, "attn_implementation", _ATTENTION, packed=draft.has("packing"))
    four, eight = truth(draft.get("load_in_4bit")), truth(draft.get("load_in_8bit"))
    kind = str(draft.get("bnb_4bit_quant_type", "nf4"))
    form = kind if four else "int8" if eight else "none"
    for key in ("load_in_4bit", "load_in_8bit"):
        if draft.get(key) is not None:
            draft.same(key, "model.quantize", form)
    if not (four or eight):
        draft.default("model.quantize", form, "neither load_in_4bit nor load_in_8bit is set")
    if draft.get("bnb_4bit_quant_type") is not None:
        draft.without_effect("bnb_4bit_quant_type", "read with load_in_4bit")
    if draft.get("use_bnb_nested_quant") is not None:
        double = truth(draft.get("use_bnb_nested_quant"))
        draft.same("use_bnb_nested_quant", "model.double_quant", double)
    elif four:
        draft.default("model.double_quant", False, f"default of {TOOL}")


def _read_adapter(draft: Draft) -> None:
    if not truth(draft.get("use_peft")):
        reason = "without use_peft all weights are trained; --set adapter.kind=lora trains LoRA"
        draft.default("adapter.kind", "none", reason)
        for key in ("use_peft", "lora_r", "lora_alpha", "lora_dropout", "lora_target_modules"):
            if draft.get(key) is not None:
                draft.without_effect(key, "there is no adapter")
        if draft.get("disable_dropout") is not None:
            draft.differs("disable_dropout", "the model's own dropout is as it is configured")
        return
    draft.without_effect("use_peft", "adapters are LoRA")
    read_lora(draft, "lora_r", r=16, alpha=32, dropout=0.05, tool=TOOL)
    _read_dropout(draft)
    targets = draft.get("lora_target_modules")
    if targets is None:
        draft.default("adapter.targets", _TARGETS, "what peft chooses for most models")
    elif targets in ("all-linear", ["all-linear"]):
        draft.same("lora_target_modules", "adapter.targets", "all-linear")
    else:
        draft.same("lora_target_modules", "adapter.targets", listed(targets))
    key = "lora_modules_to_save"
    if draft.values["task"] == "reward" and listed(draft.get(key)) == ["score"]:
        draft.without_effect(key, "the head of a reward model is trained anyway")
    else:
        read_modules_to_save(draft, key)


def _read_dropout(draft: Draft) -> None:
    """Read whether preferences are learned without dropout, as TRL does by default."""
    key = "disable_dropout"
    if draft.values["task"] == "sft" or draft.get(key) is False:
        draft.read_with(key, "the task")
        return
    draft.leave_out("adapter.dropout", "no effect", "TRL disables dropout for preferences")
    if draft.get(key) is None:
        draft.default("adapter.dropout", 0.0, "TRL disables dropout for preferences")
    else:
        draft.same(key, "adapter.dropout", 0.0)


def _read_data(draft: Draft) -> None:
    if draft.get("dataset_mixture") is not None:
        _read_mixture(draft, dict(draft.get("dataset_mixture")))
    elif draft.get("dataset_mixer") is not None:
        _read_mixer(draft)
    elif draft.get("dataset_name") is not None:
        _read_dataset(draft)
    _read_held_out(draft)
    _read_length(draft)
    _read_records(draft)


def _read_length(draft: Draft) -> None:
    for key in ("max_length", "max_seq_length"):
        if draft.get(key) is None:
            continue
        length = int(number(draft.get(key)))
        if draft.values["task"] == "reward":
            reason = f"{TOOL} drops longer records; they are truncated here, and counted as cut"
            draft.nearly(key, "data.max_length", length, reason)
        else:
            draft.same(key, "data.max_length", length)
    if "data.max_length" not in draft.values:
        draft.default("data.max_length", 1024, f"default of {TOOL}")


def _read_records(draft: Draft) -> None:
    """Read packing, which tokens are learned, the text column, streaming and the chat template."""
    if draft.get("packing") is not None:
        draft.same("packing", "data.packing", truth(draft.get("packing")))
    _read_targets(draft)
    _read_column(draft)
    if draft.has("dataset_streaming") or draft.has("streaming"):
        key = "dataset_streaming" if draft.has("dataset_streaming") else "streaming"
        draft.same(key, "data.streaming", True)
    for key in ("chat_template", "chat_template_path"):
        if draft.get(key) is not None:
            draft.same(key, "data.template", str(draft.get(key)))
    if draft.get("eos_token") is not None:
        draft.differs("eos_token", "the end of a turn is what the chat template writes")
    if draft.get("auto_insert_empty_system_msg") is not None:
        draft.without_effect(
            "auto_insert_empty_system_msg",
            "fttui adds no system message; only the chat template may",
        )


def _read_column(draft: Draft) -> None:
    column = draft.get("dataset_text_field")
    if column == "text":
        draft.without_effect("dataset_text_field", "the column is known by itself")
    elif column is not None:
        draft.same("dataset_text_field", "data.columns", {"text": str(column)})


def _read_targets(draft: Draft) -> None:
    """Read which tokens are learned; without a key TRL decides it by the kind of the records."""
    given = [key for key in ("completion_only_loss", "assistant_only_loss") if draft.has(key)]
    if given:
        draft.same(given[0], "data.completion_only", True)
    elif draft.get("completion_only_loss") is not None:
        draft.same("completion_only_loss", "data.completion_only", False)
    elif draft.values["task"] == "sft":
        reason = (
            "TRL learns conversations whole, but of prompts with completions only the "
            "completions; for those add --set data.completion_only=true"
        )
        draft.default("data.completion_only", False, reason, "nearly")
    for key in ("completion_only_loss", "assistant_only_loss"):
        if key in draft.unread():
            draft.without_effect(key, "it is off, or the other of the two keys decides it")


def _read_dataset(draft: Draft) -> None:
    name, config = str(draft.get("dataset_name")), draft.get("dataset_config")
    draft.same("dataset_name", "data.train", f"{name}:{config}" if config else name)
    if config is not None:
        draft.without_effect("dataset_config", "read with dataset_name")
    for key, path in (
        ("dataset_train_split", "data.train_split"),
        ("dataset_test_split", "data.eval_split"),
    ):
        if draft.get(key) is not None:
            draft.same(key, path, str(draft.get(key)))
    if draft.get("dataset_test_split") is not None:
        draft.default("data.eval", draft.values["data.train"], "dataset_test_split of the data")


def _read_mixture(draft: Draft, mixture: dict[str, Any]) -> None:
    found, dropped = [], set()
    for one in mixture.pop("datasets", []):
        name, config = one.get("id") or one.get("path"), one.get("config") or one.get("name")
        source: dict[str, Any] = {"path": f"{name}:{config}" if config else str(name)}
        if one.get("split"):
            source["split"] = str(one["split"])
        if (weight := one.get("weight")) not in (None, 1, 1.0):
            source["weight"] = float(number(weight))
        found.append(source)
        dropped |= set(one) - {"id", "path", "config", "name", "split", "weight", "columns"}
    if any("weight" in one for one in found):
        for one in found:
            one.setdefault("weight", 1.0)
        reason = "weights are shares of the training records, not of each dataset"
        draft.nearly("dataset_mixture", "data.train", found, reason)
    else:
        draft.same("dataset_mixture", "data.train", found)
    size = mixture.pop("test_split_size", None)
    if size is not None:
        reason = "test_split_size of dataset_mixture"
        draft.default("data.eval_fraction", float(size) if size < 1 else 0.02, reason)
    mixture.pop("seed", None)
    if rest := sorted(dropped | set(mixture)):
        draft.dropped("dataset_mixture", f"{', '.join(rest)} of the mixture are not used")


def _read_mixer(draft: Draft) -> None:
    splits = listed(draft.get("dataset_splits"))
    train = next((one for one in splits if "train" in one), "train")
    mixer = dict(draft.get("dataset_mixer"))
    found = [{"path": str(name), "split": train} for name in mixer]
    if all(number(share) == 1 for share in mixer.values()):
        draft.same("dataset_mixer", "data.train", found)
    else:
        draft.nearly("dataset_mixer", "data.train", found, "the whole of each dataset is used")
    if splits:
        draft.without_effect("dataset_splits", "read with dataset_mixer")
    test = next((one for one in splits if "test" in one), None)
    if test is not None:
        draft.default("data.eval", found[0]["path"], "dataset_splits")
        draft.values["data.eval_split"] = test


def _read_held_out(draft: Draft) -> None:
    if "data.eval" in draft.values or "data.eval_fraction" in draft.values:
        return
    draft.default("data.eval_fraction", 0.0, "no data for evaluations are named")
