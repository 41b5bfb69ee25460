"""Public configurations with the local stand-ins for their model and data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fttui.engine.config.foreign.llama_factory_data import TABLE
from fttui.engine.config.foreign.reading import mapping_of, tool_of
from fttui.engine.errors import ConfigError

from . import stand_ins

Row = dict[str, Any]
_REMOTE = ("name", "data_files", "revision", "trust_remote_code", "shards", "preprocess_shards",
           "temporal_shards")  # fmt: skip
_ELSEWHERE = (
    "test_datasets", "dataset_prepared_path", "tokenizer_type", "tokenizer_config", "model_type",
    "revision_of_model", "base_model_config", "plugins", "hub_model_id", "push_dataset_to_hub",
    "eval_dataset", "model_revision", "dataset_mixer", "dataset_mixture", "dataset_splits",
    "dataset_config", "dataset_train_split", "dataset_test_split",
)  # fmt: skip
"""Keys about data and files that the stand-ins replace."""


@dataclass(frozen=True)
class Case:
    """One configuration whose model and data are local."""

    name: str
    tool: str
    given: Mapping[str, Any]
    """The configuration with the paths of the stand-ins."""
    sources: list[list[Row]]
    """The records of each dataset."""
    folder: Path
    table: Mapping[str, Any]
    """LLaMA-Factory's datasets by name; empty for other tools."""

    def as_json(self, task: str) -> dict[str, Any]:
        """Return what the other tool's side reads."""
        datasets = list(self.table)
        return {"name": self.name, "given": self.given, "sources": self.sources, "task": task,
                "datasets": datasets, "table": self.table}  # fmt: skip


def cases(examples: Path, root: Path) -> Iterator[Case]:
    """Yield the cases of all configurations in a folder that have records to compare.

    Args:
        examples: folder with the public examples.
        root: folder for the stand-ins.
    """
    for number, path in enumerate(sorted(examples.rglob("*.y*ml"))):
        try:
            given = dict(mapping_of(path, path.read_text("utf-8")))
        except ConfigError:
            continue
        tool = tool_of(given)
        make = {"axolotl": _axolotl, "LLaMA-Factory": _llama_factory, "TRL": _trl}.get(tool or "")
        folder = root / f"{number}"
        folder.mkdir()
        found = make(given, path, folder) if make else None
        if found is not None and tool is not None:
            changed, sources, table = found
            name = str(path.relative_to(examples))
            yield Case(name, tool, changed, sources, folder, table)


_Found = tuple[dict[str, Any], list[list[Row]], dict[str, Any]]


def _local(given: Mapping[str, Any], model_key: str, folder: Path) -> dict[str, Any]:
    model = stand_ins.model_folder(stand_ins.family_of(str(given[model_key])), folder.parent)
    changed = {key: value for key, value in given.items() if key not in _ELSEWHERE}
    return {**changed, model_key: str(model)}


def _write(rows: list[Row], file: Path) -> str:
    file.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), "utf-8")
    return str(file)


def _axolotl(given: dict[str, Any], _path: Path, folder: Path) -> _Found | None:
    if not given.get("datasets") or given.get("processor_type"):
        return None
    changed = _local(given, "base_model", folder)
    changed |= {"sequence_len": stand_ins.LENGTH, "val_set_size": 0, "streaming": False}
    sources, datasets = [], []
    for number, one in enumerate(given["datasets"]):
        own = {key: value for key, value in one.items() if key not in _REMOTE}
        rows = _axolotl_rows(own, given.get("rl"))
        if not rows:
            return None
        path = _write(rows, folder / f"data{number}.jsonl")
        datasets.append({**own, "path": path, "ds_type": "json", "split": "train"})
        sources.append(rows)
    return {**changed, "datasets": datasets}, sources, {}


def _axolotl_rows(own: Mapping[str, Any], rl: Any) -> list[Row]:
    kind = own.get("type")
    if rl:
        return _axolotl_preferences(own, str(kind)) if rl in ("dpo", "ipo") else []
    if isinstance(kind, Mapping):
        fields = ("instruction", "input", "output", "system")
        return stand_ins.instructions(*(kind.get(f"field_{name}") or name for name in fields))
    if str(kind).startswith("alpaca"):
        return stand_ins.instructions("instruction", "input", "output", "system")
    if kind == "completion":
        return stand_ins.texts(own.get("field") or "text")
    return _axolotl_chats(own) if str(kind).startswith(("chat_template", "None")) else []


def _axolotl_chats(own: Mapping[str, Any]) -> list[Row]:
    keys = own.get("message_property_mappings") or {}
    role = keys.get("role") or own.get("message_field_role") or "role"
    content = keys.get("content") or own.get("message_field_content") or "content"
    names = {who: listed[0] for who, listed in (own.get("roles") or {}).items() if listed}
    return stand_ins.chats(own.get("field_messages") or "messages", role, content, names)


def _axolotl_preferences(own: Mapping[str, Any], kind: str) -> list[Row]:
    family, _, style = kind.partition(".")
    if family == "chat_template":
        columns = ("messages", "chosen", "rejected")
        names = tuple(own.get(f"field_{name}") or name for name in columns)
        rows = list(stand_ins.preferences((names[0], names[1], names[2]), turns=True))
        for row in rows:
            for answer in names[1:]:
                row[answer] = row[answer][0]
        return rows
    asked = {"intel": ("question", "chosen", "rejected"),
               "argilla": ("instruction", "chosen_response", "rejected_response"),
               "icr": ("input", "chosen", "rejected")}.get(style)  # fmt: skip
    return list(stand_ins.preferences(asked, turns=False)) if asked else []


def _llama_factory(given: dict[str, Any], path: Path, folder: Path) -> _Found | None:
    table = _table_of(path)
    names = [one.strip() for one in str(given.get("dataset") or "").split(",") if one.strip()]
    entries = {name: table.get(name) for name in names}
    if not names or not all(isinstance(entry, dict) for entry in entries.values()):
        return None
    changed = _local(given, "model_name_or_path", folder)
    changed |= {"cutoff_len": stand_ins.LENGTH, "val_size": 0, "dataset_dir": str(folder)}
    changed.pop("max_samples", None)
    sources, local = [], {}
    for number, (name, entry) in enumerate(entries.items()):
        rows = _table_rows(dict(entry or {}), given.get("stage", "sft"))
        if not rows:
            return None
        file = folder / f"data{number}.jsonl"
        _write(rows, file)
        kept = {
            k: v
            for k, v in dict(entry or {}).items()
            if k in ("formatting", "columns", "tags", "ranking")
        }
        local[name] = {**kept, "file_name": file.name}
        sources.append(rows)
    (folder / TABLE).write_text(json.dumps(local), "utf-8")
    return changed, sources, local


def _table_of(path: Path) -> dict[str, Any]:
    for parent in path.parents:
        if (parent / "data" / TABLE).is_file():
            return json.loads((parent / "data" / TABLE).read_text("utf-8"))
    return {}


def _table_rows(entry: dict[str, Any], stage: str) -> list[Row]:
    columns, tags = entry.get("columns") or {}, entry.get("tags") or {}
    if any(kind in columns for kind in ("images", "videos", "audios")):
        return []
    if stage == "pt":
        return stand_ins.texts(columns.get("prompt") or "text")
    chat = entry.get("formatting") == "sharegpt"
    role, content = tags.get("role_tag", "from"), tags.get("content_tag", "value")
    names = {"user": tags.get("user_tag", "human"), "assistant": tags.get("assistant_tag", "gpt"),
             "system": tags.get("system_tag", "system")}  # fmt: skip
    column = columns.get("messages", "conversations")
    if entry.get("ranking"):
        asked = (column if chat else "instruction", columns.get("chosen", "chosen"),
                 columns.get("rejected", "rejected"))  # fmt: skip
        rows = list(stand_ins.preferences(asked, turns=chat))
        return [_tagged(row, asked, role, content, names) for row in rows] if chat else rows
    if stage == "kto":
        rows = stand_ins.chats(column, role, content, names)
        return [{**row, columns.get("kto_tag", "label"): place % 2 == 0}
                for place, row in enumerate(rows)]  # fmt: skip
    if chat:
        return stand_ins.chats(column, role, content, names)
    return stand_ins.instructions(
        columns.get("prompt", "instruction"), columns.get("query", "input"),
        columns.get("response", "output"), "unused",
    )  # fmt: skip


def _tagged(
    row: Row, asked: tuple[str, str, str], role: str, content: str, names: Mapping[str, str]
) -> Row:
    turns = {
        name: [{role: names[one["role"]], content: one["content"]} for one in row[name]]
        for name in asked
    }
    return {asked[0]: turns[asked[0]], asked[1]: turns[asked[1]][0], asked[2]: turns[asked[2]][0]}


def _trl(given: dict[str, Any], _path: Path, folder: Path) -> _Found | None:
    if not given.get("model_name_or_path"):
        return None
    changed = _local(given, "model_name_or_path", folder)
    changed.pop("max_seq_length", None)
    changed |= {"max_length": stand_ins.LENGTH}
    if "beta" in given:
        rows = list(stand_ins.preferences(("prompt", "chosen", "rejected"), turns=True))
    else:
        rows = stand_ins.chats("messages", "role", "content", {})
    changed["dataset_name"] = _write(rows, folder / "data.jsonl")
    return changed, [rows], {}
