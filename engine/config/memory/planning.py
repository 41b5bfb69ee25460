"""Plan a run before it starts: decide the `auto` settings so that it fits, and keep them on resume.

Used by `fttui check`, `fttui run` and the app. No torch; only `settings_of` reads files or the hub.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace as with_fields

from ...errors import FttuiError, ModelError
from ..adapter.files import why_only_an_adapter
from ..checks import (
    Problem,
    check_batch,
    check_experts,
    check_model,
    check_quantized,
    check_vision,
    require,
)
from ..load import LoadedConfig, with_config
from ..schema import RunConfig, TrainConfig
from ..sections.model import PACKAGE_MODEL
from .architecture import Architecture, MixtureOfExperts, read_architecture, read_settings
from .fit import Fit, fit, too_large
from .hardware import Hardware

_SMOLLM2_135M = {
    "model_type": "llama",
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}
"""Sizes of the packaged model, which has no config.json before its first conversion."""


def settings_of(config: RunConfig, *, local: bool = False) -> Mapping[str, Any]:
    """Return the model's parsed config.json from its folder, its package, the cache or the hub.

    Args:
        config: The run.
        local: Do not ask the hub for a model that is not in the cache.

    Raises:
        FttuiError: The file cannot be found or read, or holds no settings.
    """
    if config.model.id == PACKAGE_MODEL:
        return _SMOLLM2_135M
    if Path(config.model.id).is_dir():
        return read_settings(Path(config.model.id))
    from huggingface_hub import hf_hub_download  # deferred: it is slow to import
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        file = hf_hub_download(
            config.model.id, "config.json", revision=config.model.revision, local_files_only=local
        )
    except LocalEntryNotFoundError:
        raise FttuiError(
            "the file is not in the local cache, and the Hugging Face Hub cannot be reached or "
            "was switched off (HF_HUB_OFFLINE)"
        ) from None
    except (OSError, ValueError) as error:
        reason = why_only_an_adapter(config.model.id, config.model.revision, local=local)
        raise FttuiError(reason or str(error).strip().splitlines()[0]) from None
    return read_settings(Path(file))


def architecture_of(config: RunConfig, *, local: bool = False) -> Architecture:
    """Return the sizes of the model; with `local`, the hub is not asked for its config.json.

    Raises:
        FttuiError: config.json cannot be found or read.
        MixtureOfExperts: the model is a mixture of experts whose memory is not predicted.
        ModelError: a size is missing in config.json.
    """
    return read_architecture(settings_of(config, local=local))


def known_architecture(loaded: LoadedConfig) -> Architecture | FttuiError:
    """Return the model's sizes, or the error that says why they are unknown.

    Raises:
        ConfigError: The configuration asks for something that the model does not have, or the model
            is quantized in a form that cannot be trained.
    """
    found: Architecture | FttuiError
    problems: list[Problem] = []
    try:
        settings = settings_of(loaded.config)
        problems += check_quantized(loaded.config, settings)
        found = read_architecture(settings)
        problems += check_model(loaded.config, found.layers)
        problems += check_vision(loaded.config) if found.sees_images else []
        problems += check_experts(loaded.config) if found.mixture else []
    except MixtureOfExperts as error:
        found, problems = error, [*problems, *check_experts(loaded.config)]
    except FttuiError as error:
        found = error
    require(problems, loaded.places, "the configuration")
    return found


def fit_on(
    loaded: LoadedConfig, hardware: Hardware, lengths: Sequence[int] = (), *, force: bool
) -> Fit | None:
    """Decide the `auto` settings for this hardware; None if the model's sizes are unknown.

    Args:
        loaded: The configuration as read.
        hardware: The machine the run is to start on.
        lengths: Tokens of rows of the data, for `train.batch: auto`; empty if they are not known.
        force: Accept a run that does not fit by estimate.

    Raises:
        ConfigError: The configuration asks for something that the model does not have, or the model
            is quantized in a form that cannot be trained.
        ModelError: The run does not fit; the text lists what to change.
    """
    architecture = known_architecture(loaded)
    if isinstance(architecture, FttuiError):
        return None
    found = fit(loaded.config, architecture, hardware, lengths)
    if not found.fits and not force:
        raise ModelError(f"{too_large(found)}\nTo start it anyway, use --force.")
    return found


def with_earlier_decisions(loaded: LoadedConfig, earlier: RunConfig) -> LoadedConfig:
    """Return the configuration with its `auto` settings as the run decided them at its first start.

    Deciding them again could give another model, such as one whose head is quantized, or other
    micro-batches than those in which positions in the data are counted.

    Raises:
        ConfigError: The earlier micro-batch does not divide the sequences of an update that are
            configured now.
    """
    train, before = loaded.config.train, earlier.train
    if train.batch == "auto":
        train = _divided_as(loaded, earlier)
    memory = before.memory if train.memory == "auto" else train.memory
    activations = before.activations if train.activations == "auto" else train.activations
    fast = before.fast if train.fast == "auto" else train.fast
    same = with_fields(train, memory=memory, activations=activations, fast=fast)
    if train.activation_checkpointing == "auto":
        kept = before.activation_checkpointing, before.whole_layers
        same = with_fields(same, activation_checkpointing=kept[0], whole_layers=kept[1])
    return with_config(loaded, with_fields(loaded.config, train=same))


def _divided_as(loaded: LoadedConfig, earlier: RunConfig) -> TrainConfig:
    """Return the section `train` with the micro-batch of the run as it was started."""
    train = with_fields(loaded.config.train, batch=earlier.train.micro_batch_size)
    problems = check_batch(with_fields(loaded.config, train=train))
    require(problems, loaded.places, "the configuration")
    return train


def with_smallest_batch(loaded: LoadedConfig) -> LoadedConfig:
    """Return the configuration with single sequences in place of `train.batch: auto`.

    It is for a model whose memory cannot be estimated; another micro-batch stays.
    """
    config = loaded.config
    if config.train.batch != "auto":
        return loaded
    train = with_fields(config.train, batch=1)
    return with_config(loaded, with_fields(config, train=train))
