"""The key of tokenized data: a hash of everything that they depend on."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from datetime import date
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from ...config import data_reasons
from ...config.schema import RunConfig
from ...run.identity.content import hash_parts, hash_text
from ...run.identity.data_content import data_content
from ...run.identity.hash_cache import HashCache

PACKAGES = ("transformers", "tokenizers", "jinja2", "trl", "datasets", "pyarrow")
"""Packages whose version can change how data are read or tokenized."""


def cache_key(
    config: RunConfig, tokenizer: Any, hashes: HashCache, today: date | None = None
) -> str | None:
    """Return the key of a run's tokenized data, or None if they cannot be identified.

    Data on the hub have no content hash before they are loaded, and a tokenizer with code of its
    own can depend on anything.

    Args:
        config: The run.
        tokenizer: The tokenizer of the model, with the chat template in use.
        hashes: Hashes of files.
        today: The date, on which some chat templates depend.
    """
    data = data_content(config, hashes, None)
    tokens = _tokenizer_hash(tokenizer)
    if not data.hash or tokens is None:
        return None
    settings = msgspec.to_builtins(config.data) | {"accept": [], "quarantine": [], "mix": []}
    parts = {
        "data": data.hash,
        "tokenizer": tokens,
        "settings": json.dumps(settings, sort_keys=True),
        "contrastive": msgspec.json.encode(config.contrastive).decode(),
        "task": config.task,
        "code": _code_hash(),
        "date": str(today or date.today()) if "strftime_now" in _templates(tokenizer) else "",
    }
    return hash_parts(parts | dict(_files(config, hashes)))


def _files(config: RunConfig, hashes: HashCache) -> Iterator[tuple[str, str]]:
    """Yield (key part, hash) of files that settings of `data` name, such as a chat template.

    The data files themselves are not among them.
    """
    for name, value in msgspec.to_builtins(config.data).items():
        if isinstance(value, str) and "\n" not in value and len(value) < 4096:
            path = Path(value).expanduser()
            if name not in ("train", "eval") and path.is_file():
                yield f"file of {name}", hashes.hash(path)


def _tokenizer_hash(tokenizer: Any) -> str | None:
    """Return a hash of a tokenizer and its chat template.

    None if it has no fast backend, or a class from outside transformers, whose code could change.
    """
    kind = type(tokenizer)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not kind.__module__.startswith("transformers."):
        return None
    return hash_parts(
        {
            "class": f"{kind.__module__}.{kind.__qualname__}",
            "backend": hash_text(backend.to_str()),
            "template": hash_text(_templates(tokenizer)),
            "special": json.dumps(tokenizer.special_tokens_map, sort_keys=True, default=str),
        }
    )


def _templates(tokenizer: Any) -> str:
    return json.dumps(tokenizer.chat_template, sort_keys=True, default=str)


def code_files() -> list[Path]:
    """Return the source files whose code determines how data are read and tokenized."""
    folder = Path(__file__).parents[1]
    reasons = Path(data_reasons.__file__).parent
    return [*sorted(folder.rglob("*.py")), *sorted(reasons.glob("*.py"))]


@cache
def _code_hash() -> str:
    """Return a hash of the code that reads and tokenizes, and of the versions of its packages."""
    parts = {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in code_files()}
    return hash_parts(parts | {name: _version(name) for name in PACKAGES} | {"": sys.version})


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
