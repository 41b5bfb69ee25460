"""Store for each user which Python code of models they have consented to run.

A user who starts a configuration with `model.trust_remote_code: true` consents to the code. The
same line in a run folder is not a consent, because the folder may come from somebody else.
Therefore the hash of the code is stored in the user's state folder, and resume and export look it
up there.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ...config.checks.user_metrics import named_function
from ...config.model_files import parsed_settings
from ...config.schema import RunConfig
from ...errors import ConfigError
from ..files import hash_file, write_atomically
from ..known_runs import state_folder
from .content import hash_parts
from .model_content import PACKAGE_PREFIX, model_folder

_NAMING_CODE = ("config.json", "tokenizer_config.json", "processor_config.json")
"""Files that name the code to run, also code of another repository, in `auto_map`."""
_METRICS = "eval.metrics"
"""Stands for a model where the code is that of the user's metrics."""
_BENCHMARKS = "eval.benchmarks.include"
"""Stands for a model where the code is that of definitions of tasks."""
_SHOWN_DIGITS = 16
_FEWEST_DIGITS = 8
_SHOWN_FILES = 5


class Consent(msgspec.Struct, frozen=True, kw_only=True):
    """The hashes of the code that the user has consented to run for one model."""

    model: str
    revision: str
    digests: list[str] = []
    before_download: bool = False
    """Whether the user started a run of their own before the code was on this machine, which
    consents to any code of the model."""


@dataclass(frozen=True)
class ModelCode:
    """The Python code of a model, as far as it has been downloaded."""

    model: str
    revision: str
    files: tuple[str, ...]
    digest: str
    """Hash of the files and of what names code elsewhere; empty if the model is not here yet."""
    folder: Path | None


def code_of(config: RunConfig) -> ModelCode | None:
    """Return the Python code that loading the model may run; None if it runs none.

    Without `model.trust_remote_code` a model runs none, nor does one on this machine without Python
    files whose files name no code elsewhere.
    """
    model = config.model
    if not model.trust_remote_code or model.id.startswith(PACKAGE_PREFIX):
        return None
    revision = model.revision or ""
    folder, _ = model_folder(config)
    if folder is None:
        return ModelCode(model.id, revision, (), "", None)
    files = sorted(file for file in folder.rglob("*.py") if file.is_file())
    names = tuple(str(file.relative_to(folder)) for file in files)
    parts = {name: hash_file(file) for name, file in zip(names, files, strict=True)}
    brings_code = bool(files)
    for name in _NAMING_CODE:
        with suppress(OSError, ValueError, AttributeError):
            named = parsed_settings(folder / name).get("auto_map")
            parts[f"auto_map of {name}"] = json.dumps(named, sort_keys=True)
            brings_code = brings_code or bool(named)
    if not brings_code:
        return None
    return ModelCode(model.id, revision, names, hash_parts(parts), folder)


def metric_code_of(config: RunConfig) -> ModelCode | None:
    """Return the files of `eval.metrics`, which a run executes; None without any."""
    files = sorted({named_function(entry)[0] for entry in config.eval.metrics})
    if not files:
        return None
    parts = {}
    for file in files:
        parts[file] = "missing"
        with suppress(OSError):
            parts[file] = hash_file(Path(file))
    return ModelCode(_METRICS, "", tuple(files), hash_parts(parts), Path(files[0]).parent)


def benchmark_code_of(config: RunConfig) -> ModelCode | None:
    """Return the task definitions in `eval.benchmarks.include`, which may name code; or None."""
    include = config.eval.benchmarks.include
    if not include or not config.eval.benchmarks.tasks:
        return None
    folder = Path(include)
    found = sorted(file for kind in ("*.py", "*.y*ml") for file in folder.rglob(kind))
    parts = {}
    for file in found:
        parts[str(file.relative_to(folder))] = "missing"
        with suppress(OSError):
            parts[str(file.relative_to(folder))] = hash_file(file)
    return ModelCode(_BENCHMARKS, "", tuple(parts), hash_parts(parts), folder)


def record_consent(config: RunConfig) -> None:
    """Record the consent of a user who starts a configuration of their own with trusted code.

    If the home folder cannot be written, nothing is recorded, and a later resume asks for consent.
    """
    for code in (code_of(config), metric_code_of(config), benchmark_code_of(config)):
        if code is not None:
            with suppress(OSError, RuntimeError):
                _store(code)


def require_consent(config: RunConfig, given: str, command: str, *, evaluates: bool = True) -> None:
    """Check that the user has consented to the code that a run folder names.

    A consent that is given now is stored for later.

    Args:
        config: the configuration in the run folder.
        given: the hash, or its first digits, to which the user consents now; may be empty.
        command: the command to repeat with the consent.
        evaluates: whether the command may execute the functions in `eval.metrics`, or those that
            tasks in `eval.benchmarks.include` name.

    Raises:
        ConfigError: the user has not consented; the text names the code and its hash.
        OSError: the consent cannot be stored.
    """
    measuring = (metric_code_of(config), benchmark_code_of(config)) if evaluates else ()
    for code in (code_of(config), *measuring):
        if code is not None:
            _require(code, given, command)


def _require(code: ModelCode, given: str, command: str) -> None:
    if _has_consent(code):
        return
    if code.digest and len(given) >= _FEWEST_DIGITS and code.digest.startswith(given):
        _store(code)
        return
    raise ConfigError(_refusal(code, given, command))


def _refusal(code: ModelCode, given: str, command: str) -> str:
    own = code.model in (_METRICS, _BENCHMARKS)
    whose = f"in {code.model}" if own else f"of the model {code.model}"
    what = f"the run wants to execute Python code {whose}"
    if not code.digest:
        return (
            f"{what}, which is not on this machine yet; download the model, review its code, then "
            "repeat the command"
        )
    named = ", ".join(code.files[:_SHOWN_FILES]) or "code of another repository, see config.json"
    more = ", …" if len(code.files) > _SHOWN_FILES else ""
    other = f"; --trust-code {given} {_mismatch(code, given)}" if given else ""
    return (
        f"{what} ({named}{more} in {code.folder}), to which you have not consented{other}; review "
        f"it, then use: {command} --trust-code {code.digest[:_SHOWN_DIGITS]}"
    )


def _mismatch(code: ModelCode, given: str) -> str:
    """Return why a given hash is not consent to the code."""
    if code.digest.startswith(given):
        return f"is too short, expected at least {_FEWEST_DIGITS} digits of the hash"
    return "is the hash of other code"


def _file(code: ModelCode) -> Path:
    name = hashlib.sha256(f"{code.model}\0{code.revision}".encode()).hexdigest()[:32]
    return state_folder() / "trusted-code" / f"{name}.json"


def _read(code: ModelCode) -> Consent:
    try:
        return msgspec.json.decode(_file(code).read_bytes(), type=Consent)
    except (OSError, RuntimeError, msgspec.DecodeError, UnicodeDecodeError):
        return Consent(model=code.model, revision=code.revision)


def _has_consent(code: ModelCode) -> bool:
    known = _read(code)
    return known.before_download or code.digest in known.digests


def _store(code: ModelCode) -> None:
    known = _read(code)
    digests = {*known.digests, *([code.digest] if code.digest else [])}
    changed = msgspec.structs.replace(
        known,
        digests=sorted(digests),
        before_download=known.before_download or not code.digest,
    )
    file = _file(code)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(file, msgspec.json.encode(changed))
