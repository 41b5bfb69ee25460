"""Read the datasets, chat template and special tokens of an axolotl configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..checks import HUB_FILE
from .adapters import MESSAGE_KEYS, listed
from .axolotl_types import columns_of_type
from .draft import Draft, KeyOutcome, shown, unknown
from .templates import AXOLOTL, OTHER_ENDS, OWN_TEMPLATES, template_for
from .trainer.intervals import read_eval_source

_ANY_QUESTION = {"instruction": ["{prompt}", "{input}", "{question}", "{instruction}"]}
_IN_ANSWERS: dict[str, Any] = {}
"""The answers are conversations, which hold the question."""
_QUESTIONS: dict[str, dict[str, Any]] = {
    "intel": {"instruction": "question"},
    "icr": {"instruction": "input"},
    "argilla": _ANY_QUESTION,
    "prompt_pairs": {"instruction": "prompt"},
    "ultra": _IN_ANSWERS,
    "argilla_chat": _IN_ANSWERS,
}
"""Columns of the question by the second part of a type such as `chatml.intel`.

They are read as an instruction, so that the chat template writes it as a turn of the user. Source:
axolotl's `prompt_strategies`.
"""
_STYLES: dict[str, dict[str, dict[str, Any]]] = {
    "chatml": _QUESTIONS,
    "llama3": _QUESTIONS,
    "chat_template": dict.fromkeys(("default", "argilla", "argilla_chat"), _IN_ANSWERS),
}
"""The styles of compared answers by the first part of their type."""
_RATED_QUESTIONS = {
    **_QUESTIONS,
    "ultra": {"instruction": "prompt"},
    "argilla_chat": {"messages": "completion"},
}
_RATED_STYLES = {**_STYLES, "chatml": _RATED_QUESTIONS, "llama3": _RATED_QUESTIONS}
"""The same of rated answers."""
_SCORED_STYLES = {"bradley_terry": {"chat_template": {"instruction": "input"}}}
"""The same of answers that a reward model scores."""
_STYLES_OF = {"dpo": _STYLES, "kto": _RATED_STYLES, "reward": _SCORED_STYLES}
_STANDARD_ROLES = {
    "user": ["user"],
    "assistant": ["assistant"],
    "system": ["system"],
    "tool": ["tool"],
}
_KNOWN_NAMES = {"human", "gpt", "user", "assistant", "system", "tool", "function", "observation"}
_KEYS_OF_TYPE = (
    *("field", "field_instruction", "field_input", "field_output", "field_system"),
    *("format", "no_input_format", "system_prompt"),
)
"""Keys of a `type` that is a mapping, for supervised data."""
_NEWEST = (
    "the newest revision of the dataset is read; files of another one are named as "
    f"{HUB_FILE}ORG/NAME@REVISION/FILE"
)
_COLUMNS = "'data.columns={prompt: question, completion: answer}'"
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")
_ANSWERING = {"assistant", "gpt", "model"}
_OF_FASTCHAT = {"llama-3": AXOLOTL["llama3"], "alpaca": AXOLOTL["alpaca"]}
"""Names in `conversation` of templates that `chat_template` has by other names."""
_CONVERSATIONS = ("messages", "conversations", "conversation")


def read_datasets(draft: Draft) -> None:
    """Read the datasets, and with `datasets` also chat template, special tokens, system message.

    Without any dataset, the key `datasets` is noted as refused.
    """
    found = draft.get("datasets") or []
    if not found and draft.get("pretraining_dataset"):
        _read_pretraining(draft)
        return
    if not found:
        draft.refused("datasets", "there is no dataset", "data.train")
        return
    draft.read_with("datasets", "its entries")
    sources = [
        source
        for n, one in enumerate(found)
        for source in _Dataset(
            draft, one if isinstance(one, dict) else {"path": one}, f"datasets[{n}]"
        ).sources()
    ]
    draft.values["data.train"] = _without_repeats(draft, sources)
    draft.notes["data.train"] = "datasets"
    forms = {form for one in sources if (form := one.pop("format", None))}
    if len(forms) == 1:
        draft.default("data.format", forms.pop(), "type of the datasets")
    if draft.get("test_datasets"):
        _read_test(draft)
    _read_template(draft)
    _read_special_tokens(draft)
    if draft.get("default_system_message") is not None:
        draft.same(
            "default_system_message", "data.system", str(draft.get("default_system_message"))
        )


def _without_repeats(draft: Draft, sources: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each source once, and add a row to the draft for each that is listed again."""
    found: list[dict[str, Any]] = []
    removed = draft.has("dataset_exact_deduplication")
    for place, source in enumerate(sources):
        if source not in found:
            found.append(source)
            continue
        reason = "listed twice: its records are read once; raise train.epochs to repeat them"
        if removed:
            reason = "listed twice: repeated records are removed there as well"
        verdict: Any = "same" if removed else "dropped"
        draft.extend([KeyOutcome(f"datasets[{place}]", source["path"], verdict, "", reason)])
    return found


def _read_pretraining(draft: Draft) -> None:
    found = draft.get("pretraining_dataset")
    one = found[0] if isinstance(found, list) else found
    one = one if isinstance(one, dict) else {"path": one}
    name = f"{one.get('path')}:{one['name']}" if one.get("name") else str(one.get("path"))
    source: dict[str, Any] = {"path": name}
    if one.get("split"):
        source["split"] = one["split"]
    source["columns"] = {"text": one.get("text_column") or "text"}
    draft.same("pretraining_dataset", "data.train", [source])
    draft.default("data.format", "text", "pretraining_dataset")
    draft.default("data.streaming", True, "pretraining_dataset is streamed")


def _read_test(draft: Draft) -> None:
    first, *others = draft.get("test_datasets")
    one, *more = _Dataset(draft, first, "test_datasets[0]").sources()
    read_eval_source(draft, "test_datasets", one)
    if others or more:
        draft.dropped("test_datasets", "only the first one is evaluated on")
    if draft.get("val_set_size") is not None:
        draft.without_effect("val_set_size", "test_datasets are evaluated on")


def _read_template(draft: Draft) -> None:
    name = draft.get("chat_template")
    text = draft.get("chat_template_jinja")
    if text is not None:
        draft.same("chat_template_jinja", "data.template", text)
        draft.read_with("chat_template", "chat_template_jinja")
    elif name == "tokenizer_default":
        draft.without_effect("chat_template", "the template of the tokenizer is used")
    elif name == "qwen3":
        reason = "the empty reasoning that the template writes before an answer is learned, too"
        draft.nearly("chat_template", "data.template", AXOLOTL[name], reason)
    elif name in OTHER_ENDS and not draft.has("eot_tokens"):
        reason = "the end of a turn is learned; axolotl learns it only if it is in eot_tokens"
        draft.nearly("chat_template", "data.template", AXOLOTL[name], reason)
    elif name in AXOLOTL:
        draft.same("chat_template", "data.template", AXOLOTL[name])
    elif name is not None:
        reason = "the template of the model's tokenizer is used, not axolotl's text of this name"
        if str(name).startswith("tokenizer_default_fallback_"):
            reason = "the template of the model's tokenizer is used; it needs to have one"
        draft.differs("chat_template", reason)
    if draft.get("eot_tokens") is not None:
        draft.without_effect("eot_tokens", "the end of a turn is what the chat template writes")


def _read_special_tokens(draft: Draft) -> None:
    tokens = draft.get("special_tokens") or {}
    if not tokens:
        if draft.get("special_tokens") is not None:
            draft.without_effect("special_tokens", "it is empty")
    elif set(tokens) <= {"pad_token", "bos_token", "unk_token"}:
        draft.without_effect("special_tokens", "padding is masked; the model's own token serves")
    elif "eos_token" in tokens:
        reason = "not used: the tokenizer's end token and what the chat template writes are learned"
        draft.differs("special_tokens", reason)
    else:
        added = [one for value in tokens.values() for one in (listed(value) or [])]
        draft.same("special_tokens", "data.special_tokens", added)
    more = draft.get("tokens")
    if isinstance(more, dict):
        draft.differs("tokens", "the tokenizer's own special tokens are used")
    elif more:
        draft.same("tokens", "model.add_tokens", [{"token": one} for one in listed(more) or []])


class _Dataset:
    """Reads one entry of `datasets`."""

    def __init__(self, draft: Draft, given: Mapping[str, Any], name: str) -> None:
        self._draft = draft
        self._given = {key: value for key, value in given.items() if value is not None}
        self._name = name
        self._unread = set(self._given)

    def sources(self) -> list[dict[str, Any]]:
        """Return the entries of `data.train`, and add rows about the keys of this one to the draft.

        There are several if it names several files. If the type names the record format, it is
        under `format`, which is not a key of a source.
        """
        paths = self._paths()
        found: dict[str, Any] = {}
        if split := self._take("split"):
            found["split"] = str(split)
            self._row("split", "same", f"split: {shown(split)}")
        found |= self._records()
        for key in sorted(self._unread):
            self._rest(key)
        return [{"path": path, **found} for path in paths]

    def _paths(self) -> list[str]:
        """Return the sources of the entry: those of its `data_files`, its `name` or its `path`."""
        path, files = str(self._take("path", "")), listed(self._take("data_files"))
        names = listed(self._take("name"))
        self._take("ds_type")
        on_hub = _HUB_ID.fullmatch(path) and not any(file.startswith(path) for file in files)
        if files:
            found = [f"{HUB_FILE}{path}/{file}" if on_hub else file for file in files]
        else:
            found = [f"{path}:{name}" for name in names] or [path]
        ours = f"path: {shown(found[0] if len(found) == 1 else found)}"
        for key in ("path", "data_files", "name"):
            self._row(key, "same", ours)
        return found

    def _records(self) -> dict[str, Any]:
        kind = self._take("type")
        styles = _STYLES_OF.get(self._draft.values.get("task", ""))
        if styles is not None:
            return self._preferences(kind, styles)
        if isinstance(kind, dict):
            return self._own_prompt(kind)
        if kind is None or str(kind).startswith(("chat_template", "sharegpt")):
            return self._conversations(kind)
        if kind == "completion":
            return self._texts()
        return self._instructions(kind)

    def _texts(self) -> dict[str, Any]:
        column = self._take("field") or "text"
        reason = "a long text is truncated here; axolotl splits it into several records"
        self._row("type", "nearly", "format: text", reason)
        return {"format": "text", "columns": {"text": column}}

    def _instructions(self, kind: Any) -> dict[str, Any]:
        style = str(self._take("conversation") or "") if "alpaca" in str(kind) else ""
        if (columns := columns_of_type(f"{kind}:{style}" if style else str(kind))) is not None:
            self._row("conversation", "same", "columns: prompt and completion in this style")
            self._row("type", "same", "columns: prompt and completion as the type writes them")
            return {"format": "prompt_completion", "columns": columns}
        self._unknown_type(kind)
        return {}

    def _own_prompt(self, kind: Mapping[str, Any]) -> dict[str, Any]:
        """Return format and columns for a `type` that is a mapping: columns, and texts of prompts.

        A row about the type is added to the draft.
        """
        names = {
            "instruction": kind.get("field_instruction") or "instruction",
            "input": kind.get("field_input") or "input",
            "system": kind.get("field_system") or "system",
        }
        plain_system = kind.get("system_format") == "{system}"
        self._unknown_in_type(kind, (*_KEYS_OF_TYPE, *["system_format"] * plain_system))
        both = kind.get("format") or "{instruction} {input} "
        alone = kind.get("no_input_format") or "{instruction} "
        start = kind.get("system_prompt") or ""
        texts = [_with_columns(f"{start}{text}", names) for text in (both, alone)]
        inputs = kind.get("field_input") or "{input}" in both
        unused = "format" if kind.get("format") and not inputs else ""
        reason = f"`format` is for records with an input only, and none is named; {shown(alone)} "
        self._row(
            "type",
            "nearly" if unused else "same",
            "columns: prompt and completion as the type writes them",
            f"{reason}is used, which no_input_format changes" if unused else "",
        )
        columns: dict[str, Any] = {
            "prompt": texts if inputs else texts[1],
            "completion": kind.get("field_output") or "output",
        }
        return {"format": "prompt_completion", "columns": columns}

    def _conversations(self, kind: Any) -> dict[str, Any]:
        found: dict[str, Any] = {"format": "messages"}
        column = str(self._take("field_messages", "messages"))
        columns = {"messages": column} if column not in _CONVERSATIONS else {}
        for key, field in (("field_tools", "tools"), ("field_system", "system")):
            if (name := self._take(key)) is not None:
                columns |= {field: str(name)} if name != field else {}
                self._row(key, "same", f"columns: {field}: {name}")
        if columns:
            found["columns"] = columns
        self._own_template(kind)
        self._row("field_messages", "same", f"columns: {shown({'messages': column})}")
        self._message_keys()
        found |= self._roles()
        trained = self._take("roles_to_train")
        if trained is not None and not set(listed(trained)) <= _ANSWERING:
            self._row("roles_to_train", "dropped", "", "set data.train_on to one role")
        elif trained is not None:
            self._row("roles_to_train", "same", "train_on: all")
        if (ends := self._take("train_on_eos")) is not None:
            reason = "the end of each learned turn is learned"
            self._row("train_on_eos", "same" if ends == "turn" else "nearly", "", reason)
        return found

    def _own_template(self, kind: Any) -> None:
        """Read the template that an entry names itself, as `conversation` or `chat_template`."""
        key = "conversation" if self._given.get("conversation") else "chat_template"
        name = str(self._take(key) or "")
        known = {**AXOLOTL, **_OF_FASTCHAT}.get(name)
        if known is not None:
            self._draft.default("data.template", known, f"{self._name}.{key}: {name}")
            self._row(key, "same", "data.template")
        elif name and name != "tokenizer_default":
            self._row(key, "nearly", "", "the chat template of the tokenizer is used")
        elif name:
            self._row(key, "no effect", "", "the template of the tokenizer is used")
        old = known is None and kind is not None and "chat_template" not in str(kind)
        reason = "the chat template of the tokenizer is used" if old else ""
        self._row("type", "nearly" if old else "same", "format: messages", reason)

    def _message_keys(self) -> None:
        keys = dict(self._take("message_property_mappings") or {})
        for old, name in (("message_field_role", "role"), ("message_field_content", "content")):
            if value := self._take(old):
                keys[name] = value
        unknown = [f"{k}: {v}" for k, v in keys.items() if v not in MESSAGE_KEYS.get(k, (k,))]
        if unknown:
            reason = f"messages with the keys {', '.join(unknown)} are not read; rename them"
            self._row("message_property_mappings", "refused", "", reason)
        elif keys:
            self._row("message_property_mappings", "same", "fttui knows these keys")

    def _roles(self) -> dict[str, Any]:
        given = dict(self._take("roles") or {})
        for key, role in (("field_human", "user"), ("field_model", "assistant")):
            if (name := self._take(key)) is not None:
                given[role] = [*listed(given.get(role)), str(name)]
                self._row(key, "same", f"the role {role}")
        names = {
            name: role
            for role, listed_ in given.items()
            for name in listed(listed_)
            if name != role and name not in _KNOWN_NAMES
        }
        if given:
            known = "fttui knows these roles"
            self._row("roles", "same", f"roles: {shown(names)}" if names else known)
        return {"roles": names} if names else {}

    def _plain_preferences(self, kind: Mapping[str, Any]) -> dict[str, Any]:
        """Return format and columns of answers that are compared without a chat template."""
        rated = self._draft.values.get("task") == "kto"
        fields = ("prompt", "completion", "label") if rated else ("prompt", "chosen", "rejected")
        own_keys = [key for one in fields for key in (f"field_{one}", f"{one}_format")]
        self._unknown_in_type(kind, ("field_system", *own_keys))
        columns: dict[str, Any] = {}
        names = {"system": kind.get("field_system") or "system"}
        for field in fields:
            own = self._take(f"field_{field}")
            column = str(kind.get(f"field_{field}") or own or field)
            self._row(f"field_{field}", "same", f"columns: {field}: {column}")
            text = _with_columns(str(kind.get(f"{field}_format") or ""), {**names, field: column})
            if text or column != field:
                columns[field] = text or column
        if self._draft.values.get("task") == "reward":
            self._unknown_type(kind or "of a reward model")
        self._row("type", "same", "columns: the texts as the type writes them")
        return {"columns": columns} if columns else {}

    def _preferences(
        self, kind: Any, styles: Mapping[str, Mapping[str, dict[str, Any]]]
    ) -> dict[str, Any]:
        if isinstance(kind, dict) or kind in (None, "passthrough"):
            return self._plain_preferences(kind if isinstance(kind, dict) else {})
        family, _, style = str(kind).partition(".")
        columns: dict[str, Any] = {}
        for key, field in (("field_messages", "prompt"), ("field_chosen", "chosen"),
                           ("field_rejected", "rejected"), ("field_prompt", "prompt")):  # fmt: skip
            if (column := self._take(key)) is not None and column != field:
                columns[field] = column
                self._row(key, "same", f"columns: {field}: {column}")
        if columns.get("prompt") in _CONVERSATIONS:
            del columns["prompt"]
        self._message_keys()
        roles = self._roles()
        question = styles.get(family, {}).get(style)
        if question is None:
            self._unknown_type(kind)
            return {}
        columns = question | columns
        if family not in OWN_TEMPLATES:
            self._row("type", "same", "the chat template of the tokenizer")
        else:
            self._draft.values["data.template"] = template_for(family)
            self._draft.notes["data.template"] = f"{self._name}.type: {kind}"
            self._row("type", "same", f"data.template: {family}")
        return ({"columns": columns} if columns else {}) | roles

    def _rest(self, key: str) -> None:
        harmless = ("preprocess_shards", "trust_remote_code", "template_thinking_key")
        if key in harmless or self._given[key] in (None, False, [], {}):
            self._row(key, "no effect", "", "how the data are loaded")
        elif key == "revision" and self._given[key] == "main":
            self._row(key, "no effect", "", "the newest revision is read")
        elif key == "revision":
            self._row(key, "dropped", "", _NEWEST)
        elif key == "field_thinking":
            self._row(key, "same", "fttui knows the keys of reasoning in messages")
        else:
            self._row(key, "dropped", "", unknown(key, ()))

    def _unknown_in_type(self, kind: Mapping[str, Any], known: Sequence[str]) -> None:
        """Add a row for each key that is not read in a `type` given as a mapping."""
        for key in sorted(kind.keys() - set(known), key=str):
            reason = unknown(str(key), set(known) - kind.keys())
            row = f"{self._name}.type.{key}"
            self._draft.extend([KeyOutcome(row, shown(kind[key]), "dropped", "", reason)])

    def _unknown_type(self, kind: Any) -> None:
        reason = f"the type {kind} is not known; name the columns, such as --set {_COLUMNS}"
        keys = ("data.columns", "data.train")
        row = KeyOutcome(f"{self._name}.type", shown(kind), "refused", "", reason, keys)
        self._draft.extend([row])

    def _take(self, key: str, default: Any = None) -> Any:
        self._unread.discard(key)
        return self._given.get(key, default)

    def _row(self, key: str, verdict: Any, ours: str = "", reason: str = "") -> None:
        value = shown(self._given[key]) if key in self._given else ""
        if value or verdict in ("dropped", "refused"):
            row = KeyOutcome(f"{self._name}.{key}", value, verdict, ours, reason)
            self._draft.extend([row])


def _with_columns(text: str, names: Mapping[str, str]) -> str:
    for field, column in names.items():
        text = text.replace(f"{{{field}}}", f"{{{column}}}")
    return text
