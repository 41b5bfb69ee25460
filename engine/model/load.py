"""Load and quantize a base model, and attach LoRA adapters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from msgspec.structs import replace
from peft import PeftModel
from torch import nn
from transformers import (
    AutoConfig,
    PreTrainedTokenizerBase,
)
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import is_flash_attn_2_available

from ..config.adapter.files import AdapterFile
from ..config.checks import check_model, check_vision, require
from ..config.checks.sharding import sharded_experts
from ..config.memory.architecture import EXPERTS
from ..config.schema import ModelConfig, RunConfig, TrainConfig
from ..errors import ModelError
from .adapter.attach import (
    adapter_fact,
    attach_adapters,
    cast_trainable,
)
from .adapter.full_finetuning import full_finetuning_fact, unfreeze
from .adapter.initial import initial_weights, initialize_loftq
from .adapter.score_head import add_score_head, score_weight
from .adapter.start import continue_adapter, merge_adapter, start_file
from .experts import experts_fact, quantize_experts, quantized_experts
from .files.completeness import require_complete
from .files.failures import readable_load_errors
from .files.weight_files import check_weight_files
from .head_check import require_head
from .hidden import backbone_of, base_model_of
from .host_activations import HostActivations
from .host_embedding import QuantizedHead, ends_on_host, make_lean
from .new_tokens import NewRows, adapt_to_losses, add_rows, ids_without_row
from .precision import adapter_dtype, compute_dtype, dtype_name
from .progress import Progress, weights_progress
from .quantization import (
    dequantize_layers,
    form_of,
    loading_dtype,
    quantization_of,
    quick_buckets,
)
from .streaming.loading import quantizing_on
from .streaming.weights import make_streamed
from .tokenizer import hub_arguments, read_tokenizer, resolve_model
from .vision import auto_class, beside_language_model, mark_as_text, sees_images

_NO_ADAPTER = "no-adapter"
"""A subfolder that no model has. Transformers would attach an adapter that lies beside the weights
of a model; it looks for one in this subfolder instead."""


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to train, with adapters or unfrozen weights, and its tokenizer."""

    model: Any
    """A PeftModel, or the model itself if its own weights are trained."""
    tokenizer: PreTrainedTokenizerBase
    facts: dict[str, str]
    """Facts about the model, shown when the run starts."""
    trainable_params: int
    total_params: int
    """Number of parameters, adapters included; a 4-bit weight counts as one."""
    initial: dict[str, torch.Tensor] = field(default_factory=dict)
    """The adapter before training, if base and adapter together are the start; else empty."""


def load_model(config: RunConfig, device: torch.device, progress: Progress) -> LoadedModel:
    """Load the configured model on `device`, quantized and with its adapters, or unfrozen.

    Random initial weights of new adapters depend only on `train.seed`; the global random state is
    not changed.

    Args:
        config: The run; its sections `model`, `adapter` and `train` are used.
        device: Device of the model; one that is to be sharded is loaded into host memory.
        progress: Called with (label, done, total) while loading.

    Raises:
        ConfigError: The configuration does not agree with the model.
        ModelError: The model is missing, cannot be trained, or does not fit in memory; the message
            names the next step.
    """
    dtype = compute_dtype(config.model.precision, device)
    # Parts go to the device later, layer by layer; weights that stream are on the host anyway.
    if config.train.shards and not config.train.streams:
        config, device = on_host(config, device)
    source = resolve_model(config.model, progress)
    with readable_load_errors(config.model.id, config.model.revision):
        progress("Loading tokenizer", 0, 1)
        found = read_tokenizer(source, config.model, config.data)
        check_weight_files(source, config.model.revision)
        start = start_file(config.adapter)
        held = dtype
        if config.adapter.kind == "none":
            held = _trained_dtype(config, dtype, device)
        base, left_out = _load_base(source, config, held, device, progress)
        if start is not None and config.adapter.merge_first:
            progress("Merging the start adapter", 0, 1)
            merge_adapter(base, start, device)
        if config.train.lean:
            make_lean(base, device)
        if config.train.streams:
            progress("Moving weights to host memory", 0, 1)
            make_streamed(base, _layers(base), device)
        new = found.new_tokens
        loaded = equip(base, found.tokenizer, config, device, progress, new, start)
    if found.known:
        loaded.facts["known tokens"] = f"{', '.join(found.known)}: not added"
    if left_out:
        loaded.facts["weights left out"] = left_out
    return loaded


def on_host(config: RunConfig, device: torch.device) -> tuple[RunConfig, torch.device]:
    """Return the configuration and the device with which a model is loaded into host memory.

    The precisions are those that the configuration has on `device`, where the model is to train.
    """
    dtype = compute_dtype(config.model.precision, device)
    trained = dtype_name(_trained_dtype(config, dtype, device))
    model = replace(config.model, precision=dtype_name(dtype))
    train = replace(config.train, adapter_precision=trained)
    return replace(config, model=model, train=train), torch.device("cpu")


def equip(
    base: Any,
    tokenizer: PreTrainedTokenizerBase,
    config: RunConfig,
    device: torch.device,
    progress: Progress,
    new_tokens: Mapping[int, Sequence[int]] = MappingProxyType({}),
    start: AdapterFile | None = None,
) -> LoadedModel:
    """Prepare a loaded base model for training, with adapters or with its own weights unfrozen.

    Rows of new tokens are added, activation checkpointing is set, and the model is put in training
    mode.

    Args:
        base: A frozen transformers model on `device`, already in lean form if configured.
        tokenizer: The tokenizer of the model, with a pad token.
        config: The run; its sections `model`, `adapter` and `train` are used.
        device: Device of the adapters.
        progress: Called with (label, done, total).
        new_tokens: New ids whose rows are added and trained, with the ids they start from.
        start: The adapter that `adapter.start` names.

    Raises:
        ConfigError: The configuration asks for more layers than the model has, or for a load
            balancing loss that it does not compute.
        ModelError: The model cannot be trained like this, or rows for new tokens cannot be added.
        OutOfMemoryError: The memory of the device does not suffice.
    """
    dtype = compute_dtype(config.model.precision, device)
    _agree_on_pad(base, tokenizer)
    base.config.use_cache = False
    _disable_weight_repacking(base)
    if sees_images(base.config):
        mark_as_text(base, device)
    require_head(base, dtype, device)
    require(check_model(config, len(_layers(base))), {}, config.model.id)
    _checkpoint_activations(base, config.train)
    label = "Attaching adapters" if config.adapter.kind == "lora" else "Unfreezing weights"
    progress(label, 0, 1)
    if config.added_tokens:
        new_tokens = {**dict.fromkeys(ids_without_row(base, tokenizer), ()), **new_tokens}
    rows = add_rows(base, new_tokens, config.adapter.modules_to_save)
    if config.task == "reward":
        add_score_head(base, config.train.seed, device)
    model = _with_adapter(base, config, rows, device, start)
    if config.adapter.init == "loftq" and not config.adapter.continues:
        initialize_loftq(model, str(base.name_or_path), config.model.revision)
    initial = initial_weights(model) if config.adapter.starts_beside_base else {}
    adapt_to_losses(base)
    adapter = _trained_dtype(config, dtype, device)
    cast_trainable(model, adapter)
    # The base model is loaded in evaluation mode, in which no layer is recomputed; the new adapters
    # are in training mode.
    model.train()
    trainable, total = _counts(model)
    facts = _facts(base, tokenizer, config, dtype, adapter)
    facts |= {"new tokens": rows.fact} if rows.fact else {}
    progress(label, 1, 1)
    return LoadedModel(model, tokenizer, facts, int(trainable), int(total), initial)


def _trained_dtype(config: RunConfig, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    return adapter_dtype(config.train.adapter_precision, config.model.quantize, dtype, device)


def _counts(model: Any) -> tuple[int, int]:
    """Return the numbers of trained and of all parameters; a 4-bit weight counts as one."""
    if isinstance(model, PeftModel):
        trained, total = model.get_nb_trainable_parameters()
        return trained, total
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    return sum(size for size, trained in sizes if trained), sum(size for size, _ in sizes)


def _with_adapter(
    base: Any, config: RunConfig, rows: NewRows, device: torch.device, start: AdapterFile | None
) -> Any:
    """Attach a new adapter, or the one that the run continues, or unfreeze the model itself.

    Returns the model with the adapter, or `base` if it is unfrozen. `start` is None without an
    adapter to continue.

    Raises:
        ModelError: The adapter does not fit the model, or the model cannot be trained like this.
    """
    if config.adapter.kind == "none":
        dtype = compute_dtype(config.model.precision, device)
        trained = _trained_dtype(config, dtype, device)
        unfreeze(base, config.train.layers, trained, dtype)
        if config.task == "reward":
            score_weight(base).requires_grad_(True)
        return base
    adapter, seed = config.adapter, config.train.seed
    if start is None or not adapter.continues:
        return attach_adapters(base, adapter, rows, seed, device)
    return continue_adapter(base, adapter, start, rows, seed, device)


def _disable_weight_repacking(base: Any) -> None:
    """Disable a CPU kernel without gradient, for which an evaluation would repack the weights."""
    for module in base.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def _checkpoint_activations(base: Any, train: TrainConfig) -> None:
    if not train.recomputes:
        return
    if not _can_recompute(base):
        if train.activations == "host":
            raise ModelError(
                f"train.activations: host needs activation checkpointing, which "
                f"{type(base).__name__} does not support. Set train.activations: device."
            )
        return
    base.activation_checkpointing_enable({"use_reentrant": False})
    if train.activations == "host":
        on_host = HostActivations()
        base._set_gradient_checkpointing(enable=True, gradient_checkpointing_func=on_host)
        backbone_of(base).register_forward_pre_hook(lambda *_: on_host.begin())
    for layer in _layers(base)[-train.whole_layers :] if train.whole_layers else ():
        layer.gradient_checkpointing = False


def _can_recompute(base: Any) -> bool:
    return bool(getattr(base, "supports_gradient_checkpointing", False))


def recompute_all(model: Any) -> int:
    """Recompute the activations of all layers from now on; return how many kept them until now.

    It is 0 if nothing was changed, also where the model cannot recompute. Results of training stay
    the same, because a recomputed layer draws the same random numbers again.
    """
    base: Any = base_model_of(model)
    layers = _layers(base)
    keeping = [layer for layer in layers if not layer.gradient_checkpointing]
    if not keeping or not _can_recompute(base):
        return 0
    if len(keeping) == len(layers):
        base.activation_checkpointing_enable({"use_reentrant": False})
    for layer in keeping:
        layer.gradient_checkpointing = True
    return len(keeping)


def _layers(base: Any) -> list[Any]:
    """Return the layers that support activation checkpointing, first to last."""
    return [module for module in base.modules() if isinstance(module, GradientCheckpointingLayer)]


def _load_base(
    source: str, config: RunConfig, dtype: torch.dtype, device: torch.device, progress: Progress
) -> tuple[Any, str | None]:
    """Return (base model, a text about the weights of its files that it does not use, or None).

    Raises:
        ConfigError: The configuration does not suit a model that sees images.
        ModelError: The files lack weights, or the model cannot be loaded with these settings.
    """
    model, train = config.model, config.train
    settings = AutoConfig.from_pretrained(source, **hub_arguments(model))
    if sees_images(settings):
        require(check_vision(config), {}, model.id)
    text = settings.get_text_config()
    if any((getattr(text, name, None) or 0) > 1 for name in EXPERTS):
        require(sharded_experts(config), {}, model.id)
    quantization = quantization_of(config, settings, dtype)
    places: dict[str, Any] = {"": device}
    if train.streams:
        places = {"": "cpu"}  # quantized on the device, tensor by tensor
    elif train.lean and quantization is not None and device.type == "cuda":
        # Checkpoints that are already quantized cannot be split over devices: `make_lean` moves
        # their embedding and head afterwards.
        quantization.llm_int8_enable_fp32_cpu_offload = True
        places = ends_on_host(settings, device, trust_remote_code=model.trust_remote_code)
    place = quantizing_on(device) if train.streams else nullcontext()
    with weights_progress("Loading weights", progress), quick_buckets(), place:
        base, loaded = auto_class(settings).from_pretrained(
            source,
            dtype=loading_dtype(quantization, dtype),
            device_map=places,
            # None would be taken as a wish to load quantized files as if they were not.
            **({} if quantization is None else {"quantization_config": quantization}),
            attn_implementation=_attention(model, device),
            output_loading_info=True,
            adapter_kwargs={"subfolder": _NO_ADAPTER},
            **hub_arguments(model),
        )
    layers = int(getattr(settings.get_text_config(), "num_hidden_layers", 0))
    left_out = require_complete(loaded, model.id, layers)
    dequantize_layers(base, dtype)
    if quantization is not None and model.quantize in ("nf4", "fp4"):
        quantize_experts(base, model.quantize, double_quant=model.double_quant)
    for parameter in base.parameters():
        parameter.requires_grad_(False)
    return base, left_out


def _attention(model: ModelConfig, device: torch.device) -> str | None:
    """Return the attention implementation to request; None leaves the choice to transformers.

    Raises:
        ModelError: The package for flash attention is missing or cannot be used here.
    """
    if model.attention == "auto":
        return None
    if model.attention == "flash_attention_2" and not is_flash_attn_2_available():
        raise ModelError(
            "model.attention: flash_attention_2 needs the package flash-attn and a CUDA device, "
            f"but the package cannot be used on {device}. Install it, or set model.attention: auto."
        )
    return model.attention


def _agree_on_pad(base: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """Set the pad token of the model, so that generation does not guess another one."""
    base.config.pad_token_id = tokenizer.pad_token_id
    if base.generation_config is not None:
        base.generation_config.pad_token_id = tokenizer.pad_token_id


def weights_bytes(model: nn.Module) -> int:
    """Return the bytes of a model's weights, quantization constants included."""
    own = sum(
        parameter.nbytes + _constants_bytes(getattr(parameter, "quant_state", None))
        for parameter in model.parameters()
    )
    return own + sum(_constants_bytes(part.quant_state) for part in quantized_experts(model))


def _constants_bytes(state: Any) -> int:
    """Return the bytes of a bitsandbytes quantization state and its nested state."""
    if state is None:
        return 0
    tensors = (state.absmax, state.code, state.offset)
    own = sum(t.nbytes for t in tensors if isinstance(t, torch.Tensor))
    return own + _constants_bytes(state.state2)


def _facts(
    base: Any,
    tokenizer: PreTrainedTokenizerBase,
    config: RunConfig,
    dtype: torch.dtype,
    adapter: torch.dtype,
) -> dict[str, str]:
    text = base.config.get_text_config()
    whole = config.adapter.kind == "none"
    return {
        "architecture": f"{text.model_type}, {text.num_hidden_layers} layers, hidden "
        f"{text.hidden_size:,}, vocabulary {text.vocab_size:,}",
        "weights": f"{form_of(base) or dtype_name(dtype)}, "
        f"{weights_bytes(base) / 2**20:,.0f} MiB{'' if whole else ' with adapters'}",
        "precision": f"compute {dtype_name(dtype)}, {'trained weights' if whole else 'adapters'} "
        f"{dtype_name(adapter)}",
        "attention": str(base.config._attn_implementation),
        "adapter": _adapter_fact(base, config),
        **_start_fact(config),
        **_vision_fact(base),
        "pad token": _pad_fact(tokenizer),
        "activation checkpointing": _checkpointing_fact(base, config.train),
        "memory": _memory_fact(base),
        **experts_fact(base, config),
    }


def _adapter_fact(base: Any, config: RunConfig) -> str:
    if config.adapter.kind == "none":
        return full_finetuning_fact(base)
    return adapter_fact(base, config.adapter)


def _vision_fact(base: Any) -> dict[str, str]:
    """Return {"vision": line about the frozen parts} for a vision-language model, else {}."""
    if not sees_images(base.config):
        return {}
    frozen = beside_language_model(base)
    count = sum(p.numel() for name in frozen for p in base.get_submodule(name).parameters())
    names = ", ".join(frozen)
    return {"vision": f"{names}: {count:,} weights, frozen and not used; training is on text"}


def _start_fact(config: RunConfig) -> dict[str, str]:
    """Return a line about the use of the start adapter as {"start adapter": line}, or nothing."""
    start = config.adapter.start
    if start is None:
        return {}
    if config.adapter.merge_first:
        return {
            "start adapter": f"{start}, merged into the base model; a new one is trained on top"
        }
    return {"start adapter": f"{start}, continued"}


def _pad_fact(tokenizer: PreTrainedTokenizerBase) -> str:
    same = tokenizer.pad_token_id == tokenizer.eos_token_id
    return f"{tokenizer.pad_token}{' (also EOS)' * same}"


def _checkpointing_fact(base: Any, train: TrainConfig) -> str:
    if not train.recomputes:
        return "off"
    if not _can_recompute(base):
        return f"off: {type(base).__name__} does not support it"
    number = train.whole_layers
    last = "the last layer" if number == 1 else f"the last {number} layers"
    whole = f", except in {last}" if number else ""
    kept = ", inputs of layers kept on the host" if train.activations == "host" else ""
    return f"on{whole}{kept}"


def _memory_fact(base: Any) -> str:
    head = base.get_output_embeddings()
    if not isinstance(head, QuantizedHead):
        return "plain"
    ends = f"embedding on the host, head in NF4 in {len(head.packed)} slices"
    streams = getattr(base, "streams", None)
    return f"lean: {ends}" if streams is None else f"streamed: {ends}; {streams.fact}"
