"""Compares base model and chat template of a run with those that its start adapter had."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from ...config.schema import RunConfig
from ..checkpoint_store import MANIFEST, read_manifest
from .content import ContentIdentity, hash_text
from .hash_cache import HashCache
from .model_content import DEFAULT_TEMPLATE, chat_templates, model_contents


def differences_from_start(config: RunConfig, folder: Path) -> Iterator[str]:
    """Yield a warning if base model or chat template differ from those of the start adapter.

    What is not recorded is not compared.

    A checkpoint records base model and chat template; the folder of an export holds the template.

    Args:
        config: The run, with its base model.
        folder: The folder of the start adapter.
    """
    identity, template = _identity(folder), _template(folder)
    if identity is not None:
        template = identity.template.parts.get(DEFAULT_TEMPLATE, "")
    if identity is None and not template:
        return
    base, _, own = model_contents(config, HashCache())
    before = base if identity is None else identity.base
    if base.hash and before.hash and not base.same_as(before):
        yield (
            f"warning: {config.model.id} has other files than the base model with which the "
            f"adapter was trained, {', '.join(before.sources)}"
        )
    if template and not own.unknown and own.parts.get(DEFAULT_TEMPLATE) != template:
        file = folder / "chat_template.jinja"
        named = str(file) if file.is_file() else "the value that the run of the adapter had"
        yield (
            "warning: the adapter was trained with another chat template than that of this run; "
            f"to keep its template, set data.template to {named}"
        )


def _identity(folder: Path) -> ContentIdentity | None:
    """Return the hashes of model, template and data of a checkpoint; None for other folders."""
    try:
        manifest = read_manifest((folder / MANIFEST).read_bytes())
    except (OSError, msgspec.MsgspecError):
        return None
    return manifest.identity


def _template(folder: Path) -> str:
    """Return the hash of the chat template in a folder; empty if there is none."""
    try:
        text = chat_templates(folder).get("default", "")
    except (OSError, ValueError):
        return ""
    return hash_text(text) if text else ""
