"""Convert exceptions of model loading to `ModelError`s with a next step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from ...config.adapter.files import why_only_an_adapter
from ...errors import FttuiError, ModelError


@contextmanager
def readable_load_errors(model_id: str, revision: str | None = None) -> Iterator[None]:
    """Convert a loading error in the block to a `ModelError` with a next step.

    An `FttuiError` passes unchanged. The hub may be asked whether the id is one of an adapter, at
    `revision`; None is its main one.

    Raises:
        ModelError: The block raised another exception.
    """
    try:
        yield
    except FttuiError:
        raise
    except ImportError as error:
        raise ModelError(
            f"{model_id} needs a Python package that is missing or broken: {_first_line(error)}. "
            f"Install it, or set model.quantize: none if it is bitsandbytes."
        ) from error
    except OSError as error:
        adapter = why_only_an_adapter(model_id, revision) if "config.json" in str(error) else None
        raise ModelError(f"{adapter}." if adapter else _not_found(model_id, error)) from error
    except Exception as error:  # any library error here concerns the user's model
        if type(error).__name__ == "OutOfMemoryError":  # torch's, without importing torch
            raise ModelError(_too_large(model_id, error)) from error
        raise ModelError(_unloadable(model_id, error)) from error


def _not_found(model_id: str, error: OSError) -> str:
    text = str(error)
    if "gated" in text.lower():
        return (
            f"{model_id} is gated: its owner has to grant access. Request access on its hub page, "
            f"then log in with `hf auth login`."
        )
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "TRUE", "YES", "ON"}:
        return (
            f"{model_id} is not in the local hub cache, and HF_HUB_OFFLINE forbids downloading. "
            f"Unset HF_HUB_OFFLINE, or set model.id to a local folder."
        )
    return (
        f"{model_id} cannot be loaded: {_first_line(error)}. Check the spelling and the network, "
        f"or set model.id to a local folder."
    )


def _too_large(model_id: str, error: Exception) -> str:
    return (
        f"{model_id} does not fit on the device while loading: {_first_line(error)}. "
        f"Free device memory, set model.quantize: nf4, or choose a smaller model."
    )


def _unloadable(model_id: str, error: Exception) -> str:
    text = str(error)
    if "trust_remote_code" in text:
        return (
            f"{model_id} contains Python code that would run on this machine. "
            f"Review it, then set model.trust_remote_code: true."
        )
    if "backend tokenizer" in text:
        return (
            f"{model_id} has no tokenizer that can be read: expected tokenizer.json, or the "
            f"vocabulary of a slower one (tokenizer.model, or vocab.json with merges.txt). Copy "
            f"the tokenizer files of the original model into the folder."
        )
    return (
        f"{model_id} cannot be loaded ({type(error).__name__}): {_first_line(error)}. "
        f"Check that it is a causal language model in a format this transformers version reads "
        f"and that its files are complete."
    )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
