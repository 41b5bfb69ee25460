"""Recognize the configuration of another tool, and read it as one of fttui."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from ...errors import ConfigError
from ..checks import HUB_FILE
from ..yaml_tree import parse_yaml
from .axolotl import read_axolotl
from .draft import Imported
from .llama_factory import read_llama_factory
from .llama_factory_data import REMOTE, TABLE
from .trl import read_trl

_MOST_TABLE_BYTES = 2**24
_AXOLOTL = {"micro_batch_size", "sequence_len", "datasets", "sample_packing", "num_epochs"}
_LLAMA_FACTORY = {
    "stage",
    "finetuning_type",
    "cutoff_len",
    "dataset_dir",
    "lora_target",
    "template",
}
_TRAINER = {"per_device_train_batch_size", "learning_rate", "output_dir", "num_train_epochs"}
_OWN = {"model", "data", "train"}
"""Sections of fttui."""


def tool_of(given: Mapping[str, Any]) -> str | None:
    """Return the tool of a configuration by its keys: axolotl, LLaMA-Factory or TRL.

    None for a configuration of fttui, for keys of no known tool, and for what Weights & Biases
    notes of a run.
    """
    keys = set(given)
    if any(isinstance(one, Mapping) and set(one) == {"desc", "value"} for one in given.values()):
        return None
    if keys & _OWN and "model_name_or_path" not in keys and "base_model" not in keys:
        return None
    if "base_model" in keys and keys & _AXOLOTL:
        return "axolotl"
    if "model_name_or_path" in keys and keys & _LLAMA_FACTORY:
        return "LLaMA-Factory"
    return "TRL" if len(keys & _TRAINER) >= 2 else None


def read_foreign(path: Path, text: str, task: str | None = None) -> Imported:
    """Read the configuration of another tool.

    Args:
        path: the file.
        text: its content.
        task: sft, dpo, kto or reward, for a configuration that does not say it.

    Raises:
        ConfigError: the file is not a configuration of a known tool, or a value in it or
            LLaMA-Factory's table of datasets cannot be read.
    """
    given = mapping_of(path, text)
    tool = tool_of(given)
    readers: dict[str, Callable[[], Imported]] = {
        "axolotl": lambda: read_axolotl(given),
        "LLaMA-Factory": lambda: read_llama_factory(given, *_table(path, given)),
        "TRL": lambda: read_trl(given, task, f"{path.absolute().parent.name}/{path.name}"),
    }
    if tool is None and len(_OWN & set(given)) > 1:
        raise ConfigError(
            f"{path}: this is a configuration of fttui already; use it with: "
            f"fttui check {quote(str(path))}"
        )
    if tool is None:
        raise ConfigError(
            f"{path}: not the configuration of a known tool; expected that of axolotl (base_model "
            "and datasets), LLaMA-Factory (model_name_or_path and stage), TRL, or a JSON file of "
            "TrainingArguments"
        )
    try:
        return readers[tool]()
    except (ValueError, TypeError, AttributeError, KeyError, ArithmeticError) as error:
        raise ConfigError(
            f"{path}: a value of this {tool} configuration cannot be read: {error}"
        ) from None


def mapping_of(path: Path, text: str) -> Mapping[str, Any]:
    """Return the keys and values of a YAML or JSON file.

    Raises:
        ConfigError: it is not a mapping, has an error of syntax, or is larger than a configuration.
    """
    problems: list[str] = []
    found = parse_yaml(text, str(path), problems).plain()
    if problems:
        raise ConfigError("\n".join(problems))
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: expected keys with values, such as `learning_rate: 2e-4`")
    return found


def hint_of(path: Path, given: Any) -> str:
    """Return how to import a configuration of another tool, or an empty text if it is none."""
    tool = tool_of(given) if isinstance(given, dict) else None
    if tool is None:
        return ""
    return (
        f"{path}: this is a configuration of {tool}; import it with: "
        f"fttui import {quote(str(path))} -o my.yaml"
    )


def _table(path: Path, given: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """Return LLaMA-Factory's table of datasets, and the folder of its files.

    The table is looked up beside the file, in the folders above it, and in the current one; the
    file may also contain it. Without a table of a plausible size, it is empty. For a table on the
    Hub, that in a folder `data` is taken, and files are those on the Hub.

    Raises:
        ConfigError: The table cannot be read.
    """
    name = given.get("dataset_dir") or "data"
    if isinstance(name, Mapping):
        return name, "data"
    remote = str(name).removeprefix(REMOTE) if str(name).startswith(REMOTE) else ""
    for folder in (parent / ("data" if remote else str(name)) for parent in _places(path)):
        file = folder / TABLE
        if file.is_file() and file.stat().st_size <= _MOST_TABLE_BYTES:
            try:
                found = json.loads(file.read_text("utf-8"))
            except (OSError, ValueError, RecursionError) as error:
                raise ConfigError(f"{file}: cannot be read as JSON: {error}") from None
            table = found if isinstance(found, dict) else {}
            return table, f"{HUB_FILE}{remote}" if remote else str(folder)
    return {}, str(name)


def _places(path: Path) -> list[Path]:
    return [path.parent, *path.absolute().parents, Path()]
