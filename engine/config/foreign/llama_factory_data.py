"""Read the datasets of a LLaMA-Factory configuration, which name entries of a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from .adapters import MESSAGE_KEYS, listed
from .draft import Draft, KeyOutcome, number, shown, unknown
from .trainer.intervals import read_eval_source

TABLE = "dataset_info.json"
REMOTE = "REMOTE:"
"""Beginning of a `dataset_dir` that is a dataset on the Hub with the table and its files."""
ONLINE = "ONLINE"
"""The `dataset_dir` with which names are those of datasets on the Hub, without a table."""
_FIELDS = {
    "prompt": "instruction",
    "query": "input",
    "response": "output",
    "history": "history",
    "system": "system",
    "tools": "tools",
    "chosen": "chosen",
    "rejected": "rejected",
    "kto_tag": "label",
}
"""Columns of the table, and the fields of fttui that hold them."""
_ROLES = {
    "user_tag": "user",
    "assistant_tag": "assistant",
    "system_tag": "system",
    "observation_tag": "tool",
    "function_tag": "assistant",
}
_KNOWN_ROLES = {
    "human",
    "gpt",
    "user",
    "assistant",
    "system",
    "tool",
    "observation",
    "function_call",
}
_MEDIA = ("images", "videos", "audios")
_KNOWN_KEYS = {
    "": frozenset(
        (
            *("hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name", "subset"),
            *("file_name", "file_sha1", "formatting", "ranking", "split", "folder", "num_samples"),
            *("columns", "tags"),
        )
    ),
    "columns": frozenset((*_FIELDS, *_MEDIA, "messages")),
    "tags": frozenset((*_ROLES, "role_tag", "content_tag")),
}
"""Keys of an entry of the table, and of the mappings in it."""


def read_datasets(draft: Draft, table: Mapping[str, Any], folder: str) -> None:
    """Read the datasets for training and evaluation.

    Args:
        draft: the configuration that is read.
        table: the datasets by name.
        folder: folder of the table, in which files of datasets are.

    Raises:
        ValueError: A weight of a dataset is not a number.
    """
    names = listed(draft.get("dataset"))
    if not names:
        draft.refused("dataset", "there is no dataset", "data.train")
        return
    found = [_source(draft, "dataset", name, table, folder) for name in names]
    weights = [float(number(one)) for one in listed(draft.get("interleave_probs"))]
    if weights and len(weights) == len(found):
        for source, weight in zip(found, weights, strict=True):
            source["weight"] = weight
        draft.read_with("interleave_probs", "data.train, as the weights of its sources")
    if draft.get("mix_strategy") is not None:
        draft.differs("mix_strategy", "sources are mixed by their weights, or joined")
    draft.same("dataset", "data.train", found)
    _read_folder(draft)
    if draft.get("stage") == "pt":
        draft.default("data.format", "text", "stage: pt")
    _read_evaluation(draft, table, folder)


def _read_folder(draft: Draft) -> None:
    key = "dataset_dir"
    if str(draft.get(key, "")).startswith(REMOTE):
        draft.differs(key, f"the table on the Hub is not read; that in data/{TABLE} is used")
    elif draft.get(key) is not None:
        draft.without_effect(key, f"the folder of {TABLE}")


def _read_evaluation(draft: Draft, table: Mapping[str, Any], folder: str) -> None:
    first, *others = listed(draft.get("eval_dataset")) or [""]
    if not first:
        return
    source = _source(draft, "eval_dataset", first, table, folder)
    read_eval_source(draft, "eval_dataset", source)
    if others:
        draft.dropped("eval_dataset", "only the first one is evaluated on")
    if draft.get("val_size") is not None:
        draft.without_effect("val_size", "eval_dataset is evaluated on")


def _source(
    draft: Draft, key: str, name: str, table: Mapping[str, Any], folder: str
) -> dict[str, Any]:
    entry = table.get(name)
    row, ours = f"{key}: {name}", "data.train" if key == "dataset" else "data.eval"
    if entry is None and draft.get("dataset_dir") == ONLINE:
        entry = {"hf_hub_url": name}
    if not isinstance(entry, Mapping):
        reason = (
            f"{TABLE} has no entry of this name; put it beside the file, or in dataset_dir, or "
            f"name the data with --set {ours}=FILE"
        )
        draft.extend([KeyOutcome(row, name, "refused", "", reason, (ours,))])
        return {"path": name}
    found: dict[str, Any] = {"path": _path(entry, folder)}
    if entry.get("split") and entry["split"] != "train":
        found["split"] = str(entry["split"])
    columns, refused = _columns(draft, entry)
    if not found["path"] or entry.get("script_url"):
        refused = refused or "its data are neither on the Hugging Face Hub nor in a file"
    if columns:
        found["columns"] = columns
    if roles := _roles(entry):
        found["roles"] = roles
    verdict: Any = "refused" if refused else "same"
    draft.extend([KeyOutcome(row, shown(dict(entry)), verdict, shown(found), refused, (ours,))])
    draft.extend(_unknown_keys(row, entry))
    if entry.get("folder"):
        reason = "the whole dataset is read, not this folder of it"
        draft.extend([KeyOutcome(f"{row}.folder", shown(entry["folder"]), "dropped", "", reason)])
    if count := entry.get("num_samples"):
        reason = "a source is used whole; data.train_limit limits all of them"
        draft.extend([KeyOutcome(f"{row}.num_samples", shown(count), "dropped", "", reason)])
    return found


def _unknown_keys(row: str, entry: Mapping[str, Any]) -> Iterator[KeyOutcome]:
    """Yield a row for every key of an entry that is not known, also in its mappings."""
    for part, known in _KNOWN_KEYS.items():
        given = dict(entry.get(part) or {}) if part else entry
        for key in sorted(given.keys() - known, key=str):
            place = ".".join(filter(None, (row, part, str(key))))
            reason = unknown(str(key), known - given.keys())
            yield KeyOutcome(place, shown(given[key]), "dropped", "", reason)


def _path(entry: Mapping[str, Any], folder: str) -> str:
    if entry.get("hf_hub_url"):
        subset = entry.get("subset")
        return f"{entry['hf_hub_url']}:{subset}" if subset else str(entry["hf_hub_url"])
    name = entry.get("file_name")
    if not name:
        return ""
    if "://" in folder:
        return f"{folder}/{name}"
    path = PurePosixPath(folder, str(name))
    # LLaMA-Factory reads all files of a folder, also those that are named after another split.
    return str(path if path.suffix else path / "*")


def _columns(draft: Draft, entry: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return {field of fttui: column} of a dataset, and why it cannot be read (empty if it can)."""
    given = dict(entry.get("columns") or {})
    if media := [kind for kind in _MEDIA if kind in given]:
        return {}, f"fttui does not train on {', '.join(media)}"
    if draft.get("stage") == "pt":
        return {"text": given.get("prompt") or "text"}, ""
    if entry.get("formatting", "alpaca") != "sharegpt":
        known = {field: one for field, one in given.items() if field in _FIELDS}
        return _renamed({_FIELDS[field]: one for field, one in known.items()}), ""
    tags = dict(entry.get("tags") or {})
    keys = [tags.get("role_tag", "from"), tags.get("content_tag", "value")]
    if keys[0] not in MESSAGE_KEYS["role"] or keys[1] not in MESSAGE_KEYS["content"]:
        return {}, f"messages with the keys {', '.join(keys)} are not read; rename them"
    column = given.pop("messages", "conversations")
    named = {_FIELDS[field]: name for field, name in given.items() if field in _FIELDS}
    if column not in ("conversations", "messages"):
        named["messages"] = column
    return _renamed(named), ""


def _renamed(columns: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the columns that are named and whose name is not that of their field already."""
    return {field: name for field, name in columns.items() if field != name and name}


def _roles(entry: Mapping[str, Any]) -> dict[str, str]:
    tags = dict(entry.get("tags") or {})
    found = {str(tags[tag]): role for tag, role in _ROLES.items() if tag in tags}
    return {name: role for name, role in found.items() if name not in _KNOWN_ROLES}
