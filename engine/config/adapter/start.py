"""Configurations that start from an existing adapter: its base model and its settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace as with_fields

from ...errors import ModelError
from ..checks import Problem, check_config
from ..load import LoadedConfig, with_config
from ..schema import AdapterConfig, ModelConfig
from ..sections.model import PACKAGE_FOLDER, PACKAGE_MODEL
from .files import (
    SETTINGS,
    AdapterFile,
    adapter_beside_model,
    holds_only_adapter,
    last_parts,
    read_adapter_file,
)


@dataclass(frozen=True)
class Started:
    """A configuration with the settings of its start adapter, and notes for the user."""

    loaded: LoadedConfig
    problems: list[Problem]
    """Why the adapter cannot be used as configured; if there are any, no settings were taken."""
    lines: list[str]
    """What to show about the adapter, one fact or warning per line."""


def with_base_of_adapter(loaded: LoadedConfig) -> tuple[LoadedConfig, list[str]]:
    """Return the configuration with a base model in `model.id`, and lines to show about the change.

    If `model.id` holds an adapter alone, its base model becomes `model.id`, and the adapter
    becomes `adapter.start`. Otherwise the configuration is returned as it is, without lines.

    Raises:
        ModelError: It is not clear which model to load, or the adapter cannot be used; the text
            says what to set.
    """
    config, folder = loaded.config, _folder_of_model(loaded.config.model)
    if adapter_beside_model(folder) and config.adapter.start is None:
        raise ModelError(
            f"model.id: {folder} holds the weights of a model and an adapter beside them. Set "
            f"adapter.start: {folder} to train this adapter on, or move adapter_config.json out of "
            f"the folder to train a new adapter on the model alone."
        )
    if not holds_only_adapter(folder):
        return loaded, []
    if config.adapter.start not in (None, config.model.id, str(folder)):
        raise ModelError(
            f"model.id: {folder} holds an adapter alone, and adapter.start names another one. "
            f"Adapters are not stacked: set model.id to a model."
        )
    file = read_adapter_file(folder)
    base = _usable_base(folder, file.base)
    given = config.model.revision if _is_folder(config.model.id) else None
    revision = given or file.base_revision  # of a hub adapter the given one is its own
    same = with_fields(
        config,
        model=with_fields(config.model, id=base, revision=revision),
        adapter=with_fields(config.adapter, start=str(folder)),
    )
    at = f" at revision {revision}" if revision else ""
    line = (
        f"model.id: {folder} holds an adapter alone; its base model is {base}{at}, as its file says"
    )
    return with_config(loaded, same), [line]


def _folder_of_model(model: ModelConfig) -> Path:
    """Return the folder that `model.id` names, or that of an adapter in the local cache of the hub.

    For any other hub id, the id is returned as a path, which need not exist.
    """
    folder = Path(model.id).expanduser()
    if folder.is_dir() or model.id.count("/") != 1:
        return folder
    from huggingface_hub import try_to_load_from_cache  # deferred: it is slow to import

    try:
        cached = try_to_load_from_cache(model.id, SETTINGS, revision=model.revision or "main")
    except ValueError:  # no hub id
        return folder
    alone = isinstance(cached, str) and not (Path(cached).parent / "config.json").is_file()
    return Path(str(cached)).parent if alone else folder


def _is_folder(model_id: str) -> bool:
    return Path(model_id).expanduser().is_dir()


def _usable_base(folder: Path, base: str) -> str:
    """Return the base model of an adapter as an absolute folder or a hub id.

    Raises:
        ModelError: `base` is empty, or the path of a folder that does not exist.
    """
    if not base:
        raise ModelError(
            f"model.id: {folder} holds an adapter alone, and its file does not name the base "
            f"model. Set model.id to the base model, and adapter.start: {folder}."
        )
    path = Path(base).expanduser()
    if path.is_dir():
        return str(path.absolute())
    if base.startswith(("/", "./", "../", "~")):
        raise ModelError(
            f"model.id: {folder} holds an adapter alone, and the base model that its file names, "
            f"{base}, is not on this machine. Set model.id to the base model, and adapter.start: "
            f"{folder}."
        )
    return base


def with_start(loaded: LoadedConfig, file: AdapterFile) -> Started:
    """Take the settings of the start adapter, or return the problems that keep it from being used.

    Keys that the configuration does not set take the values of the file; with
    `adapter.merge_first` the keys describe the new adapter and nothing is taken. No file is read.

    Args:
        loaded: The configuration, with `adapter.start`.
        file: The adapter that `adapter.start` names.
    """
    own = loaded.config.adapter
    if own.merge_first:
        return Started(loaded, list(_unmergeable(file)), [*_merged_lines(loaded, file)])
    taken = {
        key: value for key, value in file.values.items() if f"adapter.{key}" not in loaded.places
    }
    config = with_fields(loaded.config, adapter=with_fields(own, **taken))
    # The file may have named the start adapter and what it trains, which other keys may exclude.
    problems = [*_disagreements(loaded, file), *check_config(config)]
    if problems:
        return Started(loaded, problems, [])
    return Started(with_config(loaded, config), [], list(_continued_lines(config.model, file)))


def _disagreements(loaded: LoadedConfig, file: AdapterFile) -> Iterator[Problem]:
    """Yield a problem for each part of the adapter that fttui cannot train further.

    A problem is also each setting of the configuration that contradicts the adapter, and an empty
    `data.special_tokens` if the adapter has rows of new tokens.
    """
    cure = "set adapter.merge_first: true, which merges it and trains a new adapter"
    for reason in file.why_not_continued():
        yield Problem("adapter.start", f"{file.folder} cannot be continued: {reason}; {cure}")
    given = {key for key in file.values if f"adapter.{key}" in loaded.places}
    for key, own, found in differing(loaded.config.adapter, file.values):
        if key in given:
            yield Problem(
                f"adapter.{key}",
                f"got {own}, but the adapter that adapter.start continues has {found}; remove the "
                f"line to take that, or {cure}",
            )
    if file.token_rows and not loaded.config.added_tokens:
        ids = ", ".join(map(str, sorted(file.token_rows)[:5]))
        yield Problem(
            "data.special_tokens",
            f"is empty, but the adapter that adapter.start continues has rows of new tokens ({ids}"
            "); name them there or in model.add_tokens, as in the run that trained it",
        )


def differing(adapter: AdapterConfig, values: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield (key, own value, value of the file) of the settings that differ.

    Names of modules are compared by their last parts. The own value `all-linear` is not compared,
    because the model decides which modules that is.
    """
    for key, found in values.items():
        own = getattr(adapter, key)
        if own == "all-linear":
            continue
        if (last_parts(own) if isinstance(own, list) else own) != found:
            yield key, own, found


def _unmergeable(file: AdapterFile) -> Iterator[Problem]:
    if file.token_rows:
        yield Problem(
            "adapter.merge_first",
            f"the adapter {file.folder} has rows of new tokens, which are not merged here; export "
            "its run with --merged, and set model.id to the folder",
        )


def _continued_lines(model: ModelConfig, file: AdapterFile) -> Iterator[str]:
    values = file.values
    targets = values["targets"]
    named = targets if isinstance(targets, str) else ", ".join(targets)
    yield (
        f"adapter: continues {file.folder}, r {values['r']}, alpha {values['alpha']}, on {named}"
    )
    yield from _other_base(model, file)


def _merged_lines(loaded: LoadedConfig, file: AdapterFile) -> Iterator[str]:
    yield (
        f"adapter: {file.folder} is merged into the base model first, and a new adapter with r "
        f"{loaded.config.adapter.r} is trained on the result: two adapters are stacked"
    )
    yield from _other_base(loaded.config.model, file)


def _has_name_of_base(model: ModelConfig, file: AdapterFile) -> bool:
    """Whether a model has the name of the base model in the file."""
    name = Path(file.base).name
    if model.id == PACKAGE_MODEL:
        return name.startswith(PACKAGE_FOLDER)
    return name == Path(model.id).name


def _other_base(model: ModelConfig, file: AdapterFile) -> Iterator[str]:
    """Yield a warning if the file names no base model or another one than the configuration.

    For a base model on the hub, another revision is a warning as well.
    """
    if not _has_name_of_base(model, file):
        found = file.base or "a model that its file does not name"
        yield (
            f"warning: the adapter was trained on {found}, but model.id is {model.id}; its "
            "weights are used only if they fit, and are right only on the same model"
        )
    elif file.base_revision not in (None, "main", model.revision) and not _is_folder(model.id):
        yield (
            f"warning: the adapter was trained on revision {file.base_revision} of {file.base}, "
            f"but model.revision is {model.revision or 'null'}"
        )


__all__ = ["Started", "differing", "read_adapter_file", "with_base_of_adapter", "with_start"]
