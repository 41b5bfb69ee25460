"""Recognize folders with a saved adapter, and read and check its adapter_config.json."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from ...errors import ModelError
from ..model_files import parsed_settings

SETTINGS = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
_MERGED = " with the adapter "
_MODEL_WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
LORA_CONFIG_ARGS = (
    "r",
    "lora_alpha",
    "target_modules",
    "exclude_modules",
    "fan_in_fan_out",
    "use_rslora",
    "use_dora",
    "modules_to_save",
    "layers_to_transform",
    "layers_pattern",
    "rank_pattern",
    "alpha_pattern",
    "trainable_token_indices",
    "ensure_weight_tying",
)
"""Fields of adapter_config.json that say which weights an adapter has and how they are scaled."""
_WITHOUT_EFFECT = frozenset(
    {
        "peft_type",
        "peft_version",
        "task_type",
        "auto_mapping",
        "base_model_name_or_path",
        "revision",
        "inference_mode",
        "lora_dropout",
        "init_lora_weights",
        "loftq_config",
        "eva_config",
        "corda_config",
        "lora_ga_config",
        "runtime_config",
        "megatron_core",
        "qalora_group_size",
    }
)
"""Fields that do not change what the saved weights compute."""
_CHANGED_BASE = ("pissa", "olora", "corda", "lora_ga")
"""Initializations after which an adapter belongs to a base model with other weights."""


def merged_base(base: str, start: str) -> str:
    """Return the name of a base model into which an adapter was merged before training.

    It is not a folder and no hub id, so no library loads the base without that adapter by mistake.
    """
    return f"{base}{_MERGED}{start} merged into it"


@dataclass(frozen=True)
class AdapterFile:
    """The folder of a saved adapter and its parsed adapter_config.json."""

    folder: Path
    settings: Mapping[str, Any]

    @property
    def base(self) -> str:
        """The folder or hub id of the base model, as the file names it; may be empty."""
        return str(self.settings.get("base_model_name_or_path") or "")

    @property
    def base_revision(self) -> str | None:
        """The revision of the base model on the hub, as the file names it; None without one."""
        return str(self.settings.get("revision") or "") or None

    @property
    def values(self) -> dict[str, Any]:
        """The values of the keys of the section `adapter` that the file decides.

        In lists of modules, full names are reduced to their last parts; a regular expression of
        `targets` stays. `lora_config_args` has all of them in full.
        """
        targets = self.settings.get("target_modules") or []
        return {
            "r": self.settings.get("r"),
            "alpha": self.settings.get("lora_alpha"),
            "targets": targets if isinstance(targets, str) else last_parts(targets),
            "modules_to_save": last_parts(self.settings.get("modules_to_save") or []),
            "rank_pattern": dict(self.settings.get("rank_pattern") or {}),
            "alpha_pattern": dict(self.settings.get("alpha_pattern") or {}),
            "rslora": bool(self.settings.get("use_rslora")),
            "dora": bool(self.settings.get("use_dora")),
        }

    @property
    def lora_config_args(self) -> dict[str, Any]:
        """The arguments of peft's LoraConfig that say which weights there are and their scaling.

        Those that the file does not have are left out.
        """
        return {name: self.settings[name] for name in LORA_CONFIG_ARGS if name in self.settings}

    @property
    def token_rows(self) -> set[int]:
        """The ids of the tokens whose rows in the embedding or output head the adapter trains."""
        found = self.settings.get("trainable_token_indices") or []
        lists = found.values() if isinstance(found, Mapping) else [found]
        return {int(number) for one in lists for number in one}

    def why_not_continued(self) -> Iterator[str]:
        """Yield a reason for each setting with which fttui cannot train the adapter further.

        A reason is a clause without a full stop. There are none if the adapter can be continued.
        """
        own = _WITHOUT_EFFECT.union(LORA_CONFIG_ARGS)
        for name, value in self.settings.items():
            if value and name not in own and (name, value) != ("bias", "none"):
                yield f"it has {name}: {_short(value)}, which fttui does not train"


def last_parts(names: Iterable[str]) -> list[str]:
    """Return the last parts of the names of modules, such as `q_proj`, sorted and each once."""
    return sorted({name.rpartition(".")[2] for name in names})


def holds_only_adapter(folder: Path) -> bool:
    """Return whether a folder holds an adapter, but not the weights of a model."""
    return (folder / SETTINGS).is_file() and not any(
        (folder / name).is_file() for name in _MODEL_WEIGHTS
    )


def why_only_an_adapter(model_id: str, revision: str | None, *, local: bool = False) -> str | None:
    """Return which keys to set if a repository on the hub holds an adapter; None otherwise.

    Meant for a repository in which no config.json was found. Unless `local`, this asks the hub,
    downloads the adapter_config.json and leaves it in the cache. None also if the hub cannot be
    reached, and for a folder on this machine or an id that is not OWNER/NAME.

    Args:
        model_id: As in `model.id`.
        revision: Revision on the hub.
        local: Look into the cache only.
    """
    if model_id.count("/") != 1 or Path(model_id).expanduser().exists():
        return None
    from huggingface_hub import hf_hub_download  # deferred: it is slow to import
    from huggingface_hub.errors import EntryNotFoundError

    try:
        hf_hub_download(model_id, SETTINGS, revision=revision, local_files_only=local)
    except (OSError, ValueError, EntryNotFoundError):
        return None
    return (
        f"{model_id} holds an adapter and no model. Set model.id to the base model of the adapter, "
        f"and adapter.start: {model_id}"
    )


def adapter_beside_model(folder: Path) -> bool:
    """Return whether a folder holds an adapter and the weights of a model."""
    return (folder / SETTINGS).is_file() and not holds_only_adapter(folder)


def read_adapter_file(folder: Path) -> AdapterFile:
    """Read and check the configuration of an adapter.

    Raises:
        ModelError: The folder has no adapter_config.json, or one that cannot be read, or that is
            not the one of a LoRA adapter which can be used on its base model.
    """
    path = folder / SETTINGS
    try:
        settings = parsed_settings(path)
    except FileNotFoundError:
        raise ModelError(
            f"adapter.start: {folder} has no {SETTINGS}, so it holds no adapter. Set it to a "
            f"folder that `fttui export --adapter` or peft's save_pretrained wrote."
        ) from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}. Copy the adapter again.") from None
    if not isinstance(settings, dict):
        raise ModelError(f"{path} is not an object with settings. Copy the adapter again.")
    found = AdapterFile(folder, settings)
    if problem := _problem(found):
        raise ModelError(f"adapter.start: {folder}: {problem}.")
    return found


def _how_to_fit_the_base(folder: Path) -> str:
    """Return advice on how to save an adapter again so that it fits its unchanged base model."""
    if folder.parent.name == "checkpoints":
        run = folder.parent.parent.name
        return (
            f"run `fttui export {quote(run)} --adapter`, and set adapter.start to the folder that "
            "it writes"
        )
    return (
        "save it again with peft's path_initial_model_for_weight_conversion, or export its run "
        "with fttui"
    )


def _problem(found: AdapterFile) -> str | None:
    """Return why an adapter cannot be used on its base model; None if it can."""
    kind = str(found.settings.get("peft_type"))
    if kind != "LORA":
        return f"its kind is {kind}, but fttui trains only LoRA adapters; name one of these"
    start = str(found.settings.get("init_lora_weights")).lower()
    if start.startswith(_CHANGED_BASE):
        return (
            f"it was initialized by {start}, which changes the base model, so it does not fit the "
            f"base model itself; {_how_to_fit_the_base(found.folder)}"
        )
    if _MERGED in found.base:
        return (
            f"its base is {found.base}; export the run of this adapter with --merged, and set "
            "model.id to the folder that the export writes"
        )
    if found.base and Path(found.base).is_dir() and holds_only_adapter(Path(found.base)):
        return (
            f"its base {found.base} is an adapter itself, so two adapters are stacked; merge that "
            "one into its base model first, and set model.id to the merged model"
        )
    numbers = (found.settings.get("r"), found.settings.get("lora_alpha"))
    if not all(isinstance(one, int) and one > 0 for one in numbers):
        return f"r and lora_alpha are {numbers}, expected whole numbers above 0"
    return None


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
