"""Keys about several devices: FSDP, DeepSpeed, and models or sequences that are split over them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import msgspec

from ...checks.sharding import check_sharding
from ...schema import RunConfig
from ...sections.optimizers import OPTIMIZERS
from ..draft import Draft, keys_by_reason, number, truth

_SPLITS_MODEL = ["dp_shard_size", "tensor_parallel_size", "tensor_model_parallel_size"]
_SPLITS_MODEL += ["pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"]
_SPLITS_EXPERTS = ("expert_parallel_size", "expert_model_parallel_size")
_SPLITS_SEQUENCES = ("context_parallel_size", "sequence_parallel_degree")
_SIZES = (*_SPLITS_MODEL, *_SPLITS_EXPERTS, *_SPLITS_SEQUENCES, "dp_replicate_size")
"""Keys that hold a number of devices; with 1 nothing is split."""
_IN_PARALLELISM_CONFIG = {
    "dp_shard_size": "dp_shard_size",
    "dp_replicate_size": "dp_replicate_size",
    "tp_size": "tensor_parallel_size",
    "cp_size": "context_parallel_size",
    "sp_size": "sequence_parallel_degree",
}
WITHOUT_EFFECT = keys_by_reason(
    {
        "how a model is split over devices; train.strategy does it": """
            fsdp_version fsdp_final_state_dict_type fsdp_min_num_params
            fsdp_transformer_layer_cls_to_wrap deepspeed_plugin heads_k_stride
            ring_attn_func expert_parallel_token_capacity
            expert_parallel_num_nvl_bytes sequence_parallel
            use_distributed_optimizer overlap_param_gather overlap_grad_reduce
            export_hf_on_finish use_ray ray_run_name resources_per_worker
            ray_init_kwargs ray_storage_path
        """,
    }
)
_STAGE = re.compile(r"z(?:ero)?[_-]?([0-3])(?!\d)")
_OFFLOADS = ("offload_params", "fsdp_offload_params", "cpu_offload")
_MANY = "the file does not say how many there are; set train.devices to yours"


def read_parallel(draft: Draft, tool: str) -> None:
    """Read how the work is shared by several devices; models are split with `train.strategy: fsdp`.

    If something else in the configuration cannot be combined with it, the model stays whole, which
    the rows say.

    Args:
        draft: the configuration, of which model, adapter, task and optimizer have been read.
        tool: name of the tool.

    Raises:
        ValueError: A number of devices is none.
    """
    sizes = dict(_sizes(draft))
    _read_whole(draft, sizes)
    asking = dict(_asking(draft, sizes, tool))
    if asking:
        _read_split(draft, asking)
    devices = _devices(draft, sizes)
    if devices > 1:
        draft.default("train.devices", devices, f"number of devices in {tool}")
    elif draft.values.get("train.strategy") == "fsdp":
        draft.default("train.devices", 2, _MANY, "nearly")
    for key, reason in WITHOUT_EFFECT.items():
        if draft.get(key) is not None:
            draft.without_effect(key, reason)


def _sizes(draft: Draft) -> Iterator[tuple[str, int]]:
    """Yield the numbers of devices that are given, also within `parallelism_config`."""
    for key in _SIZES:
        if draft.get(key) is not None:
            yield key, int(number(draft.get(key)))
    inner = draft.get("parallelism_config")
    for name, key in _IN_PARALLELISM_CONFIG.items():
        if isinstance(inner, Mapping) and inner.get(name) is not None:
            yield key, int(number(inner[name]))


def _read_whole(draft: Draft, sizes: Mapping[str, int]) -> None:
    """Note what does not ask for a model in parts: sizes of 1, and sequences or experts in parts.

    Those of sequences and experts are held whole by each device.
    """
    reasons = {
        **dict.fromkeys(_SPLITS_EXPERTS, "each device has all experts"),
        **dict.fromkeys(
            _SPLITS_SEQUENCES,
            "each device learns sequences of its own, so a step has this many times as many; "
            "divide train.accumulate by it",
        ),
        "dp_replicate_size": "train.devices is the number of devices",
    }
    for key, size in sizes.items():
        if draft.get(key) is None:
            continue
        if size <= 1:
            draft.without_effect(key, "nothing is split")
        elif key in reasons:
            draft.differs(key, reasons[key])
    if (inner := draft.get("parallelism_config")) is not None:
        split = sorted(key for key in sizes if key in reasons and sizes[key] > 1)
        if split:
            draft.differs("parallelism_config", "; ".join(reasons[key] for key in split))
        elif not inner or max(sizes.values(), default=1) <= 1:
            draft.without_effect("parallelism_config", "nothing is split")


def _asking(draft: Draft, sizes: Mapping[str, int], tool: str) -> Iterator[tuple[str, str]]:
    """Yield the keys that ask for a model in parts, with what differs here from what they ask."""
    for key in _SPLITS_MODEL:
        if sizes.get(key, 1) > 1:
            named = key if draft.get(key) is not None else "parallelism_config"
            yield named, "FSDP splits each layer in its own way, with the same result"
    yield from _of_fsdp(draft, alone=tool == "axolotl")
    yield from _of_deepspeed(draft)


def _of_fsdp(draft: Draft, *, alone: bool) -> Iterator[tuple[str, str]]:
    """Yield the keys of FSDP that are in force; `alone`: options are so without flags, too."""
    flags, options = draft.get("fsdp"), draft.get("fsdp_config")
    text = f"{flags} {options if isinstance(options, Mapping) else ''}".lower()
    given = [key for key in ("fsdp", "fsdp_config") if draft.get(key) is not None]
    wanted = draft.has("fsdp") or (alone and draft.has("fsdp_config"))
    wanted = wanted and "no_shard" not in text
    differing = "" if not _offloads(flags, options) else "weights stay on the devices"
    for key in given:
        if wanted and draft.has(key):
            yield key, differing
        else:
            draft.without_effect(key, "nothing is split")


def _offloads(flags: Any, options: Any) -> bool:
    inner = options if isinstance(options, Mapping) else {}
    return "offload" in str(flags).lower() or any(truth(inner.get(key)) for key in _OFFLOADS)


def _of_deepspeed(draft: Draft) -> Iterator[tuple[str, str]]:
    key, given = "deepspeed", draft.get("deepspeed")
    if given is None:
        return
    stage = _stage(given)
    if not draft.has(key) or stage == 0:
        draft.without_effect(key, "nothing is split")
    elif stage in (1, 2):
        draft.differs(key, f"ZeRO {stage} splits gradients and optimizer state; each device has "
                      "all of them here, with the same result")  # fmt: skip
    else:
        unknown = "the stage of ZeRO is not known by this name, and taken for 3; "
        known = "FSDP in place of DeepSpeed; values in that file are not read"
        yield key, known if stage else unknown + known


def _stage(given: Any) -> int | None:
    """Return the stage of ZeRO by the settings of DeepSpeed, or by the name of their file."""
    if isinstance(given, Mapping):
        stage = (given.get("zero_optimization") or {}).get("stage", 0)
        return int(number(stage))
    found = _STAGE.search(str(given).lower())
    return int(found[1]) if found else None


def _read_split(draft: Draft, asking: Mapping[str, str]) -> None:
    """Set `train.strategy: fsdp`, or say for each key what else in the file prevents it."""
    name = str(draft.values.get("train.optimizer", ""))
    whole = name.removeprefix("paged_").removesuffix("_8bit")
    if name in OPTIMIZERS and not OPTIMIZERS[name].elementwise and OPTIMIZERS[whole].elementwise:
        other, reason = whole, "FSDP splits its state, which is not in 8 bits"
    else:
        other, reason = name, ""
    obstacle = _obstacle({**draft.values, "train.optimizer": other})
    for key, differing in asking.items():
        if obstacle:
            draft.differs(key, f"each device has the whole model: {obstacle}")
        elif differing:
            draft.nearly(key, "train.strategy", "fsdp", differing)
        else:
            draft.same(key, "train.strategy", "fsdp")
    if other != name and not obstacle:
        draft.adjust("train.optimizer", other, reason)


def _obstacle(values: Mapping[str, Any]) -> str:
    """Return the setting that cannot be combined with FSDP, or an empty text."""
    tree: dict[str, Any] = {}
    for path, value in {**values, "train.strategy": "fsdp", "train.devices": 2}.items():
        *sections, key = path.split(".")
        inner = tree
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[key] = value
    try:
        config = msgspec.convert(tree, RunConfig, strict=False)
    except msgspec.ValidationError:
        return ""  # the loader names the value
    problem = next(check_sharding(config), None)
    return f"{problem.key}: {problem.text.split('; ')[0]}" if problem else ""


def _devices(draft: Draft, sizes: Mapping[str, int]) -> int:
    """Return the number of devices that the file gives; 1 if it gives none."""
    key = "ray_num_workers"
    workers = int(number(draft.get(key, 1)))
    if draft.get(key) is not None:
        draft.read_with(key, "train.devices")
    split = [size for name, size in sizes.items() if name not in _SPLITS_EXPERTS and size > 1]
    experts = [sizes.get(name, 1) for name in _SPLITS_EXPERTS]
    return max(workers, prod(split), *experts)
