"""Check the headers of a model's weight files without torch, before the weights are loaded."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache

from ...config.adapter.files import WEIGHTS
from ...config.model_files import parsed_settings
from ...errors import ModelError

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_SINGLE = ("model.safetensors", "pytorch_model.bin")
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+)\.")
_LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_LENGTH_BYTES = 8
_LARGEST_HEADER_BYTES = 100_000_000


def check_weight_files(source: str, revision: str | None = None) -> str | None:
    """Check that the weight files of a model are complete and contain every layer.

    Args:
        source: A model folder, or a hub id whose files may be in the local cache.
        revision: Revision on the hub.

    Returns:
        A remark on a layer without some weights that other layers have; None if there is none,
        or if the model is not on this machine.
        Some architectures are made so; only loading the model shows whether weights are missing.

    Raises:
        ModelError: A file is missing or truncated, disagrees with the index, or lacks a layer.
    """
    folder = _folder_of(source, revision)
    if folder is None:
        return None
    files = _listed(folder)
    names = {name for file in files for name in _names_in(folder / file, files[file])}
    if names:
        _require_layers(folder, names)
    return _uneven_layers(names)


def check_adapter_weights(start: str) -> None:
    """Check the header of the weights of a start adapter in a folder; a hub id passes.

    Raises:
        ModelError: The file is missing or truncated, or holds no adapter.
    """
    folder = Path(start).expanduser()
    if not folder.is_dir():
        return
    path = folder / WEIGHTS
    if not path.is_file():
        raise ModelError(
            f"adapter.start: {folder} has no {WEIGHTS}. Save the adapter again in the safetensors "
            f"format."
        )
    if not any(".lora_A." in name for name in _header(path)):
        raise ModelError(f"adapter.start: {path} holds no LoRA weights. Set another folder.")


def headers_of(source: str, revision: str | None = None) -> list[Mapping[str, Any]] | None:
    """Return the headers of a model's safetensors files.

    None if the model is not on this machine, or stored in another format.

    Raises:
        ModelError: A file is missing or damaged.
    """
    folder = _folder_of(source, revision)
    files = [] if folder is None else list(_listed(folder))
    if folder is None or not files or any(not file.endswith(".safetensors") for file in files):
        return None
    return [_header(folder / file) for file in files]


def _folder_of(source: str, revision: str | None) -> Path | None:
    """Return the folder of a model on this machine; None if its weights are not downloaded."""
    if (folder := Path(source)).is_dir():
        return folder
    config = try_to_load_from_cache(source, "config.json", revision=revision or "main")
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    complete = any((folder / name).is_file() for name in (*_INDEXES, *_SINGLE))
    return folder if complete else None


def _listed(folder: Path) -> dict[str, set[str] | None]:
    """Return {weight file: names of the weights in it by the index, or None without an index}.

    Raises:
        ModelError: A file is missing, or the index cannot be read or lists no weights.
    """
    for index in _INDEXES:
        if (folder / index).is_file():
            return _of_index(folder, index)
    single = next((name for name in _SINGLE if (folder / name).is_file()), None)
    if single is None:
        raise ModelError(_without_weights(folder))
    return {single: None}


def _of_index(folder: Path, index: str) -> dict[str, set[str] | None]:
    weight_map = _json(folder / index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{folder / index} lists no weights. Download the model again.")
    files: dict[str, set[str] | None] = {}
    for name, file in weight_map.items():
        held = files.setdefault(str(file), set())
        assert held is not None
        held.add(name)
    absent = [file for file in files if not (folder / file).is_file()]
    if absent:
        raise ModelError(
            f"{folder}: {index} names {len(files)} weight files, of which {_some(absent)} "
            f"{'are' if len(absent) > 1 else 'is'} missing. Download the model again."
        )
    return files


def _without_weights(folder: Path) -> str:
    if (folder / "adapter_config.json").is_file():
        return (
            f"model.id: {folder} holds an adapter, but not the weights of a model. Set model.id "
            f"to the base model that the adapter was trained on, and adapter.start to this folder."
        )
    return (
        f"model.id: {folder} has a config.json, but no weights ({' or '.join(_SINGLE)}, or an "
        f"index of several files). Download the model again, or set another folder."
    )


def _names_in(path: Path, indexed: set[str] | None) -> set[str]:
    """Return the names of the weights in a file; for a torch file, those that the index lists.

    None as `indexed` stands for a model without an index.

    Raises:
        ModelError: The file is truncated or unreadable, or lacks a weight that the index lists.
    """
    if path.suffix != ".safetensors":
        _require_whole_archive(path)
        return indexed or set()
    names = set(_header(path)) - {"__metadata__"}
    absent = sorted((indexed or set()) - names)
    if absent:
        raise ModelError(
            f"{path} lacks {len(absent)} of the weights that the index assigns to it, such as "
            f"{absent[0]}. Download the model again."
        )
    return names


def _header(path: Path) -> Mapping[str, Any]:
    """Return the header of a safetensors file, as a mapping from names to descriptions of tensors.

    Raises:
        ModelError: It is not a safetensors file, is damaged, or is shorter than its header says.

    Source: https://github.com/huggingface/safetensors#format.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        text = file.read(length) if length <= min(size, _LARGEST_HEADER_BYTES) else b""
    try:
        header = json.loads(text)
        ends = [part["data_offsets"][1] for name, part in header.items() if name != "__metadata__"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ModelError(_unreadable(path)) from None
    expected = _LENGTH_BYTES + length + max(ends, default=0)
    if size < expected:
        raise ModelError(
            f"{path} has {size:,} of {expected:,} bytes: it was not downloaded or written to its "
            f"end. Download the model again."
        )
    found: Mapping[str, Any] = header
    return found


def _unreadable(path: Path) -> str:
    with path.open("rb") as file:
        pointer = file.read(40).startswith(b"version https://git-lfs")
    if pointer:
        return (
            f"{path} is a Git LFS pointer, not the weights. Run `git lfs pull` in its folder, or "
            f"download the model again."
        )
    return f"{path} is not a safetensors file, or is damaged. Download the model again."


def _require_whole_archive(path: Path) -> None:
    """Refuse a torch file that is truncated; files of torch before 1.6 are not archives and pass.

    Raises:
        ModelError: The file is truncated, or a pointer of Git LFS.
    """
    with path.open("rb") as file:
        start = file.read(4)
    if start.startswith(b"PK") and not zipfile.is_zipfile(path):
        raise ModelError(f"{path} was not written to its end. Download the model again.")
    if start == b"vers":
        raise ModelError(_unreadable(path))


def _require_layers(folder: Path, names: set[str]) -> None:
    config = _json(folder / "config.json")
    config = config.get("text_config") or config
    counts = (config.get(name) for name in _LAYER_COUNTS)
    expected = next((count for count in counts if isinstance(count, int)), 0)
    present = set(_layers_in(names))
    absent = [number for number in range(expected) if number not in present]
    if present and absent:
        raise ModelError(
            f"{folder}: config.json has {expected} layers, but the weights of layer "
            f"{_some([str(number) for number in absent])} are missing. They would start from "
            f"random values. Download the model again, or correct config.json."
        )


def _layers_in(names: set[str]) -> Iterator[int]:
    for name in names:
        if match := _LAYER.search(name):
            yield int(match[1])


def _uneven_layers(names: set[str]) -> str | None:
    """Return in words the first layer with fewer weights than another; None if there is none.

    Its weights are a part of those of the other layer.
    """
    layers: dict[tuple[str, int], set[str]] = {}
    for name in names:
        if match := _LAYER.search(name):
            place = name[: match.start()], int(match[1])
            layers.setdefault(place, set()).add(name[match.end() :])
    for (_, number), held in sorted(layers.items()):
        fuller = [other for other in layers.values() if held < other]
        if fuller:
            lacks = sorted(min(fuller, key=len) - held)
            return f"layer {number} lacks {_some(lacks)}, which other layers have"
    return None


def _json(path: Path) -> dict[str, Any]:
    try:
        found = parsed_settings(path)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}. Download the model again.") from None
    return found if isinstance(found, dict) else {}


def _some(names: list[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
