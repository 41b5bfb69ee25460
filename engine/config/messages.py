"""Texts for errors: what a configuration key accepts, and which key was meant; all key paths."""

from __future__ import annotations

import difflib
from typing import Any, get_args, get_origin

import msgspec
from msgspec import inspect

from .sections.base import Section
from .sections.optimizers import why_not_offered
from .tasks import PAIR_LOSSES

FAMILIAR = {
    "adam_beta1": "train.betas",
    "adam_beta2": "train.betas",
    "adam_epsilon": "train.epsilon",
    "attn_implementation": "model.attention",
    "base_model": "model.id",
    "batch_size": "train.batch",
    "bf16": "model.precision",
    "cpo_alpha": "preference.ce_weight",
    "dataset": "data.train",
    "dtype": "model.precision",
    "eval_dataset": "data.eval",
    "eval_steps": "eval.every",
    "evals_per_epoch": "eval.per_epoch",
    "fp16": "model.precision",
    "gradient_accumulation_steps": "train.accumulate",
    "effective_batch_size": "train.sequences_per_update",
    "global_batch_size": "train.sequences_per_update",
    "gradient_checkpointing": "train.activation_checkpointing",
    "learning_rate": "train.lr",
    "load_in_4bit": "model.quantize",
    "lora_alpha": "adapter.alpha",
    "lora_dropout": "adapter.dropout",
    "lora_r": "adapter.r",
    "lr_scheduler_type": "train.schedule",
    "max_grad_norm": "train.clip",
    "max_seq_length": "data.max_length",
    "max_steps": "train.steps",
    "micro_batch_size": "train.batch",
    "model_name_or_path": "model.id",
    "num_epochs": "train.epochs",
    "num_gpus": "train.devices",
    "num_train_epochs": "train.epochs",
    "optim": "train.optimizer",
    "orpo_alpha": "preference.beta",
    "per_device_eval_batch_size": "eval.batch",
    "per_device_train_batch_size": "train.batch",
    "rank": "adapter.r",
    "save_steps": "checkpoint.every",
    "save_total_limit": "checkpoint.keep",
    "saves_per_epoch": "checkpoint.per_epoch",
    "sequence_len": "data.max_length",
    "simpo_gamma": "preference.gamma",
    "target_modules": "adapter.targets",
    "tau": "contrastive.temperature",
    "torch_dtype": "model.precision",
    "warmup_ratio": "train.warmup",
    "warmup_steps": "train.warmup",
    "world_size": "train.devices",
}
"""Setting names of other training tools, and the keys that correspond to them."""


def suggest_key(key: str, section: str, paths: list[str]) -> str | None:
    """Return the key that was probably meant, or None.

    Its section is left out if it is the one of the unknown key.

    Args:
        key: The unknown key.
        section: The section of the unknown key; empty at the top level.
        paths: All known keys, such as `train.lr`, sections and top-level keys included.
    """
    names = {path.rpartition(".")[2]: path for path in paths}
    siblings = [path.rpartition(".")[2] for path in paths if path.rpartition(".")[0] == section]
    for known in (siblings, list(FAMILIAR), list(names)):
        close = difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.75)
        if close and known is siblings:
            return close[0]
        if close:
            path = FAMILIAR.get(close[0]) or names[close[0]]
            return path.removeprefix(f"{section}.") if section else path
    return None


def describe_type(annotation: Any) -> str:
    """Return what a field accepts in words, such as `a whole number ≥ 1 or null`."""
    return _describe(inspect.type_info(annotation))


def describe_key(path: str, struct: type[msgspec.Struct]) -> str:
    """Return what a key path such as `train.lr` accepts in words; empty if there is no such key."""
    first, _, rest = path.partition(".")
    found = {field.name: field.type for field in msgspec.structs.fields(struct)}.get(first)
    if found is None:
        return ""
    section = own_section(found)
    if not rest:
        return "" if section else describe_type(found)
    return describe_key(rest, section) if section else ""


def describe_value(value: Any) -> str:
    """Return a wrong value as text that is short enough for one line."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list" if len(str(value)) > 60 else str(value)
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:57] + "…")
    return {"None": "null", "True": "true", "False": "false"}.get(str(value), str(value))


def suggest_value(value: Any, annotation: Any, path: str = "") -> str:
    """Return a did-you-mean hint for a misspelt choice, or an empty text.

    A loss of task dpo that is given as the task gets a hint of its own, and an optimizer that is
    known but not offered the reason. `path` is that of the key.
    """
    if isinstance(value, dict):
        return _suggest_name(value, inspect.type_info(annotation))
    info = _choice(inspect.type_info(annotation))
    if not isinstance(info, inspect.LiteralType) or not isinstance(value, str):
        return ""
    choices = [str(choice) for choice in info.values]
    if "dpo" in choices and value.lower() in PAIR_LOSSES:
        return f"; set task: dpo and preference.loss: {value.lower()}"
    if path == "train.optimizer" and (reason := why_not_offered(value)):
        return f"; {reason}"
    close = difflib.get_close_matches(value.lower(), choices, n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def _choice(info: inspect.Type) -> inspect.Type:
    """Return the choice among the types of a union; a type that is not a union as it is."""
    types = info.types if isinstance(info, inspect.UnionType) else (info,)
    return next((one for one in types if isinstance(one, inspect.LiteralType)), info)


def _suggest_name(value: dict[str, Any], info: inspect.Type) -> str:
    """Return a hint for the first name of a mapping that is none of its choices, or an empty text.

    Other mappings than those from names of a choice have none.
    """
    types = info.types if isinstance(info, inspect.UnionType) else (info,)
    for one in types:
        if isinstance(one, inspect.DictType) and isinstance(one.key_type, inspect.LiteralType):
            known = [str(name) for name in one.key_type.values]
            for name in value:
                if name not in known:
                    close = difflib.get_close_matches(str(name).lower(), known, n=1)
                    meant = f"; did you mean '{close[0]}'?" if close else ""
                    return f"; '{name}' is none of them{meant}"
    return ""


def _describe(info: inspect.Type) -> str:
    match info:
        case inspect.IntType():
            return "a whole number" + _bounds(info)
        case inspect.FloatType():
            return "a number" + _bounds(info)
        case inspect.LiteralType(values=values):
            words = ", ".join(str(value) for value in values)
            return f"one of {words}" if len(values) > 1 else f"'{words}'"
        case inspect.ListType() | inspect.TupleType() | inspect.Metadata():
            return _describe_compound(info)
        case inspect.UnionType(types=types):
            return " or ".join(_describe(one) for one in types)
    simple = {inspect.BoolType: "true or false", inspect.StrType: "text", inspect.NoneType: "null"}
    return simple.get(type(info)) or _describe_mapping(info)


def _describe_mapping(info: inspect.Type) -> str:
    if isinstance(info, inspect.DictType) and isinstance(info.key_type, inspect.LiteralType):
        return f"a mapping from such names to {_describe(info.value_type)}"
    return "a mapping"


def _describe_compound(info: inspect.ListType | inspect.TupleType | inspect.Metadata) -> str:
    if isinstance(info, inspect.Metadata):
        examples = (info.extra_json_schema or {}).get("examples", [])
        return _describe(info.type) + "".join(f" such as '{one}'" for one in examples[:1])
    if isinstance(info, inspect.TupleType):
        return f"[{', '.join(map(_describe, info.item_types))}]"
    item = _describe(info.item_type)
    if getattr(getattr(info.item_type, "cls", None), "text_key", None):
        return "a list of text or mappings"
    return f"a list of {'mappings' if item == 'a mapping' else item}"


def _bounds(info: inspect.IntType | inspect.FloatType) -> str:
    limits = ((">", info.gt), ("≥", info.ge), ("<", info.lt), ("≤", info.le))
    parts = [
        f"{sign} {limit:,}" if isinstance(limit, int) else f"{sign} {limit:g}"
        for sign, limit in limits
        if limit is not None
    ]
    return f" {' and '.join(parts)}" if parts else ""


def is_section(annotation: Any) -> bool:
    """Whether a field's type is a configuration section."""
    return isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)


def own_section(annotation: Any) -> type[Section] | None:
    """Return the section that a field holds, also if it may be null; None for other fields."""
    return next(filter(is_section, (annotation, *get_args(annotation))), None)


def item_section(annotation: Any) -> type[Section] | None:
    """Return the section that the entries of a field's list are; None for other fields."""
    lists = (one for one in (annotation, *get_args(annotation)) if get_origin(one) is list)
    return next((own_section(get_args(one)[0]) for one in lists), None)


def key_paths(struct: type[msgspec.Struct], prefix: str = "") -> list[str]:
    """Return the key paths of a struct, sections included, such as `train` and `train.lr`.

    Of a section that may be null or is the entry of a list, only its own path is returned.
    """
    paths: list[str] = []
    for field in msgspec.structs.fields(struct):
        paths.append(prefix + field.name)
        if is_section(field.type):
            paths.extend(key_paths(field.type, f"{prefix}{field.name}."))
    return paths
