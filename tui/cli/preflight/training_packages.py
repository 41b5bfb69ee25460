"""The packages of the extra `train`, and the commands that require them.

The app and everything that follows a run need none of it, so that they can be installed on a laptop
without a training stack, or beside the libraries of a script whatever their versions are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from fttui.engine.errors import FttuiError

TRAIN = {
    "torch": ">=2.10",
    "transformers": ">=5.24,<6",
    "trl": ">=1.16,<2",
    "peft": ">=0.19",
    "bitsandbytes": ">=0.50",
    "accelerate": ">=1.15",
    "datasets": ">=4",
}
"""Packages of the extra `train`, with the versions that the engine is written for."""
INSTALL = "pip install 'fttui[train]'"


def require_training_packages(command: str) -> None:
    """Refuse a command that trains, or reads data or models, if a package for that is missing.

    Args:
        command: the command as the user typed it.

    Raises:
        FttuiError: packages are missing or have another version than the engine is written for.
    """
    problems = list(unusable())
    if problems:
        listed = "; ".join(problems)
        raise FttuiError(f"{command} needs the training packages, but {listed}. Run: {INSTALL}")


def unusable() -> Iterator[str]:
    """Yield what is wrong with the packages of the extra `train`; nothing if all of them fit."""
    found = {name: installed(name) for name in TRAIN}
    if missing := [name for name, one in found.items() if one is None]:
        yield f"{_listed(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
    for name, one in found.items():
        if one is not None and not fits(one, TRAIN[name]):
            yield f"{name} {one} is installed, and {name}{TRAIN[name]} is needed"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def installed(name: str) -> str | None:
    """Return the installed version of a package, without loading it; None if there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def fits(one: str, limits: str) -> bool:
    """Whether the version `one` is within limits such as `>=5.24,<6`.

    A pre-release counts as its release.
    """
    for limit in limits.split(","):
        bound = _numbers(limit.lstrip("<>="))
        mine = _numbers(one)[: len(bound)]
        if not (mine >= bound if limit.startswith(">=") else mine < bound):
            return False
    return True


def _numbers(text: str) -> list[int]:
    leading = re.match(r"\d+(\.\d+)*", text)
    return [int(part) for part in leading[0].split(".")] if leading else []
