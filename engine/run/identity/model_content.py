"""The content of a model (weights, tokenizer, chat template) and of a start adapter, with hashes.

A model is a folder, a Python package or a model of the Hugging Face Hub.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from ...config.model_files import is_template_text, parsed_settings, read_settings_file
from ...config.schema import RunConfig
from .content import NO_CONTENT, Content, hash_parts, hash_text
from .hash_cache import HashCache

PACKAGE_PREFIX = "package:"
_PREFERRED = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""Files of weights in the order in which transformers looks for them; it loads the first."""
_WEIGHTS = (".safetensors", ".bin", ".gguf")
_BESIDE_WEIGHTS = (
    "config.json",
    "adapter_config.json",
    "adapter_model.safetensors",
    "adapter_model.bin",
)
_ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
_TOKENIZER_CONFIG = "tokenizer_config.json"
_TOKENIZER_FILES = (
    "tokenizer.json",
    _TOKENIZER_CONFIG,
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tekken.json",
    "sentencepiece.bpe.model",
    "spiece.model",
)
_TOKENIZER_ENDINGS = ("tokenizer.model", ".tiktoken")
_CODE_OF_TOKENIZER = "tokenization_"
_TEMPLATE_FILE = "chat_template.jinja"
_TEMPLATE_FOLDER = "additional_chat_templates"
_DEFAULT = "default"
"""The name of the template that is used unless another one is asked for."""
DEFAULT_TEMPLATE = f"template {_DEFAULT}"
"""The part of the content of chat templates with the hash of that one."""


def model_contents(config: RunConfig, cache: HashCache) -> tuple[Content, Content, Content]:
    """Return base model, tokenizer and chat template of a run.

    Content that cannot be read is returned without a hash, with the reason.
    """
    model = config.model.id
    if model.startswith(PACKAGE_PREFIX):
        package = _package_content(model)
        return package, _with_added(package, config), _template_content(config, package, {})
    folder, revision = model_folder(config)
    if folder is None:
        missing = Content(
            sources=[model],
            unknown=f"{model} is neither a folder nor in the local cache of the Hugging Face Hub",
        )
        return missing, missing, _template_content(config, missing, {})

    def content(read: Callable[[], dict[str, str]]) -> Content:
        return _read(read, model, revision)

    base = content(lambda: _hashes(folder, weight_files(folder), cache))
    tokenizer = _with_added(content(lambda: _tokenizer_parts(folder, cache)), config)
    template = content(lambda: _template_parts(chat_templates(folder)))
    return base, tokenizer, _template_content(config, template, template.parts)


def adapter_content(config: RunConfig, cache: HashCache) -> Content:
    """Return the content of the adapter that a run starts from; `NO_CONTENT` if there is none.

    If it cannot be read, it is returned without a hash, with the reason.
    """
    start = config.adapter.start
    if start is None:
        return NO_CONTENT
    folder, revision = Path(start).expanduser(), ""
    if not folder.is_dir():
        cached = _cached(start, _ADAPTER_FILES[0], None)
        if cached is None:
            return Content(sources=[start], unknown=f"the start adapter {start} was not found")
        folder, revision = cached, cached.name
    files = [folder / name for name in _ADAPTER_FILES]
    return _read(lambda: _hashes(folder, files, cache), start, revision)


def _read(read: Callable[[], dict[str, str]], source: str, revision: str) -> Content:
    try:
        parts = read()
    except (OSError, ValueError) as error:
        return Content(sources=[source], revision=revision, unknown=f"{source}: {error}")
    return Content(hash=hash_parts(parts), parts=parts, sources=[source], revision=revision)


def model_folder(config: RunConfig) -> tuple[Path | None, str]:
    """Return the local folder of the model and its hub revision.

    The folder is None if the model is not a folder and its weights are not in the local cache of
    the hub; the revision is empty for a model that is not from the hub.
    """
    folder = Path(config.model.id).expanduser()
    if folder.is_dir():
        return folder, ""
    snapshot = _cached(config.model.id, "config.json", config.model.revision)
    if snapshot is None or not _holds_weights(snapshot):
        return None, ""
    return snapshot, snapshot.name


def _cached(hub_id: str, file: str, revision: str | None) -> Path | None:
    """Return the cached folder of a hub repository with this file; None if it is not cached."""
    from huggingface_hub import try_to_load_from_cache  # deferred: it is slow to import

    try:
        found = try_to_load_from_cache(hub_id, file, revision=revision)
    except (OSError, ValueError):
        return None
    return Path(found).parent if isinstance(found, str) else None


def weight_files(folder: Path) -> list[Path]:
    """Return the files of the base model: the weights that are loaded, configuration and code.

    Raises:
        OSError, ValueError: the index of the weights cannot be read.
    """
    beside = [folder / name for name in _BESIDE_WEIGHTS if (folder / name).is_file()]
    code = [file for file in folder.glob("*.py") if not file.name.startswith(_CODE_OF_TOKENIZER)]
    return sorted({*beside, *code, *_loaded_weights(folder)})


def _holds_weights(folder: Path) -> bool:
    """Whether a folder holds files of weights, or an index of them."""
    return any(
        (file.suffix in _WEIGHTS or file.name in _PREFERRED) and file.is_file()
        for file in folder.iterdir()
    )


def _loaded_weights(folder: Path) -> list[Path]:
    for name in _PREFERRED:
        file = folder / name
        if file.is_file():
            return [file, *_shards(file)]
    return [file for file in folder.iterdir() if file.suffix in _WEIGHTS and file.is_file()]


def _shards(file: Path) -> list[Path]:
    """Return the files that an index of weights names; none if the file is not an index.

    Raises:
        OSError, ValueError: the index cannot be read, or does not map names to files.
    """
    if file.suffix != ".json":
        return []
    index = parsed_settings(file)
    named = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(named, dict) or not all(isinstance(one, str) for one in named.values()):
        raise ValueError(f"{file.name} has no weight_map from names of weights to files")
    return [file.parent / name for name in sorted(set(named.values()))]


def tokenizer_files(folder: Path) -> list[Path]:
    """Return the files of the tokenizer in a model folder."""
    return sorted(
        file
        for file in folder.iterdir()
        if file.is_file()
        and (
            file.name in _TOKENIZER_FILES
            or file.name.endswith(_TOKENIZER_ENDINGS)
            or (file.suffix == ".py" and file.name.startswith(_CODE_OF_TOKENIZER))
        )
    )


def _tokenizer_parts(folder: Path, cache: HashCache) -> dict[str, str]:
    """Return the hashes of the tokenizer's files; the chat template is not part of them."""
    files = tokenizer_files(folder)
    parts = _hashes(folder, [file for file in files if file.name != _TOKENIZER_CONFIG], cache)
    settings = _settings(folder)
    if settings is not None:
        rest = {key: value for key, value in settings.items() if key != "chat_template"}
        parts[_TOKENIZER_CONFIG] = hash_text(json.dumps(rest, sort_keys=True))
    return parts


def _with_added(own: Content, config: RunConfig) -> Content:
    """Return the content of a tokenizer with the configured additional tokens as a further part.

    Without such tokens, and if the hash of the tokenizer is not known, it is unchanged.

    It has no revision, because the same revision may be used with other added tokens.
    """
    added = {
        "data.special_tokens": config.data.special_tokens,
        "model.add_tokens": msgspec.to_builtins(config.model.add_tokens),
    }
    given = {key: hash_text(json.dumps(tokens)) for key, tokens in added.items() if tokens}
    if not given or not own.hash:
        return own
    parts = own.parts | given
    return Content(hash=hash_parts(parts), parts=parts, sources=own.sources)


def _settings(folder: Path) -> dict[str, Any] | None:
    """Return the content of tokenizer_config.json; None if there is none."""
    try:
        found = parsed_settings(folder / _TOKENIZER_CONFIG)
    except FileNotFoundError:
        return None
    return found if isinstance(found, dict) else {"": found}


def chat_templates(folder: Path) -> dict[str, str]:
    """Return the chat templates of a model folder by name, from all files that may hold them.

    As in transformers, template files take precedence over tokenizer_config.json.

    Raises:
        OSError, ValueError: one of these files cannot be read.
    """
    found = dict(_named_templates((_settings(folder) or {}).get("chat_template")))
    old = folder / "chat_template.json"
    if old.is_file():
        held = parsed_settings(old)
        found |= dict(_named_templates(held.get("chat_template") if held else None))
    if (folder / _TEMPLATE_FILE).is_file():
        found[_DEFAULT] = read_settings_file(folder / _TEMPLATE_FILE).decode()
    for file in sorted((folder / _TEMPLATE_FOLDER).glob("*.jinja")):
        found[file.stem] = read_settings_file(file).decode()
    return found


def _named_templates(value: Any) -> Iterator[tuple[str, str]]:
    """Yield the templates that a configuration holds, as one text, a list or a mapping."""
    if isinstance(value, str):
        yield _DEFAULT, value
    elif isinstance(value, Mapping):
        yield from ((str(name), str(text)) for name, text in value.items())
    elif isinstance(value, list):
        for one in value:
            if isinstance(one, Mapping) and "name" in one:
                yield str(one["name"]), str(one.get("template", ""))


def _template_parts(templates: Mapping[str, str]) -> dict[str, str]:
    return {f"template {name}": hash_text(text) for name, text in templates.items()}


def _template_content(config: RunConfig, own: Content, parts: Mapping[str, str]) -> Content:
    """Return the template in force: the one of the configuration, else the model's own."""
    named: str | None = config.data.template
    if not named:
        return own
    try:
        text = configured_template(named)
    except (OSError, ValueError) as error:
        return Content(sources=["data.template"], unknown=f"data.template: {error}")
    found = {**parts, DEFAULT_TEMPLATE: hash_text(text)}
    return Content(hash=hash_parts(found), parts=found, sources=["data.template"])


def configured_template(named: str) -> str:
    """Return the text of `data.template`: a file, a name in TRL's collection, or the text itself.

    Raises:
        OSError: There is no such file or template, or it cannot be read.
        ValueError: The file is not UTF-8.
    """
    if is_template_text(named):
        return named
    file = Path(named).expanduser()
    spec = None if file.is_file() else find_spec("trl")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        file = Path(folder) / "chat_templates" / f"{named.removesuffix('.jinja')}.jinja"
    return read_settings_file(file).decode()


def _hashes(folder: Path, files: Iterable[Path], cache: HashCache) -> dict[str, str]:
    return {str(file.relative_to(folder)): cache.hash(file) for file in files}


def _package_content(model: str) -> Content:
    """Return the content of a Python package that holds a model, from the package's metadata."""
    name = model.removeprefix(PACKAGE_PREFIX)
    try:
        package = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return Content(sources=[model], unknown=f"the Python package {name} is not installed")
    parts = {
        Path(str(file)).name: _hex(file.hash.value)
        for file in package.files or ()
        if file.suffix == ".gguf" and file.hash is not None
    }
    parts = parts or {name: package.version}
    return Content(hash=hash_parts(parts), parts=parts, sources=[f"{model} {package.version}"])


def _hex(digest: str) -> str:
    """Return a digest of a package's RECORD, which is URL-safe base64 without padding, as hex."""
    return base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4)).hex()
