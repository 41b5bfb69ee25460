"""Existing adapters: continue one, or merge it into the base model first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from huggingface_hub import snapshot_download
from peft import LoraConfig, PeftConfig, PeftModel, set_peft_model_state_dict
from torch import Tensor, nn

from ...config.adapter.files import SETTINGS, WEIGHTS, AdapterFile, read_adapter_file
from ...config.adapter.start import differing
from ...config.schema import AdapterConfig
from ...errors import ModelError
from ..new_tokens import NewRows
from .attach import seeded
from .targets import targeted_by_all_linear

_SHOWN = 3


def start_file(adapter: AdapterConfig) -> AdapterFile | None:
    """Return the adapter of `adapter.start`, downloaded if it is on the hub; None if not set.

    Raises:
        ModelError: The adapter is missing or cannot be used.
    """
    if adapter.start is None:
        return None
    folder = Path(adapter.start).expanduser()
    if not folder.is_dir():
        folder = _download(adapter.start)
    return read_adapter_file(folder)


def _download(name: str) -> Path:
    if name.startswith(("/", "./", "../", "~")) or name.count("/") != 1:
        raise ModelError(
            f"adapter.start: no such folder: {name}. The run needs it; put it back, or start "
            f"another run."
        )
    try:
        return Path(snapshot_download(name, allow_patterns=[SETTINGS, WEIGHTS]))
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise ModelError(
            f"adapter.start: {name} cannot be downloaded: {reason}. Check the name and the "
            f"network, or set it to a local folder."
        ) from None


def continue_adapter(
    base: nn.Module,
    adapter: AdapterConfig,
    file: AdapterFile,
    rows: NewRows,
    seed: int,
    device: torch.device,
) -> PeftModel:
    """Attach an existing adapter to a base model, ready for training.

    Args:
        base: The frozen base model.
        adapter: The settings of the run, which must agree with the file.
        file: The adapter.
        rows: Rows of new tokens of the run, which must be those of the adapter.
        seed: Seed of what the adapter does not hold; all of its weights are replaced.
        device: Device of the adapter.

    Raises:
        ModelError: The adapter does not fit the base model or the configuration, or its weights are
            missing, unreadable or not finite.
    """
    reasons = [
        f"it has another {key}: {found}" for key, _, found in differing(adapter, file.values)
    ]
    reasons += list(file.why_not_continued())
    trained = {number for ids in rows.indices.values() for number in ids}
    if file.token_rows != trained:
        reasons.append("its rows of new tokens are not those of data.special_tokens")
    if reasons:
        raise ModelError(
            f"adapter.start: {file.folder} cannot be continued: {reasons[0]}. Use the "
            f"settings that it was trained with, or set adapter.merge_first: true."
        )
    all_linear = targeted_by_all_linear(base) if adapter.targets == "all-linear" else None
    arguments = {**file.lora_config_args, "lora_dropout": adapter.dropout}
    model = _attached(base, LoraConfig(task_type="CAUSAL_LM", **arguments), file, seed, device)
    if all_linear is not None and all_linear != (own := _with_adapter(model)):
        other = sorted(all_linear ^ own)
        raise ModelError(
            f"adapter.targets: got all-linear, but the adapter {file.folder} is on other modules: "
            f"{_some(other)} differ. Remove adapter.targets, or set adapter.merge_first: true."
        )
    return model


def merge_adapter(base: Any, file: AdapterFile, device: torch.device) -> None:
    """Merge an existing adapter into the weights of a base model, in place, and freeze them all.

    Quantized weights are dequantized, merged and quantized again, which rounds them.

    Raises:
        ModelError: The adapter does not fit the base model, or its weights are missing, unreadable
            or not finite.
    """
    tied = _is_tied(base)
    settings = PeftConfig.from_pretrained(str(file.folder))
    settings.inference_mode, settings.base_model_name_or_path = True, None
    merged = _attached(base, settings, file, 0, device)
    try:
        after: Any = merged.merge_and_unload(safe_merge=True)
    except ValueError as error:
        raise ModelError(
            f"adapter.start: {file.folder} cannot be merged: {error}. Set it to another adapter."
        ) from None
    if after is not base or (tied and not _is_tied(base)):
        raise ModelError(
            f"adapter.start: {file.folder} changes one of two tied matrices, so the merged model "
            f"would be another one. Merge it with peft, and set model.id to the result."
        )
    if hasattr(base, "peft_config"):
        del base.peft_config  # a mark that would make peft report a second adapter
    for parameter in base.parameters():
        parameter.requires_grad_(False)


def _attached(
    base: Any, settings: Any, file: AdapterFile, seed: int, device: torch.device
) -> PeftModel:
    """Return the model with the weights of the file in its adapter.

    Raises:
        ModelError: The weights do not fit, or are missing, unreadable or not finite.
    """
    try:
        model = seeded(base, settings, seed, device)
    except ValueError as error:
        raise ModelError(_does_not_fit(file, str(error))) from None
    weights = _weights(file)
    trained = {name for name, _ in _adapter_parameters(model)}
    try:
        result = set_peft_model_state_dict(model, weights)
    except KeyError as error:
        raise ModelError(_does_not_fit(file, f"it lacks {error}")) from None
    except RuntimeError as error:
        raise ModelError(_does_not_fit(file, str(error).strip().splitlines()[-1].strip())) from None
    missing = sorted(trained.intersection(result.missing_keys))
    unknown = sorted(result.unexpected_keys)
    if missing or unknown:
        what = f"it lacks {_some(missing)}" if missing else f"the model has no {_some(unknown)}"
        raise ModelError(_does_not_fit(file, what))
    return model


def _adapter_parameters(model: PeftModel) -> list[tuple[str, Tensor]]:
    """Return the parameters that the adapter adds, whether or not they are trained."""
    words = (".lora_", ".modules_to_save.", ".trainable_tokens_")
    return [
        (name, one) for name, one in model.named_parameters() if any(word in name for word in words)
    ]


def _weights(file: AdapterFile) -> dict[str, Tensor]:
    path = file.folder / WEIGHTS
    try:
        weights: dict[str, Tensor] = safetensors.torch.load_file(path)
    except FileNotFoundError:
        raise ModelError(
            f"adapter.start: {file.folder} has no {WEIGHTS}. Save the adapter again in the "
            f"safetensors format."
        ) from None
    except (OSError, safetensors.SafetensorError) as error:
        raise ModelError(f"{path} cannot be read: {error}. Copy the adapter again.") from None
    for name, weight in weights.items():
        if not torch.isfinite(weight).all():
            raise ModelError(f"{path}: {name} is not finite. Start from an earlier checkpoint.")
    return weights


def _with_adapter(model: PeftModel) -> set[str]:
    prefix = "base_model.model."
    return {
        name.removeprefix(prefix)
        for name, module in model.named_modules()
        if hasattr(module, "lora_A") and "default" in module.lora_A
    }


def _is_tied(base: Any) -> bool:
    ends = base.get_input_embeddings(), base.get_output_embeddings()
    pointers = {end.weight.data_ptr() for end in ends if end is not None}
    return len(pointers) == 1


def _does_not_fit(file: AdapterFile, reason: str) -> str:
    """Return the error text for an adapter that was trained on another model."""
    base = f", which was {file.base}" if file.base else ""
    return (
        f"adapter.start: {file.folder} does not fit this model: {reason.rstrip('.')}. Set model.id "
        f"to the model that it was trained on{base}."
    )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
