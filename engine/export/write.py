"""Writes an export: a whole model, or an adapter for its base model, each with a model card."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from huggingface_hub import try_to_load_from_cache
from msgspec.structs import replace
from peft import PeftModel
from transformers import AutoConfig
from transformers.utils import logging

from ..config.adapter.files import merged_base
from ..config.checks.quarantine import ids_as_text
from ..config.load import dump_config
from ..config.schema import ModelConfig, RunConfig
from ..errors import CheckpointError, ConfigError
from ..model.adapter.score_head import as_classifier
from ..model.files.package_model import PREFIX
from ..model.load import load_model
from ..model.progress import Progress, ignore_progress
from ..model.quantization import form_of
from ..model.tokenizer import hub_arguments, load_tokenizer
from ..model.vision import sees_images
from ..run.identity.model_content import model_folder
from .card import QUARANTINE, BaseModel, ModelCard, head_notes, shown_start, without_folders
from .checkpoint import SETTINGS, WEIGHTS, TrainedFiles
from .embedding import embedding_notes, end_with_eos, write_embedding_files
from .folder import require_space
from .lineage import Lineage

_ADAPTER_ALONE = (
    "For a complete embedding model, with pooling and instruction for sentence-transformers, use "
    "`fttui export --merged`."
)

_BASE_IS_MERGED = (
    "The base model of this adapter is the one below with another adapter merged into it. On the "
    "base model alone its results are wrong, so adapter_config.json names no model that exists. "
    "For one complete model, use `fttui export --merged`."
)

_PROCESSOR_FILES = (
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
)


def write_merged(
    folder: Path, config: RunConfig, files: TrainedFiles, lineage: Lineage, progress: Progress
) -> ModelCard:
    """Write a model for plain transformers, or for sentence-transformers if it embeds.

    The base is quantized as in training and then dequantized, because the adapter was trained on
    those weights. The written weights are bf16 if those of the base are 16-bit, otherwise fp32.
    Returns the model card, which is written too.

    Raises:
        ModelError: the base model cannot be loaded.
        CheckpointError: the merged weights are not finite.
        FttuiError: the disk has not enough space.
    """
    logging.disable_progress_bar()
    loaded = load_model(_for_merging(config), torch.device("cpu"), progress)
    unite = _with_own_weights if config.adapter.kind == "none" else _merged
    merged = unite(folder, loaded.model, files, progress)
    merged.config.use_cache = True
    if config.task == "reward":
        merged = as_classifier(merged)
    progress("writing", 0, 1)
    merged.save_pretrained(str(folder))
    notes = head_notes(config)
    if config.task == "contrastive":
        notes += embedding_notes(loaded.tokenizer, config)
        end_with_eos(loaded.tokenizer, config.data.max_length)
        write_embedding_files(folder, config, merged.config.get_text_config().hidden_size)
    card = _finish(folder, config, files, lineage, loaded.tokenizer, notes, merged=True)
    progress("writing", 1, 1)
    return card


def _merged(folder: Path, model: Any, files: TrainedFiles, progress: Progress) -> Any:
    """Return the base model with the trained adapter merged into it.

    Raises:
        CheckpointError: the merged weights are not finite.
        FttuiError: the disk has not enough space for the model.
    """
    base = _dequantized(model.unload(), progress)
    require_space(folder, sum(p.numel() * p.element_size() for p in base.parameters()))
    progress("merging", 0, 1)
    _write_adapter_files(folder, files)
    trained = PeftModel.from_pretrained(base, str(folder))
    _remove_adapter_files(folder)
    try:
        return trained.merge_and_unload(safe_merge=True)
    except ValueError as error:
        raise CheckpointError(f"checkpoint {files.manifest.name}: {error}") from None


def _with_own_weights(folder: Path, model: Any, files: TrainedFiles, progress: Progress) -> Any:
    """Return the model with the trained weights in place of those of the base model.

    Raises:
        CheckpointError: the base model has no weight of that name.
        FttuiError: the disk has not enough space for the model.
    """
    require_space(folder, sum(p.numel() * p.element_size() for p in model.parameters()))
    trained = safetensors.torch.load(files.weights)
    found = model.load_state_dict(trained, strict=False)
    if found.unexpected_keys:
        raise CheckpointError(
            f"checkpoint {files.manifest.name}: the base model has no weight named "
            f"{found.unexpected_keys[0]}; use the base model of the run"
        )
    return model


def write_adapter(
    folder: Path, config: RunConfig, files: TrainedFiles, lineage: Lineage, progress: Progress
) -> None:
    """Write an adapter for plain PEFT.

    Raises:
        ConfigError: the run has no adapter.
        ModelError: the tokenizer of the base model cannot be loaded.
        FttuiError: the disk has not enough space.
    """
    if config.adapter.kind == "none":
        raise ConfigError(
            "the run has no adapter, because adapter: none trained the model itself; use --merged"
        )
    require_space(folder, len(files.weights))
    progress("writing", 0, 1)
    tokenizer = load_tokenizer(config.model, config.data, progress)
    base = str(tokenizer.name_or_path)
    notes = [_ADAPTER_ALONE] if config.task == "contrastive" else []
    if config.adapter.merge_first:
        base = merged_base(base, shown_start(config.adapter.start))
        notes.append(_BASE_IS_MERGED)
    _write_adapter_files(
        folder, files, base=base, revision=config.model.revision, scores=config.task == "reward"
    )
    _finish(folder, config, files, lineage, tokenizer, notes, merged=False)
    progress("writing", 1, 1)


def _for_merging(config: RunConfig) -> RunConfig:
    """Return the configuration with which the base model is loaded to be merged.

    It computes in bf16 if the weights of the base are 16-bit, otherwise in fp32. What changes the
    base for training (lean mode, the initialization of the adapter) is left out.
    """
    settings = base_settings(config)
    stored = settings.dtype or settings.get_text_config().dtype
    half = stored in (torch.bfloat16, torch.float16)
    model = replace(config.model, precision="bf16" if half else "fp32", attention="auto")
    train = replace(config.train, activation_checkpointing=False, memory="plain")
    if config.adapter.kind == "none":
        train = replace(train, adapter_precision="bf16" if half else "fp32")
    adapter = config.adapter
    if adapter.continues:  # the checkpoint holds all of its weights
        adapter = replace(adapter, start=None)
    adapter = replace(adapter, init="default")  # the base is to stay as it is
    return replace(config, model=model, train=train, adapter=adapter)


def base_settings(config: RunConfig) -> Any:
    """Return the configuration of the base model of a run, as transformers reads it."""
    source = load_tokenizer(config.model, config.data, ignore_progress).name_or_path
    return _settings(config.model, str(source))


def _settings(model: ModelConfig, source: str) -> Any:
    """Return the configuration of the base model, as transformers reads it."""
    return AutoConfig.from_pretrained(source, **hub_arguments(model))


def _copy_processor(folder: Path, config: RunConfig) -> None:
    """Copy the settings of the base model's image processor, if its folder is on this machine."""
    source, _ = model_folder(config)
    if source is None:
        return
    for name in _PROCESSOR_FILES:
        if (source / name).is_file() and not (folder / name).exists():
            shutil.copyfile(source / name, folder / name)


def _dequantized(base: Any, progress: Progress) -> Any:
    if form_of(base) is None:
        return base
    progress("dequantizing", 0, 1)
    return base.dequantize(dtype=base.dtype)


def _write_adapter_files(
    folder: Path,
    files: TrainedFiles,
    base: str | None = None,
    revision: str | None = None,
    *,
    scores: bool = False,
) -> None:
    """Write the adapter files that PEFT reads; `scores` is true for those of a reward model."""
    settings = json.loads(files.settings)
    settings["inference_mode"] = True
    if scores:
        settings["task_type"] = "SEQ_CLS"
    if base is not None:
        settings |= {"base_model_name_or_path": base, "revision": revision}
    (folder / WEIGHTS).write_bytes(files.weights)
    (folder / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def _remove_adapter_files(folder: Path) -> None:
    for name in (WEIGHTS, SETTINGS):
        (folder / name).unlink()


def _finish(
    folder: Path,
    config: RunConfig,
    files: TrainedFiles,
    lineage: Lineage,
    tokenizer: Any,
    notes: Sequence[str],
    *,
    merged: bool,
) -> ModelCard:
    """Write what belongs beside the weights, and return the model card.

    That is the tokenizer with its chat template, the model card, the ids of samples in quarantine,
    and for a merged vision model the settings of its image processor.
    """
    tokenizer.save_pretrained(str(folder))
    vision = sees_images(_settings(config.model, str(tokenizer.name_or_path)))
    if vision and merged:
        _copy_processor(folder, config)
    for file in folder.glob("*.safetensors"):
        file.chmod(
            folder.stat().st_mode & 0o666
        )  # like the other files: the library creates them with mode 0600
    card = ModelCard(
        config=config,
        config_text=dump_config(without_folders(config)),
        manifest=files.manifest,
        lineage=lineage,
        base=describe_base(config.model, str(tokenizer.name_or_path)),
        merged=merged,
        averaged=files.averaged,
        mean_of=files.mean_of,
        vision=vision,
        notes=notes,
    )
    (folder / "README.md").write_text(card.text(), encoding="utf-8")
    if kept_out := files.manifest.kept_out:
        (folder / QUARANTINE).write_text(ids_as_text(kept_out), encoding="utf-8")
    return card


def describe_base(model: ModelConfig, source: str) -> BaseModel:
    """Return the name of the base model, and its license if that is known on this machine.

    Args:
        model: The base model as configured.
        source: The folder or Hub id from which its tokenizer was loaded.
    """
    if model.id.startswith(PREFIX):
        package = model.id.removeprefix(PREFIX)
        return BaseModel(f"SmolLM2-135M-Instruct ({package})", None, _package_license(package))
    folder = Path(source)
    if folder.is_dir():
        return BaseModel(folder.name, None, _card_license(folder / "README.md"))
    cached = try_to_load_from_cache(source, "README.md", revision=model.revision)
    known = _card_license(Path(cached)) if isinstance(cached, str) else None
    return BaseModel(model.id, model.id, known)


def _package_license(package: str) -> str | None:
    found = metadata.metadata(package)
    license_text = found["License-Expression"] or found["License"]
    return str(license_text).splitlines()[0] if license_text else None


def _card_license(card: Path) -> str | None:
    """Return the license in the front matter of a model card; None if there is none."""
    if not card.is_file():
        return None
    found = re.search(r"^license:\s*(\S+)", card.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1].strip("'\"").lower() if found else None
