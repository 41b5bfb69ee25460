"""Load a configuration file into a checked `RunConfig`; errors name file and line."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import yaml

from ..errors import ConfigError
from .checks import Problem, check_config, files_of_pattern, is_pattern, require
from .checks.objective import own_metrics_of
from .checks.quarantine import read_ids, why_not_listed
from .checks.user_metrics import named_function, user_metric_problems
from .earlier import read_as_before
from .foreign.reading import hint_of
from .messages import (
    describe_type,
    describe_value,
    item_section,
    key_paths,
    own_section,
    suggest_key,
    suggest_value,
)
from .model_files import is_template_text
from .schema import VERSION, DataSource, RunConfig, Section
from .sections.forgetting import GENERAL
from .yaml_tree import MOST_BYTES, Value, parse_scalar, parse_yaml, too_large

RIVALS = (
    ("train.steps", "train.epochs"),
    ("train.epochs", "train.steps"),
    ("train.accumulate", "train.sequences_per_update"),
    ("train.sequences_per_update", "train.accumulate"),
)
"""Keys that are not given together, and the other key of each."""


@dataclass(frozen=True)
class LoadedConfig:
    """A configuration with its source text and where each key was set."""

    config: RunConfig
    source: str
    """The text of the file."""
    resolved: str
    """The whole configuration as YAML in schema order, with defaults and overrides."""
    places: Mapping[str, str] = field(default_factory=dict)
    """Key path → where it was set, such as `train.lr` → `demo.yaml:12`."""


def load_config(path: Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read a configuration file, apply `--set` overrides and run the cross-field checks.

    Existing relative paths are made absolute, so that the run can be resumed from any folder; they
    are looked up in the current folder, then in the folder of the file.

    Raises:
        ConfigError: The file cannot be read, or is a configuration of another tool; otherwise all
            errors of the keys and values, one per line; without any, all errors of the cross-field
            checks; without any, the error of the list in `data.quarantine`.
    """
    source = read_config(path)
    builder = _Builder(str(path))
    tree = builder.parse(source)
    if hint := hint_of(path, tree.plain()):
        raise ConfigError(hint)
    for override in overrides:
        tree = builder.override(tree, override)
    tree = _without_rivals(tree, overrides)
    config = builder.config(tree)
    require(check_config(config), builder.places, str(path))
    config = _with_absolute_paths(config, path.parent)
    own = own_metrics_of(config)
    require(user_metric_problems(config.eval.metrics, own), builder.places, str(path))
    config = _with_ids(config, path.parent, builder.places)
    return LoadedConfig(config, source, dump_config(config), builder.places)


def parse_override(override: str) -> tuple[str, Any]:
    """Return the key path and the value of a text such as `train.lr=1e-4`.

    A value that is not YAML is returned as text.

    Raises:
        ConfigError: There is no `=`, a part of the key path is empty, or the value repeats a key.
    """
    path, equals, text = override.partition("=")
    if not equals or not all(path.strip().split(".")):
        raise ConfigError(f"--set {override}: expected KEY=VALUE, such as --set train.lr=1e-4")
    problems: list[str] = []
    value = _override_value(text.strip(), f"--set {override}", problems).plain()
    if problems:
        raise ConfigError("\n".join(problems))
    return path.strip(), value


def parse_resolved(text: str, name: str = "config.yaml") -> RunConfig:
    """Parse a configuration that `dump_config` wrote, also in an earlier version.

    If keys of `data` that were added later are missing, data are read as that version read them.

    Raises:
        ConfigError: The text is not a valid configuration any more.
    """
    builder = _Builder(name)
    root = builder.parse(text)
    return read_as_before(builder.config(root), _data_keys(root))


def read_resolved(path: Path) -> RunConfig:
    """Read a configuration that `dump_config` wrote, also in an earlier version.

    Raises:
        ConfigError: The file cannot be read, or is not a valid configuration any more.
    """
    return parse_resolved(read_config(path), str(path))


def data_keys(text: str) -> frozenset[str]:
    """Return the keys of the section `data` in a resolved configuration; empty without one.

    Raises:
        ConfigError: The text is not a YAML mapping.
    """
    return _data_keys(_Builder("config.yaml").parse(text))


def _data_keys(root: Value) -> frozenset[str]:
    data = root.plain().get("data")
    return frozenset(data) if isinstance(data, dict) else frozenset()


def dump_config(config: RunConfig) -> str:
    """Return the whole configuration as YAML, in schema order."""
    text = yaml.dump(
        msgspec.to_builtins(config), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100
    )
    return str(text)


def with_config(loaded: LoadedConfig, config: RunConfig) -> LoadedConfig:
    """Return the loaded configuration with its values replaced; its source text and places stay."""
    return replace(loaded, config=config, resolved=dump_config(config))


class _Dumper(yaml.SafeDumper):
    """Dumper that also quotes texts which `parse_scalar` would not read as text."""


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = None if isinstance(parse_scalar(text), str) else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


class _Builder:
    """Converts a parsed file to a configuration and collects all errors."""

    def __init__(self, name: str) -> None:
        self.places: dict[str, str] = {}
        self._name = name
        self._problems: list[str] = []

    def parse(self, text: str) -> Value:
        """Parse the file into a tree whose root is a mapping; collect further errors.

        Raises:
            ConfigError: The text is not a YAML document, is empty, or is not a mapping.
        """
        root = parse_yaml(text, self._name, self._problems)
        if root.data is None:
            raise ConfigError(
                f"{self._name}: the file is empty; it needs at least model.id, data.train and "
                "train.steps (see the files in configs/)"
            )
        if not isinstance(root.data, dict):
            raise ConfigError(
                f"{root.place}: got {describe_value(root.plain())}, expected sections such as "
                "'model:' and 'train:'"
            )
        return root

    def override(self, root: Value, override: str) -> Value:
        """Return the tree with one `section.key=value` inserted.

        A text of another form is collected as an error, and the tree is returned as it is.
        """
        path, equals, text = override.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            self._problems.append(
                f"--set {override}: expected KEY=VALUE, such as --set train.lr=1e-4"
            )
            return root
        value = _override_value(text.strip(), f"--set {override}", self._problems)
        return _insert(root, keys, value)

    def config(self, root: Value) -> RunConfig:
        """Convert the merged mapping to a typed and checked configuration.

        Raises:
            ConfigError: All errors found so far, one per line.
        """
        self._refuse_newer(root)
        config = self._section(RunConfig, root, "")
        if self._problems or not isinstance(config, RunConfig):
            raise ConfigError("\n".join(self._problems))
        return config

    def _refuse_newer(self, root: Value) -> None:
        """Refuse a configuration of a newer version, before its keys are checked.

        Raises:
            ConfigError: A newer fttui wrote it.
        """
        given = root.data.get("version") if isinstance(root.data, dict) else None
        if given is not None and isinstance(given.data, int) and given.data > VERSION:
            raise ConfigError(
                f"{given.place}: version: got {given.data}, expected at most {VERSION}: the "
                "configuration was written for a newer version of fttui; upgrade with: "
                "pip install --upgrade fttui"
            )

    def _section(self, struct: type[Section], value: Value, path: str) -> Section | None:
        """Convert one section and note its places; None, with its errors collected, if it has any.

        Args:
            struct: The type of the section.
            value: The mapping of the section, null, a shorthand of it such as `none`, or the text
                of its `text_key`.
            path: The key path of the section; empty for the root.
        """
        mapping = {} if value.data is None else value.data
        if isinstance(mapping, str) and mapping in (short := getattr(struct, "shorthand", {})):
            mapping = {key: Value(word, value.place) for key, word in short[mapping].items()}
        key_of_text = getattr(struct, "text_key", None)
        if key_of_text and value.text is not None and not isinstance(mapping, dict | list):
            mapping = {key_of_text: value}
        if not isinstance(mapping, dict):
            self._problems.append(
                f"{value.place}: {path}: got {describe_value(value.plain())}, expected keys below "
                f"it, such as '{msgspec.structs.fields(struct)[0].name}:'"
            )
            return None
        known = {field.name: field for field in msgspec.structs.fields(struct)}
        before = len(self._problems)
        values: dict[str, Any] = {}
        for key, child in mapping.items():
            if key in known:
                values[key] = self._field(known[key].type, child, f"{path}.{key}".lstrip("."))
            else:
                self._unknown_key(key, child, path, list(known))
        for name in (n for n, f in known.items() if f.required and n not in mapping):
            self._missing(name, value, path)
        return struct(**values) if len(self._problems) == before else None

    def _field(self, annotation: Any, value: Value, path: str) -> Any:
        self.places[path] = value.place
        own, item = own_section(annotation), item_section(annotation)
        if own is annotation or (own and isinstance(value.data, dict)):
            return self._section(own, value, path)
        if item and isinstance(value.data, list):
            return [self._section(item, child, path) for child in value.data]
        if item and isinstance(value.data, dict) and getattr(item, "text_key", None):
            return [self._section(item, value, path)]
        try:
            return _convert(value, annotation)
        except ValueError:
            got = value.plain()
            self._problems.append(
                f"{value.place}: {path}: got {describe_value(got)}, "
                f"expected {describe_type(annotation)}{suggest_value(got, annotation, path)}"
            )
            return None

    def _unknown_key(self, key: str, value: Value, path: str, siblings: list[str]) -> None:
        paths = [*key_paths(RunConfig), *(f"{path}.{name}".lstrip(".") for name in siblings)]
        meant = suggest_key(key, path, paths)
        hint = f"did you mean '{meant}'?" if meant else f"known here: {', '.join(siblings)}"
        where = f" in {path}" if path else ""
        self._problems.append(f"{value.place}: unknown key '{key}'{where}; {hint}")

    def _missing(self, name: str, section: Value, path: str) -> None:
        if path:
            self._problems.append(
                f"{section.place}: missing key '{name}' in {path}; add '{name}:' below '{path}:'"
            )
        else:
            self._problems.append(f"{self._name}: missing section '{name}'; add '{name}:'")


def _convert(value: Value, annotation: Any) -> Any:
    """Convert a value to the annotated type.

    If the type is text, `007` stays text; if it is a whole number, `1e3` is accepted.

    Raises:
        ValueError: The value does not have this type, or a number in it is NaN or infinite.
    """
    data = value.plain()
    candidates = [data]
    if isinstance(data, float) and data.is_integer():
        candidates.append(int(data))
    if value.text is not None and data is not None:
        candidates.append(value.text)
    for candidate in candidates:
        try:
            converted = msgspec.convert(candidate, annotation)
        except (msgspec.ValidationError, OverflowError):
            continue
        if _is_finite(converted):
            return converted
    raise ValueError(data)


def _is_finite(value: Any) -> bool:
    """Whether a value is no NaN or infinite number, and holds none in a list or mapping."""
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _override_value(text: str, place: str, problems: list[str]) -> Value:
    """Parse the value of an override; text that is not YAML is used as it is.

    What is wrong in YAML that can be read all the same, such as a repeated key, is added to
    `problems`.
    """
    try:
        parsed = parse_yaml(text, place, problems)
    except ConfigError:
        return Value(text, place, text)
    return Value(_at(parsed, place).data, place, text)


def _at(value: Value, place: str) -> Value:
    """Return the value with `place` as the place of all its parts."""
    data = value.data
    if isinstance(data, dict):
        data = {key: _at(child, place) for key, child in data.items()}
    elif isinstance(data, list):
        data = [_at(child, place) for child in data]
    return Value(data, place, value.text)


def _without_rivals(root: Value, overrides: Sequence[str]) -> Value:
    """Remove what the file says against an override, such as its epochs if overrides set steps."""
    parts = (override.partition("=") for override in overrides)
    given = {key.strip(): value.strip() for key, _, value in parts}
    for key, rival in RIVALS:
        if given.get(key, "null") != "null" and rival not in given:
            root = _insert(root, rival.split("."), Value(None, f"--set {key}={given[key]}"))
    return root


def _insert(root: Value, keys: list[str], value: Value) -> Value:
    """Return the tree with `value` at the path `keys`; missing sections are created."""
    if not keys:
        return value
    mapping = dict(root.data) if isinstance(root.data, dict) else {}
    child = mapping.get(keys[0], Value(None, value.place))
    mapping[keys[0]] = _insert(child, keys[1:], value)
    return Value(mapping, root.place, root.text)


def read_config(path: Path) -> str:
    """Return the text of a configuration file.

    Raises:
        ConfigError: It cannot be read, or is larger than any configuration.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise ConfigError(too_large(str(path), max(len(data), path.stat().st_size)))
        return data.decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no such file; check the path (examples are in configs/)"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}; name a YAML file that can be read"
        ) from None


def _with_absolute_paths(config: RunConfig, folder: Path) -> RunConfig:
    data = msgspec.structs.replace(
        config.data,
        train=_absolute_sources(config.data.train, folder),
        eval=config.data.eval and _absolute(config.data.eval, folder),
        template=config.data.template and _absolute_template(config.data.template, folder),
    )
    model = msgspec.structs.replace(config.model, id=_absolute(config.model.id, folder))
    start = config.adapter.start
    adapter = msgspec.structs.replace(config.adapter, start=start and _absolute(start, folder))
    metrics = [_absolute_metric(entry, folder) for entry in config.eval.metrics]
    tasks = config.eval.benchmarks.include
    benchmarks = msgspec.structs.replace(
        config.eval.benchmarks, include=tasks and _absolute(tasks, folder)
    )
    evaluation = msgspec.structs.replace(config.eval, metrics=metrics, benchmarks=benchmarks)
    events = config.tracking.folder
    tracking = msgspec.structs.replace(
        config.tracking, folder=events and str(Path(events).expanduser().absolute())
    )
    texts = config.forgetting.texts
    forgetting = msgspec.structs.replace(
        config.forgetting, texts=texts and (texts if texts == GENERAL else _absolute(texts, folder))
    )
    return msgspec.structs.replace(
        config,
        data=data,
        eval=evaluation,
        model=model,
        adapter=adapter,
        forgetting=forgetting,
        tracking=tracking,
    )


def _absolute_metric(entry: str, folder: Path) -> str:
    file, name = named_function(entry)
    return f"{_absolute(file, folder)}:{name}"


def _with_ids(config: RunConfig, folder: Path, places: Mapping[str, str]) -> RunConfig:
    """Return the configuration with the ids of `data.quarantine` in place of their file.

    The run keeps the ids themselves, so that it resumes with them whatever becomes of the file.

    Raises:
        ConfigError: The file cannot be read, or the list cannot be used.
    """
    named = config.data.quarantine
    try:
        ids = read_ids(Path(_absolute(named, folder))) if isinstance(named, str) else named
        problem = why_not_listed(ids)
    except ValueError as error:
        ids, problem = [], str(error)
    require([Problem("data.quarantine", problem)] if problem else [], places, "the configuration")
    data = msgspec.structs.replace(config.data, quarantine=ids)
    return msgspec.structs.replace(config, data=data)


def _absolute_sources(train: str | list[DataSource], folder: Path) -> str | list[DataSource]:
    if isinstance(train, str):
        return _absolute(train, folder)
    return [msgspec.structs.replace(one, path=_absolute(one.path, folder)) for one in train]


def _absolute_template(template: str, folder: Path) -> str:
    """Make the path of a template's file absolute; a name and the Jinja text stay unchanged."""
    if is_template_text(template):
        return template
    bases = (base.absolute() for base in (Path.cwd(), folder))
    paths = [os.path.join(base, os.path.expanduser(template)) for base in bases]
    return next((os.path.normpath(path) for path in paths if os.path.isfile(path)), template)


def _absolute(name: str, folder: Path) -> str:
    """Make a relative path or pattern of existing files or folders absolute, without `~`.

    It is looked up in the current folder, then in `folder`. Other names stay unchanged.
    """
    for base in (Path.cwd(), folder):
        path = os.path.join(base.absolute(), os.path.expanduser(name))
        if name and (os.path.exists(path) or (is_pattern(path) and files_of_pattern(path))):
            return os.path.normpath(path)
    return name
